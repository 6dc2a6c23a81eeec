"""Many pictures, one budget: each token goes to the picture where its expected value is highest.

The rule is the greatest marginal value. What tokens are worth in a picture is measured at a few budgets; the concave
envelope of those points gives the value of the next token at every budget. Tokens are handed out by that value, highest
first, between a floor and a ceiling per picture. A card with one line of text needs few; a dense page gets the others.
That is optimal for the envelopes, since they are concave.

Pictures are opened lazily where only some are worth a closer look (pages of a document). A picture's worth, the chance
that the question is about it, bounds what its tokens can be worth, because the mass of a relevance sums to 1 and
legibility is at most 1. So pictures are opened best first, until no closed one can be worth more per token than the
cheapest token that was handed out.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.allocate.allocator import ALLOCATORS
from texturevlm.allocate.value import expected_value
from texturevlm.check import check_count
from texturevlm.defaults import ALLOCATOR, PATCH
from texturevlm.relevance import Relevance
from texturevlm.types import COLUMNS, Allocation, Texture

Point = tuple[int, float]  # a budget and its expected value
LEAST = 16  # tokens of a picture that gets any: fewer show nothing that a coarse look does not
_BUDGETS_PER_OCTAVE = 2


class Item(NamedTuple):
    """One of many pictures that share a budget.

    open:    its texture and relevance, of one image, made when its turn comes
    worth:   the chance that the question is about it, or anything proportional to that; at least 0
    floor:   its fewest tokens, if it gets any
    ceiling: its most tokens; None: as many as hold its pixels, more add nothing
    """

    open: Callable[[], tuple[Texture, Relevance]]
    worth: float = 1.0
    floor: int = LEAST
    ceiling: int | None = None


def spend(
    items: Sequence[Item],
    *,
    budget: int,
    patch: int = PATCH,
    allocator: str | Callable[..., Allocation] = ALLOCATOR,
    most: int | None = None,
    **options: Any,
) -> list[int]:
    """Spend a budget on pictures: the tokens of each, which sum to the budget, or to the ceilings if those are less.

    most:    how many may be opened; the others get no tokens, and neither does one that is worth less than its floor.
             None: all are opened, and each gets its floor
    options: the allocator's own
    """
    if not items:
        raise ValueError("spend: items must be at least one, got none")
    check_count("spend", "budget", budget, 1)
    choose = partial(ALLOCATORS.find("spend", allocator), patch=patch, **options)
    order: Sequence[int] = range(len(items))
    if most is not None:
        check_count("spend", "most", most, 1)
        items = [item._replace(floor=min(item.floor, budget)) for item in items]
        order = sorted(order, key=lambda index: -items[index].worth)
    curves: dict[int, list[Point]] = {}
    ceilings: dict[int, int] = {}
    for index in order:
        item = items[index]
        if most is not None:
            full = len(curves) == min(most, budget // item.floor)
            if full or item.worth / item.floor < _price(curves, ceilings, budget):
                break
        texture, relevance = item.open()
        pixels = math.prod(-(-extent // patch) for extent in texture.size)
        ceilings[index] = min(budget, max(item.floor, pixels if item.ceiling is None else item.ceiling))
        none = [] if most is None else [(0, 0.0)]
        own = partial(choose, texture)
        curves[index] = none + value_curve(own, relevance, item.floor, ceilings[index], item.worth)
    shares = hand_out(curves, ceilings, budget)
    while len(shares) > 1 and (few := [index for index in shares if shares[index] < items[index].floor]):
        # The least worth leaves first: its tokens may lift the others above their floors.
        del curves[min(few, key=lambda index: curves[index][-1][1])]
        shares = hand_out(curves, ceilings, budget)
    return [shares.get(index, 0) for index in range(len(items))]


def value_curve(
    choose: Callable[..., Allocation], relevance: Relevance, low: int, high: int, worth: float = 1.0
) -> list[Point]:
    """The expected value of a few budgets from low to high, in equal ratios, times `worth`.

    choose: relevance and budget=… → an Allocation of one image
    """
    steps = max(1, math.ceil(_BUDGETS_PER_OCTAVE * math.log2(high / low))) if high > low else 0
    tried = sorted({low, *(round(low * (high / low) ** (step / steps)) for step in range(1, steps + 1))})
    return [(tokens, worth * float(expected_value(relevance, choose(relevance, budget=tokens)))) for tokens in tried]


def hand_out(curves: dict[int, list[Point]], ceilings: dict[int, int], budget: int) -> dict[int, int]:
    """Tokens per picture by greatest marginal value.

    curves: by picture, points by rising budget, the first one at what the picture gets in any case
    Tokens of no value are handed out evenly, smallest shares first, up to the ceilings.
    """
    shares = {index: curve[0][0] for index, curve in curves.items()}
    left = budget - sum(shares.values())

    def give(index: int, most: int) -> None:
        nonlocal left
        given = min(left, most)
        shares[index] += given
        left -= given

    steps = [
        (_slope(before, after), index, after[0] - before[0])
        for index, curve in curves.items()
        for before, after in pairwise(envelope(curve))
    ]
    # Slopes fall along an envelope, so a picture's own steps keep their order in the sorted list.
    for gain, index, length in sorted(steps, key=lambda step: -step[0]):
        if gain > 0:
            give(index, length)
    while left and (below := [index for index, share in shares.items() if share < ceilings[index]]):
        each = max(1, left // len(below))
        for index in sorted(below, key=lambda index: shares[index]):
            give(index, min(each, ceilings[index] - shares[index]))
    return shares


def envelope(curve: Sequence[Point]) -> list[Point]:
    """The least concave, non-decreasing curve on or above the points."""
    hull: list[Point] = []
    best = -math.inf
    for budget, value in curve:
        best = max(best, value)
        while len(hull) >= 2 and _slope(hull[-2], (budget, best)) >= _slope(hull[-2], hull[-1]):
            hull.pop()
        hull.append((budget, best))
    return hull


def as_batch(images: Sequence[Allocation]) -> Allocation:
    """Allocations of one image each, all of one size → one batch with as many slots as the largest has."""
    most = max(image.budget for image in images)

    def padded(column: Tensor) -> Tensor:
        after = (0, most - column.shape[1])
        return functional.pad(column, (0, 0, *after) if column.dim() == 3 else after)

    columns: Any = {name: torch.cat([padded(getattr(image, name)) for image in images]) for name in COLUMNS}
    return replace(images[0], **columns)


def _slope(before: Point, after: Point) -> float:
    """The value per token between two points."""
    return (after[1] - before[1]) / (after[0] - before[0])


def _price(curves: dict[int, list[Point]], ceilings: dict[int, int], budget: int) -> float:
    """The value of the cheapest token that the open pictures get; 0 while they do not use the whole budget."""
    shares = hand_out(curves, ceilings, budget)
    if sum(shares.values()) < budget:
        return 0.0
    last = []
    for index, curve in curves.items():
        steps = [_slope(*pair) for pair in pairwise(envelope(curve)) if pair[0][0] < shares[index]]
        last += steps[-1:]
    return min(last)
