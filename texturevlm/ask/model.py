"""A vision-language model that reads a budget of chosen tokens."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from PIL import Image

from texturevlm.ask.answer import Answer, FirstToken, Stopwatch, length_of, logprobs_of
from texturevlm.ask.attachment import attach, attached_to, hooked, network_of
from texturevlm.ask.capturable import not_captured_because
from texturevlm.ask.captured_choice import CapturedChoice
from texturevlm.ask.choose import Chosen, in_slots
from texturevlm.ask.evaluating import evaluating
from texturevlm.ask.messages import conversation_with, images_of, question_in
from texturevlm.ask.options import RELEVANCES, TOKENS, check_belongs, check_context, check_options
from texturevlm.ask.prepared import PreparedImage
from texturevlm.ask.pretrained import load
from texturevlm.ask.session import ImageSession
from texturevlm.ask.stream import streamed
from texturevlm.check import check_choice, check_count
from texturevlm.defaults import ALLOCATOR, BUDGET, RELEVANCE
from texturevlm.pipeline import Allocator
from texturevlm.vlm import FixedBudget, adapter_for
from texturevlm.vlm.adapter import ATTRIBUTE
from texturevlm.vlm.prompts import is_conversation

BATCH = 8  # questions that are answered together
# A checkpoint's own settings of sampling would be warned of.
GREEDY = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}


class VLM:
    """A model and its processor at a budget of visual tokens; `load_vlm` loads one.

    model:     of transformers
    processor: a TextureProcessor, whose budget, allocator and relevance are used; or the model's own processor
    tokens:    as in `load_vlm`
    captured:  whether choosing, the vision tower and the prefill are captured as graphs (Qwen, one image); by default
               on a GPU
    options:   budget, allocator and relevance as in `attach`
    reasons:   why the last answer, or a part of it, was not captured although it should have been
    """

    def __init__(
        self, model: Any, processor: Any, *, tokens: str = TOKENS[0], captured: bool | None = None, **options: Any
    ) -> None:
        from texturevlm.ask.processor import TextureProcessor

        check_choice("VLM", "tokens", tokens, TOKENS)
        self.model = network_of("VLM", model)
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
        self.processor, self.tokens, self.captured = processor, tokens, captured
        self.adapter = hooked(self.model, processor).beside(processor.processor)
        self._choice = CapturedChoice()
        self._fixed: FixedBudget | None = None
        self._unfixed: str | None = None  # why the last answer was not captured

    @property
    def budget(self) -> int:
        """Tokens that all images of a question get together."""
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
    def device(self) -> torch.device:
        """Where the model takes its inputs."""
        return self.adapter.device

    @property
    def _wants_capture(self) -> bool:
        return self.device.type == "cuda" if self.captured is None else self.captured

    @property
    def reasons(self) -> list[str]:
        if self._unfixed:
            return [self._unfixed]
        return [] if self._fixed is None else self._fixed.reasons

    def __repr__(self) -> str:
        allocator = getattr(self.allocator, "__name__", self.allocator)
        millions = sum(one.numel() for one in self.model.parameters()) / 1e6
        return (
            f"VLM({type(self.model).__name__}, {millions:.3g} million parameters, {self.model.dtype} on {self.device}, "
            f"budget={self.budget}, allocator={allocator!r}, relevance={self.relevance!r}, tokens={self.tokens!r})"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_fixed": None, "_choice": None}  # graphs stay on their device

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._choice = CapturedChoice()
        self.adapter.lock = hooked(self.model, self.processor).lock  # all that ask one model wait for one another

    def prepare(self, images: Any) -> ImageSession:
        """Prepare images for any number of questions: mip levels, maps and words are made once.

        images: a path, a URL, bytes, a PIL image, an array (H, W[, C]), a tensor (C, H, W) or a Texture; or a list
        """
        given = list(images) if isinstance(images, (list, tuple)) else [images]
        if not given:
            raise ValueError("prepare: images must be at least one, got none")
        return ImageSession(self, [PreparedImage(one, patch=self.adapter.side, device=self.device) for one in given])

    def ask(
        self,
        images: Any,
        question: Any,
        *,
        looks: int = 1,
        stream: bool = False,
        return_details: bool = False,
        allocator: str | Allocator | None = None,
        relevance: str | None = None,
        max_new_tokens: int = 256,
        **options: Any,
    ) -> Any:
        """Answer a question about images: a text. A list of questions gets a list of answers.

        images:    as for `prepare`; several share the budget. With a list of questions: all are about these images,
                   unless there is one list of images per question. None if the messages hold the images
        question:  a text, a conversation (messages with system prompt and history), or a list of those
        looks:     1, or 2: an overview first, then the rest of the budget where the attention of the model went
        stream:    return an iterator over pieces of the answer, as they are generated; one question only
        return_details: return an Answer: the text, the log-probability of its tokens, the allocation, the times
        allocator, relevance: as in `choose_tokens`, without `embedding`
        options:   of the model's `generate`; decoding is greedy unless they ask for sampling
        """
        self.check_attached()
        check_count("ask", "max_new_tokens", max_new_tokens, 1)
        many = isinstance(question, (list, tuple)) and not is_conversation(question)
        prompts = list(question) if many else [question]
        if not prompts:
            raise ValueError("ask: question must be a text, messages, or a list of those, got an empty list")
        questions = [question_in("ask", prompt) for prompt in prompts]
        options = {"max_new_tokens": max_new_tokens, **({} if "do_sample" in options else GREEDY), **options}
        if options.get("stop_strings"):
            options.setdefault("tokenizer", self.adapter.tokenizer)  # `generate` needs it to find them
        several = [name for name in ("num_beams", "num_return_sequences") if (options.get(name) or 1) > 1]
        if stream and (many or return_details or several):
            also = "a list of questions" if many else "return_details" if return_details else several[0]
            raise ValueError(f"ask: stream must be False with {also}, got True")
        watch = Stopwatch(self.device, wait=return_details)
        sessions = self._sessions(images, prompts)
        conversations = [
            conversation_with(prompt, len(session.images), self.adapter.marks, apart=images is not None)
            for prompt, session in zip(prompts, sessions)
        ]
        watch.stage("open")
        chosen = [
            session.choose(one, looks=looks, allocator=allocator, relevance=relevance)
            for session, one in zip(sessions, questions)
        ]
        watch.stage("choose")
        items = list(zip(conversations, sessions, chosen))
        if stream:
            criteria = options.pop("stopping_criteria", None)
            return streamed(self._work(items, options), self.adapter.tokenizer, criteria)
        answers: list[Any] = []
        for first in range(0, len(items), BATCH):
            batch = items[first : first + BATCH]
            answers += self._details(batch, options, watch) if return_details else self._texts(batch, options)
        return answers if many else answers[0]

    def look(self, images: Any, question: str = "", **options: Any) -> Image.Image:
        """Draw what the model sees when it is asked; options `looks`, `allocator`, `relevance`."""
        return self.prepare(images).look(question, **options)

    def choose_captured(self, image: PreparedImage, question: str, **options: Any) -> Chosen | None:
        """The choice by replaying a graph; None if it is not captured. options: as for `choose`"""
        return self._choice(image, question, **options) if self._wants_capture else None

    def check_attached(self) -> None:
        """Raise if the model was detached."""
        if not hasattr(self.model, ATTRIBUTE):
            raise ValueError("ask: model was detached and reads whole images again; attach it once more")

    def detach(self) -> Any:
        """Restore the model and return it."""
        self.processor.detach()
        return self.model

    def _sessions(self, images: Any, prompts: Sequence[Any]) -> list[ImageSession]:
        """The images of each prompt."""
        if isinstance(images, ImageSession):
            return [images] * len(prompts)
        if images is None:
            held = [images_of(prompt) if is_conversation(prompt) else [] for prompt in prompts]
            if any(not own or any(one is None for one in own) for own in held):
                raise ValueError("ask: images must be given, or be inside the messages, got none")
            return [self.prepare(own) for own in held]
        nested = isinstance(images, (list, tuple)) and any(isinstance(one, (list, tuple)) for one in images)
        if nested:
            if len(images) != len(prompts):
                raise ValueError(f"ask: images must be one list per question ({len(prompts)}), got {len(images)}")
            return [self.prepare(own) for own in images]
        return [self.prepare(images)] * len(prompts)

    def _work(self, items: Sequence[Any], options: dict[str, Any]) -> Callable[..., Any]:
        """Generate answers to prompts, in any thread."""
        generate = self._generate(items, options)
        here = torch.cuda.current_stream(self.device) if self.device.type == "cuda" else None

        def work(**streaming: Any) -> Any:
            # Threads have a gradient mode, a device and a stream of their own.
            with self.adapter.lock, torch.no_grad(), torch.cuda.stream(here), evaluating(self.model):
                return generate(**options, **streaming)

        return work

    def _generate(self, items: Sequence[Any], options: dict[str, Any]) -> Callable[..., Any]:
        prompts = [prompt for prompt, _, _ in items]
        textures = [[image.texture for image in session.images] for _, session, _ in items]
        allocations = [[one.allocation for one in own] for _, _, own in items]
        fixed = self._fixed_budget(sum(len(own) for own in textures), options)
        if fixed is not None:
            return partial(fixed.generate, prompts[0], textures[0][0], in_slots(allocations[0][0], fixed.budget))
        more: dict[str, Any] = {}
        if self.tokens == "weighted":
            more["weights"] = [[one.weights for one in own] for _, _, own in items]
        return partial(self.adapter.generate, prompts, textures, allocations, **more)

    def _texts(self, items: Sequence[Any], options: dict[str, Any]) -> list[Any]:
        found = self._work(items, options)()
        texts = [text.strip() for text in self.adapter.decode(getattr(found, "sequences", found))]
        return _per_question(texts, len(items))

    def _details(self, items: Sequence[Any], options: dict[str, Any], opened: Stopwatch) -> list[Any]:
        watch = Stopwatch(self.device, wait=True)
        criteria = [*(options.get("stopping_criteria") or ()), FirstToken(watch)]
        wanted = {"output_logits": True, "return_dict_in_generate": True, "stopping_criteria": criteria}
        found = self._work(items, {**options, **wanted})()
        watch.stage("decode")
        seconds = {**opened.seconds, **watch.seconds}
        stopped = options.get("stop_strings") or options.get("stopping_criteria")
        ends, pad = self._ends(options), self.adapter.tokenizer.pad_token_id if stopped else None
        each = len(found.sequences) // len(items)
        answers = []
        for index, (text, ids, logprobs) in enumerate(
            zip(self.adapter.decode(found.sequences), found.sequences.tolist(), logprobs_of(found).tolist())
        ):
            length = length_of(ids, ends, pad)
            tokens = self.adapter.tokenizer.convert_ids_to_tokens(ids[:length])
            answers.append(Answer(text.strip(), tokens, logprobs[:length], items[index // each][2], seconds))
        return _per_question(answers, len(items))

    def _ends(self, options: dict[str, Any]) -> list[int]:
        """The ids that end an answer."""
        found = options.get("eos_token_id")
        found = getattr(self.model.generation_config, "eos_token_id", None) if found is None else found
        return [] if found is None else [found] if isinstance(found, int) else list(found)

    def _fixed_budget(self, images: int, options: dict[str, Any]) -> FixedBudget | None:
        """The captured path, if it is wanted and possible for an answer about so many images."""
        self._unfixed = None
        if not self._wants_capture:
            return None
        if not self.adapter.captured:
            self._unfixed = f"models of {type(self.adapter).__name__} are not captured"
        elif images > 1:
            self._unfixed = f"one image is captured, and these were {images}"
        elif self.tokens == "weighted":
            self._unfixed = "weighted tokens are not captured"
        elif reason := not_captured_because(options, getattr(self.model, "generation_config", None)):
            self._unfixed = reason
        elif self._fixed is None or self._fixed.stale or self._fixed.budget != self.budget:
            self._fixed = None  # its memory is needed
            try:
                self._fixed = FixedBudget(self.adapter, self.budget, masked=True)
            except ValueError as error:
                self._unfixed = str(error)
        return None if self._unfixed else self._fixed


def load_vlm(
    model: str | os.PathLike[str],
    *,
    budget: int = BUDGET,
    device: torch.device | str | None = None,
    dtype: torch.dtype | str | None = None,
    allocator: str | Allocator = ALLOCATOR,
    relevance: str = RELEVANCE,
    tokens: str = TOKENS[0],
    captured: bool | None = None,
    **options: Any,
) -> VLM:
    """Load a vision-language model, from a hub id or a folder.

    budget:    visual tokens that all images of a question share
    device:    a GPU if there is one
    dtype:     the checkpoint's own if None or "auto"
    allocator, relevance: how the tokens are chosen, as in `choose_tokens`
    tokens:    chosen; or weighted: the model's own full grid, each token multiplied by its relevance (1 for the most
               relevant one), whatever the budget
    captured:  whether the vision tower and the prefill are captured as graphs (Qwen, one image), which makes the first
               question slower; by default on a GPU
    options:   of transformers' `from_pretrained`: device_map, attn_implementation, quantization_config, revision, …;
               code from the hub is not run unless trust_remote_code says so
    """
    check_options("load_vlm", check_count("load_vlm", "budget", budget, 1), allocator, relevance, tokens)
    check_choice("load_vlm", "relevance", relevance, RELEVANCES)  # one: several are for training
    check = partial(check_context, "load_vlm", budget)
    network, processor = load(model, device=device, dtype=dtype, check=check, **options)
    chosen = attach(network, processor, budget=budget, allocator=allocator, relevance=relevance)
    return VLM(network, chosen, tokens=tokens, captured=captured)


def _per_question(answers: list[Any], questions: int) -> list[Any]:
    """One answer per question, or one list where `generate` returns several sequences."""
    each = len(answers) // questions
    return answers if each == 1 else [answers[at : at + each] for at in range(0, len(answers), each)]
