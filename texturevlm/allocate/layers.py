"""Layers: the most relevant cells covered finely, the rest of what is not blank covered coarsely.

Two numbers make an allocation out of relevance maps: how fine the fine layer is, and how far down the ranking of cells
it reaches. Fine samples on few cells, or coarser ones on more: whichever is expected to let more of what matters be
made out. For each of a few scales the reach is found by bisection, since it is as far as the budget goes; to reach
everything is `fit`, and then nothing is left for the coarse layer to cover.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from texturevlm.allocate.cells import Cells, Square, each_image
from texturevlm.allocate.footprints import Box
from texturevlm.ops.cover import cover, rows_of
from texturevlm.relevance.maps import Relevance
from texturevlm.types import Allocation, Texture

BISECTIONS = 10
SCALES_AN_OCTAVE = 3
WORTH_IT = 0.05  # of all that matters: for less, no part of an image is left coarse that could be seen finer
OVERVIEW = 0.1  # of the budget, at most, is what the coarse layer would need for the whole image


def fit(texture: Texture, relevance: Relevance, *, budget: int = 273, patch: int = 32) -> Allocation:
    """Blank space dropped, the rest at one fractional scale: the finest at which the budget covers it."""
    return each_image(texture, relevance, budget, patch, lambda cells: fitted(cells, budget, patch))


def layers(
    texture: Texture, relevance: Relevance, *, budget: int = 273, patch: int = 32, overview: float = OVERVIEW
) -> Allocation:
    """The most relevant cells finely, the rest coarsely; how finely and how many is what the budget is best spent on.

    overview: the share of the budget that the coarse layer may need, were it to cover everything: it sets the floor of
              scale under which no part of the image falls that is not blank
    """
    if not 0 < overview <= 1:
        raise ValueError(f"layers: overview must be above 0 and at most 1, got {overview!r}")
    return each_image(texture, relevance, budget, patch, lambda cells: layered(cells, budget, patch, overview))


@dataclass(frozen=True)
class Layer:
    """Squares of one side, in pixels."""

    squares: list[Square]
    side: float


def fitted(cells: Cells, budget: int, patch: int) -> list[tuple[Box, float]]:
    """`fit` for one image."""
    side = finest_side(cells, cells.ink, budget, patch)
    return scored(
        cells, _with_blank(cells, [Layer(cover(rows_of(cells.ink), cells.span(side), budget), side)], budget, patch)
    )


def layered(cells: Cells, budget: int, patch: int, overview: float) -> list[tuple[Box, float]]:
    """`layers` for one image."""
    side = finest_side(cells, cells.ink, budget, patch)
    floor = finest_side(cells, cells.ink, max(1, int(budget * overview)), patch)
    best = [Layer(cover(rows_of(cells.ink), cells.span(side), budget), side)]
    most = float((cells.mass * cells.readable(side / patch)).sum()) + WORTH_IT
    while True:
        found, worth = _reach(cells, budget, side, max(floor, side), patch)
        if worth > most:
            best, most = found, worth
        if side <= patch:
            break
        side = max(float(patch), side / 2 ** (1 / SCALES_AN_OCTAVE))
    return scored(cells, _with_blank(cells, _finer_floor(cells, best, budget), budget, patch))


def finest_side(cells: Cells, mask: np.ndarray, budget: int, patch: int) -> float:
    """The least side, in pixels, of squares of which `budget` cover the mask; no finer than the image's pixels."""
    rows = rows_of(mask)

    def enough(side: float) -> bool:
        return len(cover(rows, cells.span(side), budget)) <= budget

    low, high = float(patch), max(cells.coarsest, float(patch))
    if enough(low):
        return low
    for _ in range(BISECTIONS + 4):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _reach(cells: Cells, budget: int, side: float, floor: float, patch: int) -> tuple[list[Layer], float]:
    """As many of the best cells as the budget covers at `side`, the others at `floor`; and what that is worth."""
    fine, coarse = cells.readable(side / patch), cells.readable(floor / patch)
    gain = np.where(cells.ink, cells.mass * (fine - coarse), 0.0)
    order = np.argsort(-gain, axis=None, kind="stable")[: np.count_nonzero(gain > 0)]

    def attempt(count: int) -> list[Layer] | None:
        mask = np.zeros(gain.shape, dtype=bool)
        mask.flat[order[:count]] = True
        above = cover(rows_of(mask), cells.span(side), budget)
        if len(above) > budget:
            return None
        rest = cells.ink & ~cells.covered(above, cells.span(side))
        below = cover(rows_of(rest), cells.span(floor), budget - len(above))
        return None if len(above) + len(below) > budget else [Layer(above, side), Layer(below, floor)]

    found, low, high = attempt(len(order)), 0, len(order)
    if found is None:
        for _ in range(BISECTIONS):
            middle = (low + high) // 2
            tried = attempt(middle)
            low, high = (low, middle) if tried is None else (middle, high)
            found = tried or found
    if found is None:
        return [], -1.0
    seen = cells.covered(found[0].squares, cells.span(side))
    return found, float((cells.mass * np.where(seen, fine, coarse)).sum())


def _finer_floor(cells: Cells, found: list[Layer], budget: int) -> list[Layer]:
    """The coarse layer as fine as the tokens that are left allow."""
    if len(found) < 2 or not found[1].squares:
        return found
    above, below = found
    rest = cells.ink & ~cells.covered(above.squares, cells.span(above.side))
    left = budget - len(above.squares)
    rows, low, high = rows_of(rest), above.side, below.side
    for _ in range(BISECTIONS):
        middle = math.sqrt(low * high)
        tried = cover(rows, cells.span(middle), left)
        if len(tried) <= left:
            high, below = middle, Layer(tried, middle)
        else:
            low = middle
    return [above, below]


def _with_blank(cells: Cells, found: list[Layer], budget: int, patch: int) -> list[Layer]:
    """Where all that is not blank is seen as fine as it is, the tokens that are left show the blank parts too."""
    left = budget - sum(len(layer.squares) for layer in found)
    if not left or any(layer.side > 1.01 * patch for layer in found if layer.squares):
        return found
    blank = ~np.logical_or.reduce([cells.covered(layer.squares, cells.span(layer.side)) for layer in found])
    side = finest_side(cells, blank, left, patch)
    return [*found, Layer(cover(rows_of(blank), cells.span(side), left), side)]


def scored(cells: Cells, found: list[Layer]) -> list[tuple[Box, float]]:
    """Boxes with the mass of the cells in them, best first."""
    rows = []
    for layer in found:
        span = cells.span(layer.side)
        for square in layer.squares:
            row, column = square
            mass = cells.mass[row : row + span, column : column + span].sum()
            rows.append((cells.box(square, layer.side), float(mass)))
    return sorted(rows, key=lambda pair: -pair[1])
