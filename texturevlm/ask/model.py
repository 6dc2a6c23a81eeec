"""A vision-language model that reads a budget of chosen tokens."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, overload

import torch
from PIL import Image

from texturevlm.allocate import ALLOCATORS
from texturevlm.ask.capturable import not_captured_because
from texturevlm.ask.prepared import PreparedImage
from texturevlm.ask.pretrained import load
from texturevlm.ask.session import RELEVANCES, TOKENS, ImageSession, in_slots
from texturevlm.ask.stream import streamed
from texturevlm.check import check_choice, check_count
from texturevlm.defaults import ALLOCATOR, BUDGET, RELEVANCE
from texturevlm.pipeline import Allocator
from texturevlm.types import Allocation, Texture
from texturevlm.vlm import FixedBudget, adapt
from texturevlm.vlm.adapter import ATTRIBUTE
from texturevlm.vlm.qwen import QwenAdapter


class VLM:
    """A model and its processor at a budget of visual tokens; made by `load_vlm` and `attach`.

    adapter:   of the model
    budget:    tokens that all images of a question get together
    allocator, relevance: how they are chosen unless `ask` says otherwise, as in `choose_tokens`
    tokens:    as in `load_vlm`
    captured:  whether the vision tower and the prefill are captured as graphs (Qwen, one image); by default on a GPU
    reasons:   why the last answer, or a part of it, was not captured although it should have been
    """

    def __init__(
        self,
        adapter: Any,
        *,
        budget: int = BUDGET,
        allocator: str | Allocator = ALLOCATOR,
        relevance: str = RELEVANCE,
        tokens: str = TOKENS[0],
        captured: bool | None = None,
    ) -> None:
        check_options("VLM", budget, allocator, relevance, tokens)
        self.adapter, self.budget, self.tokens = adapter, budget, tokens
        self.allocator, self.relevance, self.captured = allocator, relevance, captured
        self._fixed: FixedBudget | None = None
        self._unfixed: str | None = None  # why the last answer was not captured
        self._on_detach: list[Callable[[], object]] = [adapter.restore]

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return torch.device(self.adapter.model.device)

    @property
    def reasons(self) -> list[str]:
        if self._unfixed:
            return [self._unfixed]
        return [] if self._fixed is None else self._fixed.reasons

    def prepare(self, images: Any) -> ImageSession:
        """Prepare images for any number of questions: mip levels, maps and words are made once.

        images: a path, a PIL image, an array (H, W[, C]), a tensor (C, H, W) or a Texture; or a list of those
        """
        given = list(images) if isinstance(images, (list, tuple)) else [images]
        if not given:
            raise ValueError("prepare: images must be at least one, got none")
        return ImageSession(self, [PreparedImage(one, patch=self.adapter.side, device=self.device) for one in given])

    @overload
    def ask(self, images: Any, question: str, *, stream: Literal[False] = False, **options: Any) -> str: ...
    @overload
    def ask(self, images: Any, question: str, *, stream: Literal[True], **options: Any) -> Iterator[str]: ...
    @overload
    def ask(self, images: Any, question: str, *, stream: bool, **options: Any) -> str | Iterator[str]: ...

    def ask(
        self,
        images: Any,
        question: str,
        *,
        looks: int = 1,
        stream: bool = False,
        allocator: str | Allocator | None = None,
        relevance: str | None = None,
        max_new_tokens: int = 256,
        **options: Any,
    ) -> str | Iterator[str]:
        """Answer a question about images.

        images:    as for `prepare`; several share the budget
        looks:     1, or 2: an overview first, then the rest of the budget where the attention of the model went
        stream:    return an iterator over pieces of the answer, as they are generated
        allocator, relevance: as in `choose_tokens`, without `embedding`
        options:   of the model's `generate`; decoding is greedy unless they ask for sampling
        """
        return self.prepare(images).ask(
            question,
            looks=looks,
            stream=stream,
            allocator=allocator,
            relevance=relevance,
            max_new_tokens=max_new_tokens,
            **options,
        )

    def look(self, images: Any, question: str = "", **options: Any) -> Image.Image:
        """Draw what the model sees when it is asked; options `looks`, `allocator`, `relevance`."""
        return self.prepare(images).look(question, **options)

    def answer(
        self,
        question: str,
        textures: Sequence[Texture],
        allocations: Sequence[Allocation],
        *,
        stream: bool = False,
        **options: Any,
    ) -> str | Iterator[str]:
        """Answer a question about chosen tokens; options of `generate`."""
        self.check_attached()
        if "do_sample" not in options:  # a checkpoint's own temperature would be warned about
            options |= {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
        fixed = self._fixed_budget(len(textures), options)
        if fixed is not None:
            chosen = in_slots(allocations[0], fixed.budget)
            generate = partial(fixed.generate, question, textures[0], chosen, **options)
        else:
            generate = partial(self.adapter.generate, question, list(textures), list(allocations), **options)
        here = torch.cuda.current_stream(self.device) if self.device.type == "cuda" else None

        def work(**streaming: Any) -> Any:
            # Threads have a gradient mode, a device and a stream of their own.
            with self.adapter.lock, torch.no_grad(), torch.cuda.stream(here):
                return generate(**streaming)

        if stream:
            return streamed(work, self.adapter.tokenizer)
        return str(self.adapter.decode(work())[0]).strip()

    def check_attached(self) -> None:
        """Raise if the model was detached."""
        if not hasattr(self.adapter.model, ATTRIBUTE):
            raise ValueError("ask: model was detached and reads whole images again; attach it once more")

    def on_detach(self, undo: Callable[[], object]) -> None:
        """Register something that `detach` undoes."""
        self._on_detach.append(undo)

    def detach(self) -> Any:
        """Restore the model and the processor; return the model."""
        while self._on_detach:
            self._on_detach.pop()()
        return self.adapter.model

    def _fixed_budget(self, images: int, options: dict[str, Any]) -> FixedBudget | None:
        """The captured path, if it is wanted and possible for an answer about so many images."""
        self._unfixed = None
        if not (self.device.type == "cuda" if self.captured is None else self.captured):
            return None
        if not isinstance(self.adapter, QwenAdapter):
            self._unfixed = f"only Qwen models are captured, and this is a {type(self.adapter).__name__}"
        elif images > 1:
            self._unfixed = f"one image is captured, and these were {images}"
        elif self.tokens == "weighted":
            self._unfixed = "weighted tokens are not captured"
        elif reason := not_captured_because(options, getattr(self.adapter.model, "generation_config", None)):
            self._unfixed = reason
        elif self._fixed is None or self._fixed.stale:
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
) -> VLM:
    """Load a vision-language model, from a hub id or a folder.

    budget:    visual tokens that all images of a question share
    device:    a GPU if there is one
    dtype:     the checkpoint's own if None
    allocator, relevance: how the tokens are chosen, as in `choose_tokens`
    tokens:    chosen; or weighted: the model's own full grid, each token multiplied by its relevance (1 for the most
               relevant one), whatever the budget
    captured:  whether the vision tower and the prefill are captured as graphs (Qwen, one image), which makes the first
               question slower; by default on a GPU
    """
    check_options("load_vlm", budget, allocator, relevance, tokens)
    network, processor = load(model, device=device, dtype=dtype)
    adapter = adapt(network, processor)
    return VLM(adapter, budget=budget, allocator=allocator, relevance=relevance, tokens=tokens, captured=captured)


def check_options(
    function: str, budget: int, allocator: str | Allocator, relevance: str, tokens: str = TOKENS[0]
) -> None:
    """Check options before a model is loaded or changed."""
    check_count(function, "budget", budget, 1)
    if isinstance(allocator, str):
        check_choice(function, "allocator", allocator, ALLOCATORS)
    check_choice(function, "relevance", relevance, RELEVANCES)
    check_choice(function, "tokens", tokens, TOKENS)
