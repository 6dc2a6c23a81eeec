"""A vision-language model that reads a budget of chosen tokens."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any

import torch
from PIL import Image

from texturevlm.ask.answer import Stopwatch
from texturevlm.ask.attachment import DEFAULTS, attach, attached_to, hooked, network_of, released_with_hooks
from texturevlm.ask.captured_choice import CapturedChoice
from texturevlm.ask.captured_models import CapturedModels
from texturevlm.ask.choose import Chosen
from texturevlm.ask.decoding import decoding, several_sequences
from texturevlm.ask.documents import DocumentSession
from texturevlm.ask.generation import Generator
from texturevlm.ask.looks import SURE, answer_by_looks
from texturevlm.ask.messages import are_messages, images_of, question_in, videos_of
from texturevlm.ask.options import (
    RELEVANCES,
    TOKENS,
    Choosing,
    check_belongs,
    check_context,
    check_family_looks,
    check_looks,
    check_options,
    for_hooks,
    usual_relevance,
)
from texturevlm.ask.prepared import PreparedImage
from texturevlm.ask.pretrained import find
from texturevlm.ask.saved import SETTINGS, for_answers
from texturevlm.ask.session import ImageSession
from texturevlm.ask.videos import VideoOptions, VideoSession, check_video_relevance, is_video
from texturevlm.channels.pretrained import HUB_OPTIONS
from texturevlm.check import check_choice, check_count, check_share
from texturevlm.cuda.graph import nothing_collected
from texturevlm.defaults import FINE_PAGES
from texturevlm.pages import is_document
from texturevlm.pipeline import Allocator
from texturevlm.registry import near_miss
from texturevlm.relevance.named import check_relevance
from texturevlm.turned import check_turn
from texturevlm.vlm import HOOKS, ModelHook, adapter_for
from texturevlm.vlm.adapter import ATTRIBUTE
from texturevlm.vlm.hook import budgeted, check_hooks, hooks_of
from texturevlm.vlm.places import COORDINATES
from texturevlm.vlm.prompts import is_conversation

BATCH = 8  # questions that are answered together
LOADING = (
    "device",
    "dtype",
    "tokens",
    "looks",
    "captured",
    "hooks",
    *SETTINGS,
)  # options of `load_vlm`
OWN = (
    "looks",
    "tokens",
    "sure",
    "stream",
    "return_details",
    "hooks",
    "fps",
    "seconds",
    "rate",
    "fine_pages",
    *SETTINGS,
)  # options of `ask` that are not those of `generate`


class VLM:
    """A model and its processor at a budget of visual tokens; `load_vlm` loads one.

    model:     of transformers
    processor: a TextureProcessor, whose budget, allocator and relevance are used; or the model's own processor
    tokens, looks, hooks, options: as in `load_vlm`; options are those of hooks
    captured:  whether choosing, the vision tower, the prefill and decoding are captured as graphs (Qwen, one image); by
               default on a GPU
    budget, allocator, relevance, turn: as in `attach`
    reasons:   why the last answer, or a part of it, was not captured although it should have been
    """

    def __init__(
        self,
        model: Any,
        processor: Any,
        *,
        budget: int | None = None,
        allocator: str | Allocator | None = None,
        relevance: str | None = None,
        turn: float | str | None = None,
        tokens: str = TOKENS[0],
        looks: int | str = 1,
        captured: bool | None = None,
        hooks: Sequence[ModelHook] = (),
        **options: Any,
    ) -> None:
        from texturevlm.ask.processor import TextureProcessor

        hooks_of("VLM", for_hooks(tokens))
        self.model = network_of("VLM", model)
        self.hooks = hooks_of("VLM", options, hooks)
        check_looks("VLM", looks, RELEVANCES[0], tokens)
        check_family_looks("VLM", looks, self.model.config)
        given = {"budget": budget, "allocator": allocator, "relevance": relevance, "turn": turn}
        options = {name: value for name, value in given.items() if value is not None}
        own = isinstance(processor, TextureProcessor)
        for name in ("budget", "relevance"):
            if isinstance(one := options.get(name, getattr(processor, name) if own else None), (tuple, list)):
                raise ValueError(f"VLM: processor must have one {name}, got {one!r}")
        if own and not options and attached_to(processor) in (None, self.model):
            config, inner = self.model.config, processor.processor
            check_choice("VLM", "model_type of the processor", processor.config.model_type, [config.model_type])
            check_belongs("VLM", inner, config, adapter_for(config, inner))
        else:
            processor = attach(self.model, processor, **options)
        self.processor, self.tokens, self.looks = processor, tokens, looks
        check_hooks("VLM", self.model.config, budgeted("VLM", self.hooks, self.budget)[1])
        for hook in self.hooks:
            hook.attach(hooked(self.model, processor))
        self.adapter = hooked(self.model, processor).beside(processor.processor)
        self.graphs = CapturedModels(self.adapter, processor, captured=captured)
        self.generator = Generator(self.adapter, self.graphs)
        self._choice = CapturedChoice()
        released_with_hooks(self)

    @property
    def budget(self) -> int:
        """Tokens that all images of a question get together unless `ask` says otherwise."""
        return int(self.processor.budget)

    @property
    def allocator(self) -> str | Allocator:
        """How tokens are chosen unless `ask` says otherwise."""
        found: str | Allocator = self.processor.allocator
        return found

    @property
    def relevance(self) -> str:
        """By what they are chosen unless `ask` says otherwise."""
        return str(self.processor.relevance)

    @property
    def turn(self) -> float | str:
        """The angle of the text of images, unless `ask` says otherwise."""
        found: float | str = self.processor.turn
        return found

    @property
    def fine_pages(self) -> int:
        """Pages of a document that get tokens of their own, at most, unless `ask` says otherwise."""
        return self.adapter.trained.fine_pages or FINE_PAGES

    @property
    def device(self) -> torch.device:
        """Where the model takes its inputs."""
        return self.adapter.device

    @property
    def reasons(self) -> list[str]:
        return self.graphs.reasons

    def __repr__(self) -> str:
        allocator = getattr(self.allocator, "__name__", self.allocator)
        millions = sum(one.numel() for one in self.model.parameters()) / 1e6
        more = "".join(f", {name}={value!r}" for hook in self.hooks for name, value in hook.given.items())
        return (
            f"VLM({type(self.model).__name__}, {millions:.3g} million parameters, {self.model.dtype} on {self.device}, "
            f"budget={self.budget}, allocator={allocator!r}, relevance={self.relevance!r}, tokens={self.tokens!r}"
            f"{more})"
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.adapter.lock = hooked(self.model, self.processor).lock  # all that ask one model wait for one another
        released_with_hooks(self)

    def prepare(
        self,
        images: Any,
        *,
        questions: int = 1,
        fps: float | None = None,
        seconds: float | None = None,
        rate: float | None = None,
    ) -> Any:
        """Prepare images, or a video, for any number of questions: mip levels, maps and words are made once.

        images: a path, a URL, bytes, an open file, a PIL image, an array (H, W[, C]), a tensor (C, H, W), a Texture or
                a dict with bytes or path as `datasets` has it; or a list. Floats are from 0 to 1. A video: a file, a
                folder of images, an array (N, H, W, 3), a tensor (N, 3, H, W), an iterator over frames, a list of
                frames with `fps`, a camera (camera:0) or a network stream (rtsp://…). A document: a PDF by its path or
                bytes (extra `pdf`), whose pages are chosen per question (`choose_pages`)
        questions: about each image, how many are expected. On a GPU, where so many pay for it (by measured times, about
                50 for 1024² pixels and 273 tokens), the texture is kept in the texture units, which blend with 8 bits
        fps, seconds, rate: of a video, as for `ask`
        returns an ImageSession; of a video a VideoSession; of a document a DocumentSession
        """
        options = VideoOptions(fps, seconds, rate).check()
        if is_document(images) and options == VideoOptions(None, None, None):
            return DocumentSession(self, images)
        if is_video(images, fps=fps):
            return VideoSession(self, images, options)
        if any(value is not None for value in options):
            raise ValueError(f"ask: fps, seconds and rate are for a video, got {type(images).__name__}")
        given = list(images) if isinstance(images, (list, tuple)) else [images]
        if not given:
            raise ValueError("prepare: images must be at least one, got none")
        side = self.adapter.side
        samples = check_count("prepare", "questions", questions, 1) * self.budget * side * side
        how: Any = {"patch": side, "device": self.device, "samples": samples if questions > 1 else 0}
        how["finer"] = self.adapter.trained.finer
        return ImageSession(self, [PreparedImage(one, **how) for one in given])

    def ask(
        self,
        images: Any,
        question: Any = None,
        *,
        looks: int | str | None = None,
        tokens: str | None = None,
        sure: float | None = None,
        stream: bool = False,
        return_details: bool = False,
        budget: int | None = None,
        allocator: str | Allocator | None = None,
        relevance: str | None = None,
        turn: float | str | None = None,
        hooks: Sequence[ModelHook] = (),
        max_new_tokens: int | None = None,
        fps: float | None = None,
        seconds: float | None = None,
        rate: float | None = None,
        fine_pages: int | None = None,
        **options: Any,
    ) -> Any:
        """Answer a question about images or a video: a text. A list of questions gets a list of answers.

        images:    as for `prepare`; several, and all moments of a video, share the budget. With a list of questions:
                   all are about these images, unless there is one list of images, or one of what `prepare` returned,
                   per question. None if the messages hold the images; the messages, or a list of conversations, may
                   also stand here, alone
        question:  a text, a conversation (messages with system prompt and history), or a list of those
        looks:     1; 2: an overview first, then the rest of the budget where the attention of the model went; auto: an
                   overview of a quarter of the budget, and the rest only if the model is not sure of its answer
        sure:      with looks="auto": the chance of being right from which the first answer is kept
        stream:    return an iterator over pieces of the answer, as they are generated; one question only
        return_details: return an Answer: the text, the log-probability of its tokens, the allocation, the times
        budget, allocator, relevance, turn, tokens: as in `load_vlm`, for this call alone
        hooks:     for this call, beside those of the model
        max_new_tokens: at most so many in the answer; 256 if not given
        fps:       of a video: frames per second that are looked at, 2 if not given. A list of frames with `fps` is a
                   video of that rate
        seconds:   of a video: the first so many; of a camera or a network stream 10 if not given
        rate:      of a video: tokens per second, within the budget
        fine_pages: of a document: pages that get tokens of their own, at most, 1 to 20; if not given the number that
                   the checkpoint names, or 5
        options:   of hooks, as in `load_vlm`, for this call alone (reduce=[]: nothing is reduced); of the model's
                   `generate`; and levels and coordinates of an adapter's `prepare`. Decoding is greedy
                   unless one of them asks for sampling: do_sample, a temperature above 0, top_p, top_k and the like
        """
        self.check_attached()
        how = self.choosing(
            looks=looks,
            tokens=tokens,
            budget=budget,
            allocator=allocator,
            relevance=relevance,
            turn=turn,
            hooks=hooks,
            fine_pages=fine_pages,
            **{name: options.pop(name) for name in list(options) if HOOKS.knows(name)},
        )
        options = decoding(self.model, self.adapter.tokenizer, max_new_tokens, options, OWN)
        laid = options.get("levels"), options.get("coordinates")
        allowed = COORDINATES if how.looks == "auto" else self.adapter.coordinates
        levels, coordinates = self.adapter.checked_layout("ask", *laid, allowed)
        how = replace(how, levels=levels, coordinates=coordinates)
        if question is None and are_messages(images):
            images, question = None, images
        many = isinstance(question, (list, tuple)) and not is_conversation(question)
        prompts = list(question) if many else [question]
        if not prompts:
            raise ValueError("ask: question must be a text, messages, or a list of those, got an empty list")
        questions = [question_in("ask", prompt) for prompt in prompts]
        also = "a list of questions" if many else "return_details" if return_details else several_sequences(options)
        also = "a streamer" if options.get("streamer") is not None else also
        if stream and also:
            raise ValueError(f"ask: stream must be False with {also}, got True")
        watch = Stopwatch(self.device, wait=return_details)
        if sure is not None:
            check_share("ask", "sure", sure)
            if how.looks != "auto":
                raise ValueError(f"ask: looks must be 'auto' with sure, got {how.looks!r}")
        if how.looks == "auto" and (one := several_sequences(options)):
            raise ValueError(f"ask: looks must be 1 or 2 with {one}, got 'auto'")
        if is_video(images, fps=fps):  # before it is read
            check_video_relevance("ask", how.relevance)
        sessions = self._sessions(images, prompts, VideoOptions(fps, seconds, rate).check())
        for session in sessions:
            if isinstance(session, DocumentSession):
                session.check(how)
            elif fine_pages is not None:
                raise ValueError(f"ask: fine_pages is for a document, got {fine_pages} with a {type(session).__name__}")
        watch.stage("open")
        if how.looks == "auto":
            given: Any = {"sure": SURE if sure is None else sure, "seconds": watch.seconds}
            looked = [
                answer_by_looks(session, prompt, one, how, options, apart=images is not None, **given)
                for session, prompt, one in zip(sessions, prompts, questions)
            ]
            said = [one if return_details else one.text for one in looked]
            return iter(said) if stream else said if many else said[0]
        asked = [
            session.asked(prompt, one, how, apart=images is not None)
            for session, prompt, one in zip(sessions, prompts, questions)
        ]
        watch.stage("choose")
        if stream:
            return self.generator.stream(asked[0], options)
        left = iter(asked)
        batches = [list(islice(left, count)) for count in self.graphs.batches(len(asked), BATCH)]
        if return_details:
            answers = [self.generator.details(batch, options, watch.seconds) for batch in batches]
        else:
            answers = [self.generator.texts(batch, options) for batch in batches]
        each = list(chain(*answers))
        return each if many else each[0]

    def choosing(
        self,
        *,
        looks: int | str | None = None,
        tokens: str | None = None,
        budget: int | None = None,
        allocator: str | Allocator | None = None,
        relevance: str | None = None,
        turn: float | str | None = None,
        hooks: Sequence[ModelHook] = (),
        fine_pages: int | None = None,
        **options: Any,
    ) -> Choosing:
        """How the tokens of a question are chosen: as given, or as for every question; checked. options: of hooks"""
        tokens = self.tokens if tokens is None else tokens
        found = hooks_of("ask", {**options, **for_hooks(tokens)}, hooks, self.hooks)
        if late := next((one for one in found if one.lasting and one not in self.hooks), None):
            raise ValueError(f"ask: {late.name} must be given to load_vlm, which changes the model, got {late!r:.80}")
        wanted = check_count("ask", "budget", self.budget if budget is None else budget, 1)
        sampled, found = budgeted("ask", found, wanted)
        looks = self.looks if looks is None else looks
        return Choosing(
            budget=sampled,
            allocator=self.allocator if allocator is None else allocator,
            relevance=usual_relevance(looks, self.relevance) if relevance is None else relevance,
            looks=looks,
            tokens=tokens,
            hooks=found,
            turn=check_turn("ask", self.turn if turn is None else turn),
            fine_pages=self.fine_pages if fine_pages is None else fine_pages,
        ).check(self.model.config)

    def look(
        self,
        images: Any,
        question: str = "",
        *,
        looks: int | str | None = None,
        budget: int | None = None,
        allocator: str | Allocator | None = None,
        relevance: str | None = None,
        turn: float | str | None = None,
        fine_pages: int | None = None,
    ) -> Image.Image:
        """Draw what the model sees when it is asked; arguments as for `ask`."""
        options: dict[str, Any] = {"looks": looks, "budget": budget, "allocator": allocator, "relevance": relevance}
        options["turn"] = turn
        self.choosing(**options, fine_pages=fine_pages)  # before slow work
        session = self.prepare(images)
        if isinstance(session, DocumentSession):
            options["fine_pages"] = fine_pages
        drawn: Image.Image = session.look(question, **options)
        return drawn

    def choose_captured(self, image: PreparedImage, question: str, **options: Any) -> Chosen | None:
        """The choice by replaying a graph; None if it is not captured. options: as for `choose`"""
        if self.graphs.wanted:
            return self._choice(image, question, **options)
        self._choice.release()
        return None

    def check_attached(self) -> None:
        """Raise if the model was detached."""
        if not hasattr(self.model, ATTRIBUTE):
            raise ValueError("ask: model was detached and reads whole images again; attach it once more")

    def detach(self) -> Any:
        """Restore the model and return it."""
        self.processor.detach()
        self.release()
        return self.model

    def release(self) -> None:
        """Free what was captured, and its memory on the GPU; the next question captures it again."""
        self.graphs.release()
        self._choice.release()

    def _sessions(
        self, images: Any, prompts: Sequence[Any], options: VideoOptions
    ) -> Sequence[ImageSession | VideoSession]:
        """The images, or the video, of each prompt."""
        prepare: Any = partial(self.prepare, **options._asdict())
        if isinstance(images, (ImageSession, VideoSession)):
            return [images] * len(prompts)
        if images is None:
            return [prepare(_held(prompt)) for prompt in prompts]
        each: Any = (list, tuple, ImageSession, VideoSession)  # of one question
        nested = isinstance(images, (list, tuple)) and any(isinstance(one, each) for one in images)
        if nested:
            if len(images) != len(prompts):
                raise ValueError(f"ask: images must be one list per question ({len(prompts)}), got {len(images)}")
            return [own if isinstance(own, each[2:]) else prepare(own) for own in images]
        return [prepare(images)] * len(prompts)


def _held(prompt: Any) -> Any:
    """The images inside the messages of a prompt, or its video."""
    images = images_of(prompt) if is_conversation(prompt) else []
    videos = videos_of(prompt) if is_conversation(prompt) else []
    if not (images or videos) or any(one is None for one in (*images, *videos)):
        raise ValueError("ask: images must be given, or be inside the messages, got none")
    if videos and (images or len(videos) > 1):
        raise ValueError(f"ask: messages must have images or one video, got {len(images)} and {len(videos)}")
    return videos[0] if videos else images


def load_vlm(
    model: str | os.PathLike[str],
    *,
    budget: int | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | str | None = None,
    allocator: str | Allocator | None = None,
    relevance: str | None = None,
    turn: float | str | None = None,
    tokens: str = TOKENS[0],
    looks: int | str = 1,
    captured: bool | None = None,
    hooks: Sequence[ModelHook] = (),
    **options: Any,
) -> VLM:
    """Load a vision-language model, from a hub id, from a folder, or "reader", which comes with the package.

    budget:    visual tokens that all images of a question share
    device:    a GPU if there is one
    dtype:     the checkpoint's own if None or "auto"
    allocator, relevance: how the tokens are chosen, as in `choose_tokens`; embedding as embedding:MODEL,PCA
    turn:      the angle of the text of images, in degrees from +x towards +y (90: a page that was turned clockwise by a
               quarter), or auto: it is found. Footprints follow it, so that the model reads upright patches
    tokens:    chosen; or weighted: the model's own full grid, each token multiplied by its relevance (1 for the most
               relevant one), whatever the budget; or merged: chosen, and a token that is too coarse to be legible is
               the mean of its children's patch embeddings, weighted by relevance
    looks:     1, 2 or auto, for every question, as in `ask`
    captured:  whether choosing, the vision tower, the prefill and decoding are captured as graphs (Qwen, one image),
               which makes the first question slower; by default on a GPU
    hooks:     what changes the model while it runs (`vlm.ModelHook`)
    options:   by which installed hooks are asked for, with the lab reduce, keep (docs/rivals.md), attention and
               tower_attention (docs/attention.md); or of transformers' `from_pretrained`: device_map,
               attn_implementation, quantization_config, revision, …; code from the hub is not run unless
               trust_remote_code says so
    budget, allocator, relevance and turn are those of the TextureProcessor that was saved beside the model, if there
    is one; else the defaults of `attach`.
    """
    given = {"budget": budget, "allocator": allocator, "relevance": relevance, "turn": turn}
    given = {name: value for name, value in given.items() if value is not None}
    _check("load_vlm", {**DEFAULTS, **given}, tokens, looks)
    others = [one for one in options if one not in HUB_OPTIONS]
    own_hooks = hooks_of("load_vlm", {name: options.pop(name) for name in others if HOOKS.knows(name)}, hooks)
    for name in [one for one in others if one in options]:
        if meant := near_miss(name, {*LOADING, *HOOKS, *HOOKS.lab}):
            raise TypeError(f"load_vlm: options must be those of load_vlm or of from_pretrained, got {name}{meant}")
    with nothing_collected():  # transformers imports a thousand modules here, all of which stay
        found = find(model, device=device, dtype=dtype, **options)
    settings = {**DEFAULTS, **for_answers(found.settings)}
    settings = {**settings, "relevance": usual_relevance(looks, settings["relevance"]), **given}
    _check("load_vlm", settings, tokens, looks)
    sampled, fitted = budgeted("load_vlm", own_hooks, settings["budget"])
    check_context("load_vlm", sampled, found.config)
    check_hooks("load_vlm", found.config, fitted)
    check_family_looks("load_vlm", looks, found.config, settings["relevance"])
    network, processor = found.load()
    own = attach(network, processor, **settings)
    return VLM(network, own, tokens=tokens, looks=looks, captured=captured, hooks=own_hooks)


def _check(function: str, settings: dict[str, Any], tokens: str, looks: int | str) -> None:
    """One budget and one relevance: several are for training."""
    check_count(function, "budget", settings["budget"], 1)
    check_options(function, **settings, tokens=tokens)
    relevance = check_relevance(function, settings["relevance"], RELEVANCES)
    if looks != 1:
        check_looks(function, looks, relevance, tokens)
