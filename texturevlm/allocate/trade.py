"""One budget for many images: a token goes to the image where it is expected to show most of what matters.

How much an image's tokens are worth is tried at a few budgets. The concave envelope of those points says what the next
token is worth at every budget, and tokens are handed out by that, dearest first, between a floor and a ceiling for each
image. A card with one line of text is done with few; a dense page gets what the card did not need.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from texturevlm.allocate.layers import layers
from texturevlm.allocate.value import expected_value
from texturevlm.check import check_count
from texturevlm.relevance.maps import Relevance
from texturevlm.types import Allocation, Texture

Allocator = Callable[..., Allocation]
Point = tuple[int, float]  # a budget and what it is worth
TRIED_AN_OCTAVE = 2  # budgets


def trade(
    textures: Sequence[Texture],
    relevances: Sequence[Relevance],
    *,
    total: int,
    floor: int | Sequence[int] = 1,
    ceiling: int | Sequence[int] | None = None,
    patch: int = 32,
    allocator: Allocator = layers,
    weights: Sequence[float] | None = None,
) -> list[int]:
    """The budget of each image, by what its tokens are expected to be worth.

    textures:       one image each, of any sizes
    relevances:     one each
    total:          tokens for all of them
    floor, ceiling: of each image's budget, one number for all or one each; a ceiling of None is 8 × an equal share
    weights:        how much each image matters: for pages that share one question, the chance that the answer is there;
                    all the same if None
    returns         budgets that sum to the total, or to the ceilings where those are less
    """
    count = _check_images(textures, relevances)
    check_count("trade", "total", total, 1)
    floors = _bounds("floor", floor, count, 1)
    if ceiling is None:
        ceiling = [max(low, 8 * math.ceil(total / count)) for low in floors]
    ceilings = _bounds("ceiling", ceiling, count, 1)
    for index, (low, high) in enumerate(zip(floors, ceilings)):
        if low > high:
            raise ValueError(f"trade: floor must not be above the ceiling, got {low} above {high} for image {index}")
    if sum(floors) > total:
        raise ValueError(f"trade: total must be at least the floors' sum, {sum(floors)}, got {total}")
    shares = [1.0] * count if weights is None else _check_weights(weights, count)
    curves = []
    for texture, relevance, low, high, share in zip(textures, relevances, floors, ceilings, shares):
        # No image can be given more than what the others leave.
        most = min(high, total - sum(floors) + low)
        curves.append([(k, share * worth(texture, relevance, k, patch, allocator)) for k in _tried(low, most)])
    return hand_out(curves, ceilings, total)


def trade_tokens(
    textures: Sequence[Texture],
    relevances: Sequence[Relevance],
    *,
    total: int,
    patch: int = 32,
    allocator: Allocator = layers,
    **options: Any,
) -> list[Allocation]:
    """The same, and the allocations that come of it; `options` are those of `trade`."""
    budgets = trade(textures, relevances, total=total, patch=patch, allocator=allocator, **options)
    return [
        allocator(texture, relevance, budget=budget, patch=patch)
        for texture, relevance, budget in zip(textures, relevances, budgets)
    ]


def worth(texture: Texture, relevance: Relevance, budget: int, patch: int, allocator: Allocator) -> float:
    """The expected value of one image's tokens."""
    return float(expected_value(relevance, allocator(texture, relevance, budget=budget, patch=patch)))


def hand_out(curves: Sequence[Sequence[Point]], ceilings: Sequence[int], total: int) -> list[int]:
    """Budgets by greatest marginal value; optimal for the envelopes, since those are concave.

    curves:  for each image, the points that were tried, by rising budget, the first at its floor
    returns  budgets that sum to the total, or to the ceilings where those are less
    """
    budgets = [curve[0][0] for curve in curves]
    left = total - sum(budgets)
    steps = [
        ((after[1] - before[1]) / (after[0] - before[0]), image, after[0] - before[0])
        for image, curve in enumerate(curves)
        for before, after in pairwise(envelope(curve))
    ]
    # Slopes fall along an envelope, so an image's own steps keep their order in the sorted list.
    for slope, image, length in sorted(steps, key=lambda step: -step[0]):
        if slope <= 0:
            break
        given = min(left, length)
        budgets[image] += given
        left -= given
    return _rest(budgets, ceilings, left)


def envelope(curve: Sequence[Point]) -> list[Point]:
    """The least concave curve that never falls and lies on or above the points."""
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


def _rest(budgets: list[int], ceilings: Sequence[int], left: int) -> list[int]:
    """Tokens that nobody has a use for, a share each, lowest budgets first, as far as the ceilings allow."""
    open_ones = [image for image, (budget, high) in enumerate(zip(budgets, ceilings)) if budget < high]
    while left and open_ones:
        open_ones.sort(key=lambda image: (budgets[image], image))
        share = max(1, left // len(open_ones))
        for image in open_ones:
            given = min(share, left, ceilings[image] - budgets[image])
            budgets[image] += given
            left -= given
        open_ones = [image for image in open_ones if budgets[image] < ceilings[image]]
    return budgets


def _tried(low: int, high: int) -> list[int]:
    """Budgets from low to high in equal ratios."""
    steps = max(1, math.ceil(TRIED_AN_OCTAVE * math.log2(high / low))) if high > low else 0
    return sorted({low, *(round(low * (high / low) ** (step / steps)) for step in range(1, steps + 1))})


def _check_images(textures: Sequence[Texture], relevances: Sequence[Relevance]) -> int:
    if not textures or len(textures) != len(relevances):
        raise ValueError(
            f"trade: textures and relevances must be as many as one another and not none, "
            f"got {len(textures)} and {len(relevances)}"
        )
    for index, (texture, relevance) in enumerate(zip(textures, relevances)):
        if texture.batch != 1 or relevance.mass.shape[0] != 1 or texture.size != relevance.size:
            raise ValueError(
                f"trade: each texture must be one image with the relevance of its size, got {texture.batch} of "
                f"{texture.size} with {relevance.mass.shape[0]} of {relevance.size} at {index}"
            )
    return len(textures)


def _bounds(name: str, value: int | Sequence[int], count: int, low: int) -> list[int]:
    values = list(value) if isinstance(value, Sequence) else [value] * count
    if len(values) != count:
        raise ValueError(f"trade: {name} must be one number or {count}, got {len(values)}")
    return [check_count("trade", name, one, low) for one in values]


def _check_weights(weights: Sequence[float], count: int) -> list[float]:
    if len(weights) != count or not all(0 <= weight < math.inf for weight in weights):
        raise ValueError(f"trade: weights must be {count} numbers of at least 0, got {list(weights)!r:.80}")
    return [float(weight) for weight in weights]
