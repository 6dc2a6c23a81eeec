"""A vision-language model that reads a budget of chosen tokens."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from PIL import Image

from texturevlm.ask.answer import Stopwatch
from texturevlm.ask.attachment import ASKING, attach, attached_to, hooked, network_of
from texturevlm.ask.config import KINDS, OPTIONS, SAVED, TOKENS, AskConfig, check_belongs, for_answers
from texturevlm.ask.decoding import decoding, several_sequences
from texturevlm.ask.generation import CapturedModels, Generator
from texturevlm.ask.looks import answer_by_looks
from texturevlm.ask.messages import are_messages, images_of, question_in, videos_of
from texturevlm.ask.pretrained import find
from texturevlm.ask.session import DocumentSession, ImageSession, VideoOptions, VideoSession, is_video
from texturevlm.channels import HUB_OPTIONS
from texturevlm.check import check_choice, check_count
from texturevlm.cuda import nothing_collected
from texturevlm.defaults import FINE_PAGES
from texturevlm.pages import is_document
from texturevlm.placement import Allocator, CapturedChoice, TokenConfig, open_image, prepare
from texturevlm.placement.captured import MOST_CHOICES
from texturevlm.registry import near_miss
from texturevlm.vlm import COORDINATES, HOOKS, ModelHook, adapter_for
from texturevlm.vlm.adapter import ATTRIBUTE
from texturevlm.vlm.hook import hooks_of
from texturevlm.vlm.prompts import is_conversation

LOADING = (*TOKENS, "device", "dtype", "tokens", "looks", "captured")
CONFIGURED = ("tokens", *OPTIONS, *TOKENS)  # options of `load_vlm` and `ask` that an AskConfig holds
OWN = ("stream", "return_details", "fps", "seconds", "rate", *CONFIGURED)  # of `ask`, and not of `generate`
SESSIONS: Any = (ImageSession, VideoSession)


class VLM:
    """A model and its processor at a budget of visual tokens; `load_vlm` loads one.

    model:     of transformers
    processor: a TextureProcessor, whose budget, allocator, relevance and turn are used; or the model's own processor
    captured:  whether choosing, the vision tower, the prefill and decoding are captured as graphs (Qwen, one image); by
               default on a GPU
    hooks:     what changes the model while it runs (`vlm.ModelHook`)
    options:   as in `load_vlm`, for every question; by those of hooks they are asked for
    config:    how the model is asked unless `ask` says otherwise
    reasons:   why the last answer, or a part of it, was not captured although it should have been
    """

    def __init__(
        self,
        model: Any,
        processor: Any,
        *,
        captured: bool | None = None,
        hooks: Sequence[ModelHook] = (),
        **options: Any,
    ) -> None:
        from texturevlm.ask.processor import TextureProcessor

        self.model = network_of("VLM", model)
        placed = {name: options[name] for name in SAVED if options.get(name) is not None}
        own = isinstance(processor, TextureProcessor)
        for name in ("budget", "relevance"):
            if isinstance(given := placed.get(name, getattr(processor, name) if own else None), (tuple, list)):
                raise ValueError(f"VLM: processor must have one {name}, got {given!r:.80}")
        asked = {name: value for name, value in options.items() if name not in SAVED}
        AskConfig(TokenConfig()).given("VLM", asked, hooks).check("VLM", self.model.config)
        attached = attached_to(processor) if own and not placed else None
        if own and not placed and attached is None:
            config, inner = self.model.config, processor.processor
            check_choice("VLM", "model_type of the processor", processor.config.model_type, [config.model_type])
            check_belongs("VLM", inner, config, adapter_for(config, inner))
        elif attached is not self.model:
            processor = attach(self.model, processor, **placed)
        self.processor = processor
        self.adapter = hooked(self.model, processor).beside(processor.processor)
        usual = AskConfig(processor.config_for(1), fine_pages=self.adapter.trained.fine_pages or FINE_PAGES)
        self._placed = {name: asked[name] for name in TOKENS if asked.get(name) is not None}  # no processor has these
        self._config = usual.given("VLM", asked, hooks)
        self._config.for_hooks("VLM").check("VLM", self.model.config)
        for hook in self._config.hooks:
            hook.attach(hooked(self.model, processor))
        self.graphs = CapturedModels(self.adapter, processor, captured=captured)
        self.generator = Generator(self.adapter, self.graphs)
        self._choice = CapturedChoice(MOST_CHOICES, second=True)
        ASKING.add(self)

    @property
    def config(self) -> AskConfig:
        """How the model is asked unless `ask` says otherwise; the processor's own options may have been set since."""
        tokens = self.processor.config_for(1)
        relevance = self._config.tokens.relevance if self._config.looks == 2 else tokens.relevance
        return replace(self._config, tokens=replace(tokens, relevance=relevance, **self._placed))

    @property
    def budget(self) -> int:
        """Tokens that all images of a question get together unless `ask` says otherwise."""
        return int(self.processor.budget)

    @property
    def device(self) -> torch.device:
        """Where the model takes its inputs."""
        return self.adapter.device

    @property
    def reasons(self) -> list[str]:
        return self.graphs.reasons

    def __repr__(self) -> str:
        how = self.config
        allocator = getattr(how.tokens.allocator, "__name__", how.tokens.allocator)
        millions = sum(weights.numel() for weights in self.model.parameters()) / 1e6
        more = "".join(f", {name}={value!r}" for hook in how.hooks for name, value in hook.given.items())
        return (
            f"VLM({type(self.model).__name__}, {millions:.3g} million parameters, {self.model.dtype} on {self.device}, "
            f"budget={how.tokens.budget}, allocator={allocator!r}, relevance={how.tokens.relevance!r}, "
            f"tokens={how.kind!r}{more})"
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.adapter.lock = hooked(self.model, self.processor).lock  # all that ask one model wait for one another
        ASKING.add(self)

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
        kind = _kind_of(images, options)
        if kind is DocumentSession:
            return DocumentSession(self, images)
        if kind is VideoSession:
            return VideoSession(self, images, options)
        if any(value is not None for value in options):
            raise ValueError(f"ask: fps, seconds and rate are for a video, got {type(images).__name__}")
        given = list(images) if isinstance(images, (list, tuple)) else [images]
        if not given:
            raise ValueError("prepare: images must be at least one, got none")
        side = self.adapter.side
        samples = check_count("prepare", "questions", questions, 1) * self.budget * side * side
        how = replace(self.config.tokens, turn=0.0)  # the angle is found when the first question comes
        opened = [open_image(image, self.device) for image in given]
        return ImageSession(self, [prepare(image, how, samples=samples if questions > 1 else 0) for image in opened])

    def ask(
        self,
        images: Any,
        question: Any = None,
        *,
        stream: bool = False,
        return_details: bool = False,
        max_new_tokens: int | None = None,
        fps: float | None = None,
        seconds: float | None = None,
        rate: float | None = None,
        hooks: Sequence[ModelHook] = (),
        **options: Any,
    ) -> Any:
        """Answer a question about images or a video: a text. A list of questions gets a list of answers.

        images:    as for `prepare`; several, and all moments of a video, share the budget. With a list of questions:
                   all are about these images, unless there is one list of images, or one of what `prepare` returned,
                   per question. None if the messages hold the images; the messages, or a list of conversations, may
                   also stand here, alone
        question:  a text, a conversation (messages with system prompt and history), or a list of those
        stream:    return an iterator over pieces of the answer, as they are generated; one question only
        return_details: return an Answer: the text, the log-probability of its tokens, the placements, the times
        max_new_tokens: at most so many in the answer; 256 if not given
        fps:       of a video: frames per second that are looked at, 2 if not given. A list of frames with `fps` is a
                   video of that rate
        seconds:   of a video: the first so many; of a camera or a network stream 10 if not given
        rate:      of a video: tokens per second, within the budget
        hooks:     for this call, beside those of the model
        options:   fields of AskConfig and TokenConfig for this call alone: looks, sure, tokens, levels, coordinates,
                   fine_pages; budget, allocator, relevance, balance, turn. Options of hooks, as in `load_vlm`
                   (reduce=[]: nothing is reduced). Others are of the model's `generate`: decoding is greedy unless one
                   of them asks for sampling: do_sample, a temperature above 0, top_p, top_k and the like
        """
        self.check_attached()
        said = Prompts.parse(images, question)
        own = {name: options.pop(name) for name in list(options) if name in CONFIGURED or HOOKS.knows(name)}
        how = self.config_for(hooks=hooks, **own)
        laid = {name: own[name] for name in ("levels", "coordinates") if own.get(name) is not None}
        options = decoding(self.model, self.adapter.tokenizer, max_new_tokens, {**options, **laid}, OWN)
        _check_together(how, options, said, stream=stream, return_details=return_details)
        watch = Stopwatch(self.device, wait=return_details)
        video = VideoOptions(fps, seconds, rate).check()
        sessions = self._sessions(said, video, how, fine_pages=own.get("fine_pages"))
        watch.stage("open")
        each = list(zip(sessions, said.prompts, said.questions))
        if how.looks == "auto":
            answers: list[Any] = [
                answer_by_looks(session, prompt, about, how, options, apart=said.apart, seconds=watch.seconds)
                for session, prompt, about in each
            ]
            answers = answers if return_details else [answer.text for answer in answers]
            return iter(answers) if stream else answers if said.many else answers[0]
        requests = [session.request(prompt, about, how, apart=said.apart) for session, prompt, about in each]
        watch.stage("choose")
        if stream:
            return self.generator.stream(requests[0], options)
        answers = self.generator.answers(requests, options, watch.seconds if return_details else None)
        return answers if said.many else answers[0]

    def config_for(self, *, hooks: Sequence[ModelHook] = (), **options: Any) -> AskConfig:
        """How a question is asked: as given, or as for every question; checked. options: as for `ask`"""
        usual = self.config
        how = usual.given("ask", options, hooks)
        if late := next((hook for hook in how.hooks if hook.lasting and hook not in usual.hooks), None):
            raise ValueError(f"ask: {late.name} must be given to load_vlm, which changes the model, got {late!r:.80}")
        if options.get("sure") is not None and how.looks != "auto":
            raise ValueError(f"ask: looks must be 'auto' with sure, got {how.looks!r}")
        how = how.for_hooks("ask").check("ask", self.model.config)
        allowed = COORDINATES if how.looks == "auto" else self.adapter.coordinates
        levels, coordinates = self.adapter.checked_layout("ask", how.levels, how.coordinates, allowed)
        return replace(how, levels=levels, coordinates=coordinates)

    def look(self, images: Any, question: str = "", **options: Any) -> Image.Image:
        """Draw what the model sees when it is asked; options as for `ask`."""
        self.config_for(**options)  # before slow work
        drawn: Image.Image = self.prepare(images).look(question, **options)
        return drawn

    @property
    def captured_choice(self) -> Any:
        """What places tokens by replaying a graph; None where nothing is captured."""
        if self.graphs.wanted:
            return self._choice.place
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
        self, said: Prompts, video: VideoOptions, how: AskConfig, *, fine_pages: int | None
    ) -> Sequence[ImageSession | VideoSession]:
        """The images, the video or the document of each prompt. fine_pages: as the caller gave them"""

        def opened(given: Any) -> ImageSession | VideoSession:
            kind = type(given) if isinstance(given, SESSIONS) else _kind_of(given, video)
            if fine_pages is not None and not issubclass(kind, DocumentSession):
                raise ValueError(f"ask: fine_pages is for a document, got {fine_pages} with a {kind.__name__}")
            kind.check(how)  # before anything is opened
            found: ImageSession | VideoSession = given
            return found if isinstance(given, SESSIONS) else self.prepare(given, **video._asdict())

        images, prompts = said.images, said.prompts
        if not said.apart:
            return [opened(_held(prompt)) for prompt in prompts]
        if isinstance(images, (list, tuple)) and any(isinstance(own, (list, tuple, *SESSIONS)) for own in images):
            if len(images) != len(prompts):
                raise ValueError(f"ask: images must be one list per question ({len(prompts)}), got {len(images)}")
            return [opened(own) for own in images]
        return [opened(images)] * len(prompts)


class Prompts(NamedTuple):
    """What a caller asks.

    images:    of all questions, or of each; None: they are inside the messages
    prompts:   texts or messages
    questions: the text of each of them
    many:      whether the caller gave a list of questions
    """

    images: Any
    prompts: list[Any]
    questions: list[str]
    many: bool

    @property
    def apart(self) -> bool:
        """Whether the images were given apart from the messages."""
        return self.images is not None

    @classmethod
    def parse(cls, images: Any, question: Any) -> Prompts:
        """Tell images from messages, and a question from several; the messages are checked."""
        if question is None and are_messages(images):
            images, question = None, images
        many = isinstance(question, (list, tuple)) and not is_conversation(question)
        prompts = list(question) if many else [question]
        if not prompts:
            raise ValueError("ask: question must be a text, messages, or a list of those, got an empty list")
        return cls(images, prompts, [question_in("ask", prompt) for prompt in prompts], many)


def _check_together(
    how: AskConfig, options: Mapping[str, Any], said: Prompts, *, stream: bool, return_details: bool
) -> None:
    """Raise for options that exclude one another. options: of `generate`"""
    several = several_sequences(options)
    also = "a list of questions" if said.many else "return_details" if return_details else several
    also = "a streamer" if options.get("streamer") is not None else also
    if stream and also:
        raise ValueError(f"ask: stream must be False with {also}, got True")
    if how.looks == "auto" and several:
        raise ValueError(f"ask: looks must be 1 or 2 with {several}, got 'auto'")


def _kind_of(given: Any, video: VideoOptions) -> type[ImageSession] | type[VideoSession]:
    """How `VLM.prepare` opens what a question is about."""
    if is_document(given) and video == VideoOptions():
        return DocumentSession
    return VideoSession if is_video(given, fps=video.fps) else ImageSession


def _held(prompt: Any) -> Any:
    """The images inside the messages of a prompt, or its video."""
    images = images_of(prompt) if is_conversation(prompt) else []
    videos = videos_of(prompt) if is_conversation(prompt) else []
    if not (images or videos) or any(held is None for held in (*images, *videos)):
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
    tokens: str = KINDS[0],
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
    options:   the other fields of TokenConfig (balance, options, …); those by which installed hooks are asked for, with
               the lab reduce, keep (docs/rivals.md), attention and tower_attention (docs/attention.md); or of
               transformers' `from_pretrained`: device_map, attn_implementation, quantization_config, revision, …; code
               from the hub is not run unless trust_remote_code says so
    budget, allocator, relevance and turn are those of the TextureProcessor that was saved beside the model, if there
    is one; else the package's defaults.
    """
    given = {"budget": budget, "allocator": allocator, "relevance": relevance, "turn": turn}
    given = {name: value for name, value in given.items() if value is not None}
    others = [name for name in options if name not in HUB_OPTIONS]
    placed = {name: options.pop(name) for name in TOKENS if name in options}
    own_hooks = hooks_of("load_vlm", {name: options.pop(name) for name in others if HOOKS.knows(name)}, hooks)

    def config(settings: Mapping[str, Any]) -> AskConfig:
        asked = {**settings, **given, **placed, "tokens": tokens, "looks": looks}
        return AskConfig(TokenConfig()).given("load_vlm", asked, own_hooks).for_hooks("load_vlm")

    config({}).check("load_vlm")  # before slow work
    for name in [name for name in others if name in options]:
        if meant := near_miss(name, {*LOADING, *HOOKS, *HOOKS.lab}):
            raise TypeError(f"load_vlm: options must be those of load_vlm or of from_pretrained, got {name}{meant}")
    with nothing_collected():  # transformers imports a thousand modules here, all of which stay
        found = find(model, device=device, dtype=dtype, **options)
    settings = for_answers(found.settings)
    config(settings).check("load_vlm", found.config)
    network, processor = found.load()
    processor = attach(network, processor, **{**settings, **given})
    return VLM(network, processor, tokens=tokens, looks=looks, captured=captured, hooks=own_hooks, **placed)
