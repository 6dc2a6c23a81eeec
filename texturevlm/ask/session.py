"""A session: one or several images under one budget, prepared once for any number of questions.

A second look keeps the overview of the first and spends the rest of the budget where the attention of the model went.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from PIL import Image
from torch import Tensor

from texturevlm.allocate import ALLOCATORS
from texturevlm.allocate.share import split_budget
from texturevlm.ask.attention import pointed_at, question_attention
from texturevlm.ask.prepared import PreparedImage
from texturevlm.check import check_choice, check_count
from texturevlm.draw import question_picture, stacked
from texturevlm.pipeline import MIN_CHANCE, Allocator, choose_tokens
from texturevlm.relevance import AttentionScorer, Relevance
from texturevlm.types import COLUMNS, Allocation, Texture
from texturevlm.vlm import grid_weights, own_grid

if TYPE_CHECKING:
    from texturevlm.ask.model import VLM

FIRST_LOOK = 0.25  # share of the budget for the overview of two looks
MIN_SHARE = 16  # tokens of an image among several, as far as the budget goes
RELEVANCES = ("auto", "words", "scout", "attention", "none")  # `choose_tokens` has more, which take more arguments
FINEST = 1.001  # pixels per sample: an overview that is nowhere coarser needs no second look
TOKENS = ("chosen", "weighted")


@dataclass(frozen=True, eq=False)
class Chosen:
    """The tokens of one image, the relevance that they were chosen by, and their weights (1, K) if not all 1."""

    allocation: Allocation
    relevance: Relevance
    weights: Tensor | None = None


class ImageSession:
    """Images prepared for a model; made by `VLM.prepare`."""

    def __init__(self, model: VLM, images: Sequence[PreparedImage]) -> None:
        self.model, self.images = model, list(images)

    @overload
    def ask(self, question: str, *, stream: Literal[False] = False, **options: Any) -> str: ...
    @overload
    def ask(self, question: str, *, stream: Literal[True], **options: Any) -> Iterator[str]: ...
    @overload
    def ask(self, question: str, *, stream: bool, **options: Any) -> str | Iterator[str]: ...

    def ask(
        self,
        question: str,
        *,
        looks: int = 1,
        stream: bool = False,
        allocator: str | Allocator | None = None,
        relevance: str | None = None,
        max_new_tokens: int = 256,
        **options: Any,
    ) -> str | Iterator[str]:
        """The answer; see `VLM.ask`."""
        self.model.check_attached()
        check_count("ask", "max_new_tokens", max_new_tokens, 1)
        chosen = self.choose(question, looks=looks, allocator=allocator, relevance=relevance)
        textures, allocations = [image.texture for image in self.images], [one.allocation for one in chosen]
        options = {"max_new_tokens": max_new_tokens, **options}
        if self.model.tokens == "weighted":
            options["weights"] = [one.weights for one in chosen]
        return self.model.answer(question, textures, allocations, stream=stream, **options)

    def look(
        self,
        question: str = "",
        *,
        looks: int = 1,
        allocator: str | Allocator | None = None,
        relevance: str | None = None,
    ) -> Image.Image:
        """Draw what the model sees when it is asked: what the tokens show, the footprints, the relevance."""
        chosen = self.choose(question, looks=looks, allocator=allocator, relevance=relevance)
        pictures = [
            question_picture(image.texture, one.allocation, one.relevance, question)
            for image, one in zip(self.images, chosen)
        ]
        return stacked(pictures)

    def choose(
        self,
        question: str = "",
        *,
        looks: int = 1,
        allocator: str | Allocator | None = None,
        relevance: str | None = None,
    ) -> list[Chosen]:
        """Choose the tokens of each image, without asking the model for an answer; arguments as for `VLM.ask`."""
        if not isinstance(question, str):
            raise TypeError(f"ask: question must be text, got {type(question).__name__}")
        allocator = self.model.allocator if allocator is None else allocator
        if isinstance(allocator, str):
            check_choice("ask", "allocator", allocator, ALLOCATORS)
        scorer = self.model.relevance if relevance is None else relevance
        check_looks(looks, scorer, self.model.tokens)
        check_budget(self.model.budget, len(self.images))
        for image in self.images:
            image.on(self.model.device)
        if looks == 1:
            maps = [image.relevance(question, relevance=scorer) for image in self.images]
            if self.model.tokens == "weighted":
                return [self._weighted(image.texture, own) for image, own in zip(self.images, maps)]
            chances = [image.chance(question, own) for image, own in zip(self.images, maps)]
            return self._spent(self.model.budget, maps, chances, allocator)
        return self._second_look(question, allocator)

    def _weighted(self, texture: Texture, relevance: Relevance) -> Chosen:
        """The model's own grid; the most relevant cell has the weight 1."""
        weights = grid_weights(self.model.adapter, texture, relevance.mass)
        weights = weights / weights.amax(1, keepdim=True).clamp(min=1e-30)
        return Chosen(own_grid(self.model.adapter, texture), relevance, weights)

    def _second_look(self, question: str, allocator: str | Allocator) -> list[Chosen]:
        model = self.model
        model.check_attached()
        first = max(len(self.images), round(model.budget * FIRST_LOOK))
        maps = [image.relevance("", relevance="none") for image in self.images]
        overview = self._spent(first, maps, [1.0] * len(maps), "fit")
        used = sum(int(one.allocation.valid.sum()) for one in overview)
        coarsest = max(float(2 ** one.allocation.level[one.allocation.valid].max()) for one in overview)
        if coarsest <= FINEST or model.budget - used < len(self.images):
            return overview
        allocations = [one.allocation for one in overview]
        textures = [image.texture for image in self.images]
        with model.adapter.lock:
            attention = question_attention(model.adapter, question, textures, allocations)
        pointed = pointed_at(attention, allocations)
        maps = [image.relevance(question, relevance=AttentionScorer(one)) for image, one in zip(self.images, pointed)]
        chances = [max(MIN_CHANCE, float(one.sum())) for one in pointed]
        closer = self._spent(model.budget - used, maps, chances, allocator)
        return [
            Chosen(joined(one.allocation, other.allocation), other.relevance) for one, other in zip(overview, closer)
        ]

    def _spent(
        self, budget: int, maps: Sequence[Relevance], chances: Sequence[float], allocator: str | Allocator
    ) -> list[Chosen]:
        """Spend a budget on all images together, by the expected value of tokens in each.

        chances: the chance that the question is about each image
        """
        shares, patch = [budget], self.model.adapter.side
        if len(self.images) > 1:
            shares = split_budget(
                [image.texture for image in self.images],
                maps,
                budget=budget,
                floor=[min(image.max_tokens, MIN_SHARE, budget // len(maps)) for image in self.images],
                ceiling=[image.max_tokens for image in self.images],
                patch=patch,
                allocator=allocator,
                weights=chances,
            )
        return [
            Chosen(choose_tokens(image.texture, budget=share, patch=patch, allocator=allocator, relevance=own), own)
            for image, share, own in zip(self.images, shares, maps)
        ]


def check_budget(budget: int, images: int) -> None:
    """At least one token per image."""
    check_count("ask", f"budget for {images} images" if images > 1 else "budget", budget, images)


def check_looks(looks: int, relevance: str, tokens: str = TOKENS[0]) -> None:
    """Whether this relevance and these tokens allow so many looks."""
    if looks not in (1, 2):
        raise ValueError(f"ask: looks must be 1 or 2, got {looks!r}")
    check_choice("ask", "relevance", relevance, RELEVANCES)
    if looks == 2:
        check_choice("ask", "tokens with looks=2", tokens, TOKENS[:1])
        check_choice("ask", "relevance with looks=2", relevance, ("auto", "attention"))
    elif relevance == "attention":
        raise ValueError("ask: relevance 'attention' is the model's own, which takes looks=2, got looks=1")


def joined(one: Allocation, other: Allocation) -> Allocation:
    """The used footprints of both; the number of slots is the sum of both."""
    used = int(one.valid[0].sum())
    unused = one.each(itemgetter((slice(None), slice(used, None))))
    first = one.each(itemgetter((slice(None), slice(0, used))))
    return _side_by_side(first, other, unused)


def in_slots(allocation: Allocation, slots: int) -> Allocation:
    """Give an allocation of one image another number of slots: unused slots are added or dropped."""
    missing = slots - allocation.budget
    if missing < 0:
        used = int(allocation.valid[0].sum())
        if used > slots:
            raise ValueError(f"ask: allocation must use at most {slots} tokens, got {used}")
        return allocation.each(itemgetter((slice(None), slice(0, slots))))
    if missing == 0:
        return allocation
    empty = allocation.each(lambda column: torch.zeros_like(column[:, :1]).expand(-1, missing, *column.shape[2:]))
    return _side_by_side(allocation, empty)


def _side_by_side(*parts: Allocation) -> Allocation:
    table = {name: torch.cat([getattr(part, name) for part in parts], 1) for name in COLUMNS}
    return Allocation(**table, size=parts[0].size, patch=parts[0].patch)
