"""A vision-language model that reads a budget of chosen tokens."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from texturevlm.ask.attachment import attach, hooked, unwrapped
from texturevlm.ask.capturable import not_captured_because
from texturevlm.ask.choose import Chosen, in_slots
from texturevlm.ask.messages import (
    conversation_about,
    images_of,
    is_conversation,
    question_of,
    without_images,
)
from texturevlm.ask.options import TOKENS, check_options
from texturevlm.ask.prepared import PreparedImage
from texturevlm.ask.pretrained import load
from texturevlm.ask.session import ImageSession
from texturevlm.ask.stream import streamed
from texturevlm.check import check_choice, check_count
from texturevlm.defaults import ALLOCATOR, BUDGET, RELEVANCE
from texturevlm.pipeline import Allocator
from texturevlm.vlm import FixedBudget
from texturevlm.vlm.adapter import ATTRIBUTE

BATCH = 8  # questions that are answered together
GREEDY = {
    "do_sample": False,
    "temperature": None,
    "top_p": None,
    "top_k": None,
}  # a checkpoint's own would be warned of


@dataclass(frozen=True, eq=False)
class Answer:
    """What `ask` returns with `return_details`.

    text:     the answer
    tokens:   its tokens as text
    logprobs: log-probability of each of them
    chosen:   per image, the tokens that the model saw and the relevance that they were chosen by
    seconds:  wall clock of each stage
    """

    text: str
    tokens: list[str]
    logprobs: list[float]
    chosen: list[Chosen]
    seconds: dict[str, float]

    @property
    def logprob(self) -> float:
        """Log-probability of the whole answer."""
        return sum(self.logprobs)

    def __str__(self) -> str:
        return self.text


class VLM:
    """A model and its processor at a budget of visual tokens; `load_vlm` loads one.

    model:     of transformers
    processor: a TextureProcessor, whose budget, allocator and relevance are used; or the model's own processor
    tokens:    as in `load_vlm`
    captured:  whether the vision tower and the prefill are captured as graphs (Qwen, one image); by default on a GPU
    reasons:   why the last answer, or a part of it, was not captured although it should have been
    """

    def __init__(
        self, model: Any, processor: Any, *, tokens: str = TOKENS[0], captured: bool | None = None, **options: Any
    ) -> None:
        from texturevlm.ask.processor import TextureProcessor

        check_choice("VLM", "tokens", tokens, TOKENS)
        self.model = unwrapped(model)
        if options or not isinstance(processor, TextureProcessor):
            processor = attach(self.model, processor, **options)
        if not isinstance(processor.budget, int) or not isinstance(processor.relevance, str):
            raise ValueError(f"VLM: processor must have one budget and one relevance, got {processor!r}")
        _check_context(self.model.config, processor.budget)
        self.processor, self.tokens, self.captured = processor, tokens, captured
        self.adapter = hooked(self.model, processor).beside(processor.processor)
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
        """Where the model is."""
        return torch.device(self.model.device)

    @property
    def reasons(self) -> list[str]:
        if self._unfixed:
            return [self._unfixed]
        return [] if self._fixed is None else self._fixed.reasons

    def __repr__(self) -> str:
        millions = sum(one.numel() for one in self.model.parameters()) / 1e6
        return (
            f"VLM({type(self.model).__name__}, {millions:.3g} million parameters, {self.model.dtype} on {self.device}, "
            f"budget={self.budget}, allocator={self.allocator!r}, relevance={self.relevance!r}, tokens={self.tokens!r})"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_fixed": None}  # graphs stay on their device

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
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
        options = {"max_new_tokens": max_new_tokens, **({} if "do_sample" in options else GREEDY), **options}
        if stream and (many or return_details):
            raise ValueError("ask: stream must be False for a list of questions and with return_details, got True")
        begun = perf_counter()
        sessions = self._sessions(images, prompts)
        opened = perf_counter()
        chosen = [
            session.choose(_asked(prompt), looks=looks, allocator=allocator, relevance=relevance)
            for session, prompt in zip(sessions, prompts)
        ]
        seconds = {"open": opened - begun, "choose": perf_counter() - opened}
        items = [
            (self._conversation(prompt, len(session.images)), session, own)
            for prompt, session, own in zip(prompts, sessions, chosen)
        ]
        if stream:
            criteria = options.pop("stopping_criteria", None)
            return streamed(self._work(items, options), self.adapter.tokenizer, criteria)
        answers: list[Any] = []
        for first in range(0, len(items), BATCH):
            answers += self._answers(items[first : first + BATCH], options, seconds, return_details)
        return answers if many else answers[0]

    def look(self, images: Any, question: str = "", **options: Any) -> Image.Image:
        """Draw what the model sees when it is asked; options `looks`, `allocator`, `relevance`."""
        return self.prepare(images).look(question, **options)

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
            if any(not own or None in own for own in held):
                raise ValueError("ask: images must be given, or be inside the messages, got none")
            return [self.prepare(own) for own in held]
        nested = isinstance(images, (list, tuple)) and any(isinstance(one, (list, tuple)) for one in images)
        if nested:
            if len(images) != len(prompts):
                raise ValueError(f"ask: images must be one list per question ({len(prompts)}), got {len(images)}")
            return [self.prepare(own) for own in images]
        return [self.prepare(images)] * len(prompts)

    def _conversation(self, prompt: Any, images: int) -> list[dict[str, Any]]:
        if not is_conversation(prompt):
            return conversation_about(images, prompt, self.adapter.marks)
        blocks = len(images_of(prompt))
        if blocks == 0:
            # the images belong to the first turn of the user
            turn = next((at for at, one in enumerate(prompt) if one.get("role") == "user"), None)
            if turn is None:
                raise ValueError("ask: question must have a message of the user, got none")
            (asked,) = conversation_about(images, question_of([prompt[turn]]), self.adapter.marks)
            return [*without_images(prompt[:turn]), asked, *without_images(prompt[turn + 1 :])]
        if blocks != images:
            raise ValueError(f"ask: messages must have one image block per image ({images}), got {blocks}")
        return without_images(prompt)

    def _work(self, items: Sequence[Any], options: dict[str, Any]) -> Callable[..., Any]:
        """Generate answers to prompts, in any thread."""
        generate = self._generate(items, options)
        here = torch.cuda.current_stream(self.device) if self.device.type == "cuda" else None

        def work(**streaming: Any) -> Any:
            # Threads have a gradient mode, a device and a stream of their own.
            with self.adapter.lock, torch.no_grad(), torch.cuda.stream(here):
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

    def _answers(
        self, items: Sequence[Any], options: dict[str, Any], seconds: dict[str, float], details: bool
    ) -> list[Any]:
        if details:
            if options.get("num_beams", 1) > 1 or options.get("num_return_sequences", 1) > 1:
                raise ValueError("ask: return_details is for one answer per question, without beams")
            options = {**options, "output_logits": True, "return_dict_in_generate": True}
        begun = perf_counter()
        found = self._work(items, options)()
        ids = found if isinstance(found, Tensor) else found.sequences
        texts = [text.strip() for text in self.adapter.decode(ids)]
        if not details:
            each = len(texts) // len(items)
            return texts if each == 1 else [texts[at : at + each] for at in range(0, len(texts), each)]
        seconds = {**seconds, "generate": perf_counter() - begun}
        logprobs = torch.stack(found.logits, 1).float().log_softmax(-1).gather(2, ids[..., None])[..., 0]
        pad = self.adapter.tokenizer.pad_token_id
        answers = []
        for text, own, scores, (_, _, chosen) in zip(texts, ids.tolist(), logprobs.tolist(), items):
            length = len(own)
            while length > 1 and own[length - 1] == own[length - 2] == pad:
                length -= 1  # of an answer that ended before others of its batch
            words = self.adapter.tokenizer.convert_ids_to_tokens(own[:length])
            answers.append(Answer(text, words, scores[:length], chosen, seconds))
        return answers

    def _fixed_budget(self, images: int, options: dict[str, Any]) -> FixedBudget | None:
        """The captured path, if it is wanted and possible for an answer about so many images."""
        self._unfixed = None
        if not (self.device.type == "cuda" if self.captured is None else self.captured):
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
    check_options("load_vlm", budget, allocator, relevance, tokens)
    network, processor = load(model, device=device, dtype=dtype, **options)
    chosen = attach(network, processor, budget=budget, allocator=allocator, relevance=relevance)
    return VLM(network, chosen, tokens=tokens, captured=captured)


def _asked(prompt: Any) -> str:
    """The question in a prompt."""
    if is_conversation(prompt):
        return question_of(prompt)
    if not isinstance(prompt, str):
        raise TypeError(f"ask: question must be text or messages, got {type(prompt).__name__}")
    return prompt


def _check_context(config: Any, budget: int) -> None:
    longest = getattr(config.get_text_config(), "max_position_embeddings", None)
    if longest is not None and budget >= longest:
        raise ValueError(f"VLM: budget must leave room in the model's context of {longest} tokens, got {budget}")
