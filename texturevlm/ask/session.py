"""A session: one image or several under one budget, seen once, asked as often as one likes.

A second look keeps the overview of the first and spends the rest of the budget where the model's own attention pointed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from PIL import Image

from texturevlm.allocate import ALLOCATORS
from texturevlm.allocate.trade import trade
from texturevlm.ask.attention import pointed_at, question_attention
from texturevlm.ask.prepared import LEAST_CHANCE, PreparedImage
from texturevlm.check import check_choice, check_count
from texturevlm.draw import question_picture, stacked
from texturevlm.pipeline import Allocator, choose_tokens
from texturevlm.relevance import Relevance
from texturevlm.types import Allocation

if TYPE_CHECKING:
    from texturevlm.ask.model import VLM

FIRST_LOOK = 0.25  # of the budget is the overview of two looks
LEAST_SHARE = 16  # tokens of an image among several, as far as the budget goes
RELEVANCES = ("auto", "words", "scout", "attention", "none")  # `choose_tokens` has more, which take more arguments
FINEST = 1.001  # pixels a sample: a look that is nowhere coarser has seen it all


@dataclass(frozen=True, eq=False)
class Chosen:
    """What was chosen of one image, and the relevance that it was chosen by."""

    allocation: Allocation
    relevance: Relevance


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
        return self.model.answer(question, textures, allocations, stream=stream, **options)

    def look(
        self,
        question: str = "",
        *,
        looks: int = 1,
        allocator: str | Allocator | None = None,
        relevance: str | None = None,
    ) -> Image.Image:
        """What the model sees when it is asked, as a picture: what is delivered, the footprints, the relevance."""
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
        """Where the tokens go, image by image; arguments as for `VLM.ask`, without asking anything."""
        if not isinstance(question, str):
            raise TypeError(f"ask: question must be text, got {type(question).__name__}")
        allocator = self.model.allocator if allocator is None else allocator
        if isinstance(allocator, str):
            check_choice("ask", "allocator", allocator, ALLOCATORS)
        way = self.model.relevance if relevance is None else relevance
        check_looks(looks, way)
        check_budget(self.model.budget, len(self.images))
        for image in self.images:
            image.on(self.model.device)
        if looks == 1:
            maps = [image.relevance(question, way=way) for image in self.images]
            chances = [image.chance(question, own) for image, own in zip(self.images, maps)]
            return self._spent(self.model.budget, maps, chances, allocator)
        return self._second_look(question, allocator)

    def _second_look(self, question: str, allocator: str | Allocator) -> list[Chosen]:
        model = self.model
        model.check_attached()
        first = max(len(self.images), round(model.budget * FIRST_LOOK))
        maps = [image.relevance("", way="none") for image in self.images]
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
        maps = [image.relevance(question, way="attention", attention=one) for image, one in zip(self.images, pointed)]
        chances = [max(LEAST_CHANCE, float(one.sum())) for one in pointed]
        closer = self._spent(model.budget - used, maps, chances, allocator)
        return [
            Chosen(joined(one.allocation, other.allocation), other.relevance) for one, other in zip(overview, closer)
        ]

    def _spent(
        self, budget: int, maps: Sequence[Relevance], chances: Sequence[float], allocator: str | Allocator
    ) -> list[Chosen]:
        """A budget spent on all images together, by what its tokens are worth in each.

        chances: that the question is about each
        """
        shares, patch = [budget], self.model.adapter.side
        if len(self.images) > 1:
            shares = trade(
                [image.texture for image in self.images],
                maps,
                total=budget,
                floor=[min(image.most_tokens, LEAST_SHARE, budget // len(maps)) for image in self.images],
                ceiling=[image.most_tokens for image in self.images],
                patch=patch,
                allocator=ALLOCATORS[allocator] if isinstance(allocator, str) else allocator,
                weights=chances,
            )
        return [
            Chosen(choose_tokens(image.texture, budget=share, patch=patch, allocator=allocator, relevance=own), own)
            for image, share, own in zip(self.images, shares, maps)
        ]


def check_budget(budget: int, images: int) -> None:
    """Every image gets a token."""
    check_count("ask", f"budget for {images} images" if images > 1 else "budget", budget, images)


def check_looks(looks: int, relevance: str) -> None:
    """Whether so many looks can go by this relevance."""
    if looks not in (1, 2):
        raise ValueError(f"ask: looks must be 1 or 2, got {looks!r}")
    check_choice("ask", "relevance", relevance, RELEVANCES)
    if looks == 2:
        check_choice("ask", "relevance with looks=2", relevance, ("auto", "attention"))
    elif relevance == "attention":
        raise ValueError("ask: relevance 'attention' is the model's own, which takes looks=2, got looks=1")


def joined(one: Allocation, other: Allocation) -> Allocation:
    """The used footprints of both, in slots for as many as both may use."""
    used = int(one.valid[0].sum())
    unused = one.each(itemgetter((slice(None), slice(used, None))))
    first = one.each(itemgetter((slice(None), slice(0, used))))
    return _side_by_side(first, other, unused)


def in_slots(allocation: Allocation, slots: int) -> Allocation:
    """One image's allocation in so many slots: what captures were made for. Unused ones come and go, used ones stay."""
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
    columns = ("centre", "ddx", "ddy", "score", "valid", "source")
    table = {name: torch.cat([getattr(part, name) for part in parts], 1) for name in columns}
    return Allocation(**table, size=parts[0].size, patch=parts[0].patch)
