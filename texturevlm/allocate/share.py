"""One budget for several images: each token goes to the image where its expected value is highest.

The expected value of an image's tokens is measured at a few budgets. The concave envelope of those points gives the
value of the next token at every budget. Tokens are handed out by that value, highest first, between a floor and a
ceiling per image. A card with one line of text needs few tokens; a dense page gets the others.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.allocate.value import expected_value
from texturevlm.check import check_choice, check_count
from texturevlm.defaults import ALLOCATOR, PATCH
from texturevlm.relevance.maps import Relevance
from texturevlm.types import COLUMNS, Allocation, Texture

Point = tuple[int, float]  # a budget and its expected value
_BUDGETS_PER_OCTAVE = 2


def share_budget(
    textures: Sequence[Texture],
    relevances: Sequence[Relevance],
    *,
    budget: int,
    patch: int = PATCH,
    allocator: str | Callable[..., Allocation] = ALLOCATOR,
    weights: Sequence[float] | None = None,
    **options: Any,
) -> list[Allocation]:
    """One Allocation per image; arguments as in `split_budget`, options are the allocator's."""
    choose = partial(_function(allocator), patch=patch, **options)
    shares = split_budget(textures, relevances, budget=budget, patch=patch, allocator=choose, weights=weights)
    return [choose(*image, budget=share) for *image, share in zip(textures, relevances, shares)]


def split_budget(
    textures: Sequence[Texture],
    relevances: Sequence[Relevance],
    *,
    budget: int,
    patch: int = PATCH,
    allocator: str | Callable[..., Allocation] = ALLOCATOR,
    floor: int | Sequence[int] = 1,
    ceiling: int | Sequence[int] | None = None,
    weights: Sequence[float] | None = None,
) -> list[int]:
    """Split a budget over images by the expected value of their tokens.

    textures:       one image each, of any sizes
    relevances:     one per image
    budget:         tokens for all images together
    allocator:      a name of ALLOCATORS, or a function like those
    floor, ceiling: of the tokens of an image, one number for all or one per image; None: 8 times an equal share
    weights:        how much each image matters (for pages that share one question: the probability that the answer is
                    there); None: equal
    returns         tokens per image; they sum to the budget, or to the ceilings if those are less
    """
    choose, count = _function(allocator), len(textures)
    _check_images(textures, relevances)
    check_count("share_budget", "budget", budget, 1)
    floors = _per_image("floor", floor, count)
    ceiling = [max(low, 8 * math.ceil(budget / count)) for low in floors] if ceiling is None else ceiling
    ceilings = _per_image("ceiling", ceiling, count)
    weights = [1.0] * count if weights is None else weights
    for index, (low, high) in enumerate(zip(floors, ceilings)):
        if low > high:
            raise ValueError(f"share_budget: floor must not exceed ceiling, got {low} above {high} for image {index}")
    if sum(floors) > budget:
        raise ValueError(f"share_budget: budget must be at least the sum of the floors, {sum(floors)}, got {budget}")
    if len(weights) != count or not all(0 <= weight < math.inf for weight in weights):
        raise ValueError(f"share_budget: weights must be {count} numbers of at least 0, got {list(weights)!r:.80}")
    choose = partial(choose, patch=patch)
    curves = []
    for texture, relevance, low, high, weight in zip(textures, relevances, floors, ceilings, weights):
        most = min(high, budget - sum(floors) + low)  # what the other images leave
        curves.append(value_curve(partial(choose, texture), relevance, low, most, weight))
    return hand_out(curves, ceilings, budget)


def value_curve(
    choose: Callable[..., Allocation], relevance: Relevance, low: int, high: int, weight: float = 1.0
) -> list[Point]:
    """The expected value of budgets from low to high, times `weight`.

    choose: relevance and budget=… → an Allocation of one image
    """
    tried = _budgets_to_try(low, high)
    return [(tokens, weight * float(expected_value(relevance, choose(relevance, budget=tokens)))) for tokens in tried]


def as_batch(images: Sequence[Allocation]) -> Allocation:
    """Allocations of one image each, all of one size → one batch with as many slots as the largest has."""
    most = max(one.budget for one in images)

    def padded(column: Tensor) -> Tensor:
        after = (0, most - column.shape[1])
        return functional.pad(column, (0, 0, *after) if column.dim() == 3 else after)

    columns: Any = {name: torch.cat([padded(getattr(one, name)) for one in images]) for name in COLUMNS}
    return replace(images[0], **columns)


def hand_out(curves: Sequence[Sequence[Point]], ceilings: Sequence[int], budget: int) -> list[int]:
    """Tokens per image by greatest marginal value; optimal for the envelopes, since those are concave.

    curves: per image, points by rising budget, the first one at the image's floor
    Tokens of no value are handed out evenly, smallest shares first, up to the ceilings.
    """
    shares = [curve[0][0] for curve in curves]
    left = budget - sum(shares)

    def give(image: int, most: int) -> None:
        nonlocal left
        given = min(left, most)
        shares[image] += given
        left -= given

    steps = [
        (_slope(before, after), image, after[0] - before[0])
        for image, curve in enumerate(curves)
        for before, after in pairwise(envelope(curve))
    ]
    # Slopes fall along an envelope, so an image's own steps keep their order in the sorted list.
    for slope, image, length in sorted(steps, key=lambda step: -step[0]):
        if slope > 0:
            give(image, length)
    while left and (below := [image for image, share in enumerate(shares) if share < ceilings[image]]):
        each = max(1, left // len(below))
        for image in sorted(below, key=lambda image: (shares[image], image)):
            give(image, min(each, ceilings[image] - shares[image]))
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


def _slope(before: Point, after: Point) -> float:
    return (after[1] - before[1]) / (after[0] - before[0])


def _budgets_to_try(low: int, high: int) -> list[int]:
    """Budgets from low to high in equal ratios."""
    steps = max(1, math.ceil(_BUDGETS_PER_OCTAVE * math.log2(high / low))) if high > low else 0
    return sorted({low, *(round(low * (high / low) ** (step / steps)) for step in range(1, steps + 1))})


def _function(allocator: str | Callable[..., Allocation]) -> Callable[..., Allocation]:
    from texturevlm.allocate import ALLOCATORS  # which imports this file

    if not isinstance(allocator, str):
        return allocator
    return ALLOCATORS[check_choice("share_budget", "allocator", allocator, ALLOCATORS)]


def _check_images(textures: Sequence[Texture], relevances: Sequence[Relevance]) -> None:
    if not textures or len(textures) != len(relevances):
        counts = f"{len(textures)} and {len(relevances)}"
        raise ValueError(f"share_budget: textures and relevances must be equally many, at least one, got {counts}")
    for index, (texture, relevance) in enumerate(zip(textures, relevances)):
        if texture.batch != 1 or relevance.mass.shape[0] != 1 or texture.size != relevance.size:
            got = f"{texture.batch} of {texture.size} with {relevance.mass.shape[0]} of {relevance.size} at {index}"
            raise ValueError(f"share_budget: each texture must be one image with a relevance of its size, got {got}")


def _per_image(name: str, value: int | Sequence[int], count: int) -> list[int]:
    values = list(value) if isinstance(value, Sequence) else [value] * count
    if len(values) != count:
        raise ValueError(f"share_budget: {name} must be one number or {count}, got {len(values)}")
    return [check_count("share_budget", name, one, 1) for one in values]
