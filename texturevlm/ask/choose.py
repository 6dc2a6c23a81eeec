"""Choose the tokens of one prompt: its images share one budget, each by what tokens are worth in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from texturevlm.allocate.share import share_budget
from texturevlm.ask.prepared import PreparedImage
from texturevlm.check import check_count
from texturevlm.pipeline import Allocator, choose_tokens
from texturevlm.relevance import Relevance
from texturevlm.types import COLUMNS, Allocation

MIN_SHARE = 16  # tokens of an image among several, as far as the budget goes


@dataclass(frozen=True, eq=False)
class Chosen:
    """The tokens of one image, and the relevance that they were chosen by.

    weights: (1, K), of the tokens, if not all 1
    shares:  (1, K, n, n), of the children of merged tokens, if there are any
    """

    allocation: Allocation
    relevance: Relevance
    weights: Tensor | None = None
    shares: Tensor | None = None


def choose(
    images: Sequence[PreparedImage], question: str, *, budget: int, allocator: str | Allocator, relevance: str
) -> list[Chosen]:
    """The tokens of each image for a question."""
    check_budget(budget, len(images))
    each = budget / len(images)
    maps = [image.relevance(question, budget=each, relevance=relevance) for image in images]
    chances = [1.0]  # one image shares with none, and to ask for its chance would wait for the GPU
    if len(images) > 1:
        chances = [image.chance(question, own) for image, own in zip(images, maps)]
    return spend(images, maps, chances, budget, allocator)


def spend(
    images: Sequence[PreparedImage],
    maps: Sequence[Relevance],
    chances: Sequence[float],
    budget: int,
    allocator: str | Allocator,
) -> list[Chosen]:
    """Spend a budget on all images together, by the expected value of tokens in each.

    chances: the chance that the question is about each image
    """
    given: Any = {"patch": images[0].patch, "allocator": allocator, "budget": budget}
    if len(images) == 1:
        return [Chosen(choose_tokens(images[0].texture, relevance=maps[0], **given), maps[0])]
    found = share_budget(
        [image.texture for image in images],
        maps,
        floor=[min(image.max_tokens, MIN_SHARE, budget // len(maps)) for image in images],
        ceiling=[image.max_tokens for image in images],
        weights=chances,
        **given,
    )
    return [Chosen(*pair) for pair in zip(found, maps)]


def check_budget(budget: int, images: int) -> None:
    """At least one token per image."""
    check_count("ask", f"budget for {images} images" if images > 1 else "budget", budget, images)


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
