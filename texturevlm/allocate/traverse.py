"""One budget over many items of which few are worth a closer look: pages of a document, images of a batch, frames.

An item is known coarsely first. Its worth, the chance that the question is about it, bounds what its tokens can be
worth, because the mass of a relevance sums to 1 and legibility is at most 1. The traversal opens items best first.
Opening one gives its texture and relevance, and the search of `share.py` says what tokens are worth there. It ends when
no closed item can be worth more per token than the cheapest token that was handed out, or when enough are open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from texturevlm.allocate.share import Point, envelope, hand_out, named_allocator, slope, value_curve
from texturevlm.check import check_count
from texturevlm.defaults import ALLOCATOR, PATCH
from texturevlm.relevance.maps import Relevance
from texturevlm.types import Allocation, Texture

LEAST = 16  # tokens of an item that gets any: fewer show nothing that a coarse look does not


class Item(NamedTuple):
    """One of many.

    worth: the chance that the question is about it, or anything proportional to that; at least 0
    open:  its texture and relevance, made when the traversal reaches it
    """

    worth: float
    open: Callable[[], tuple[Texture, Relevance]]


@dataclass(frozen=True, eq=False)
class Opened:
    """An item that gets tokens; index: its place among the items."""

    index: int
    texture: Texture
    relevance: Relevance
    allocation: Allocation


@dataclass(eq=False)
class _Candidate:
    index: int
    texture: Texture
    relevance: Relevance
    choose: Callable[..., Allocation]
    curve: list[Point]  # from no tokens on
    ceiling: int


def traverse(
    items: Sequence[Item],
    *,
    budget: int,
    most: int,
    patch: int = PATCH,
    allocator: str | Callable[..., Allocation] = ALLOCATOR,
) -> list[Opened]:
    """Spend a budget on items by expected worth; those that get tokens, in the order of the items.

    most: items that may be opened; what was opened and gets no tokens is dropped at the end
    """
    if not items:
        raise ValueError("traverse: items must be at least one, got none")
    check_count("traverse", "budget", budget, 1)
    check_count("traverse", "most", most, 1)
    choose, least = named_allocator(allocator), min(LEAST, budget)
    candidates: list[_Candidate] = []
    for index in sorted(range(len(items)), key=lambda index: -items[index].worth):
        if len(candidates) == min(most, budget // least) or items[index].worth / least < _price(candidates, budget):
            break
        candidates.append(_candidate(index, items[index], budget, least, patch, choose))
    shares = _shares(candidates, budget, least)
    found = [
        Opened(one.index, one.texture, one.relevance, one.choose(one.relevance, budget=share))
        for one, share in zip(candidates, shares)
        if share
    ]
    return sorted(found, key=lambda one: one.index)


def _candidate(
    index: int, item: Item, budget: int, least: int, patch: int, choose: Callable[..., Allocation]
) -> _Candidate:
    texture, relevance = item.open()
    height, width = texture.size
    ceiling = min(budget, max(least, -(-height // patch) * -(-width // patch)))  # more tokens than pixels add nothing
    own = partial(choose, texture, patch=patch)
    curve = value_curve(own, relevance, least, ceiling, item.worth)
    return _Candidate(index, texture, relevance, own, [(0, 0.0), *curve], ceiling)


def _price(candidates: Sequence[_Candidate], budget: int) -> float:
    """The value of the cheapest token that the open items get; 0 while they do not use the whole budget."""
    if not candidates:
        return 0.0
    shares = hand_out([one.curve for one in candidates], [one.ceiling for one in candidates], budget)
    if sum(shares) < budget:
        return 0.0
    last = []
    for one, share in zip(candidates, shares):
        steps = [slope(before, after) for before, after in pairwise(envelope(one.curve)) if before[0] < share]
        last += steps[-1:]
    return min(last)


def _shares(candidates: Sequence[_Candidate], budget: int, least: int) -> list[int]:
    """Tokens per open item; none gets fewer than `least` but more than 0: those go to the others."""
    kept = list(range(len(candidates)))
    while True:
        some = [candidates[place] for place in kept]
        shares = hand_out([one.curve for one in some], [one.ceiling for one in some], budget)
        few = [place for place, share in zip(kept, shares) if share < least]
        if not few or len(kept) == 1:
            given = dict(zip(kept, shares))
            return [given.get(place, 0) for place in range(len(candidates))]
        # The least worth leaves first: its tokens may lift the others above the least share.
        kept.remove(min(few, key=lambda place: candidates[place].curve[-1][1]))
