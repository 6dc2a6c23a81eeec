"""The search that allocators share: squares that cover chosen cells, as fine or as many as a budget allows.

A Layer is squares of one size from `ops.cover`. Every allocator on this search answers the same three questions: how
fine is a layer (`finest_span`, `ladder`), how many of the best cells does it reach (`furthest`), and which of several
answers is worth most (`value_of`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from texturevlm.allocate.cells import Array, Cells, Square
from texturevlm.allocate.footprints import Boxes
from texturevlm.ops import rows_of
from texturevlm.ops.cover import cover
from texturevlm.relevance import UNIT

BISECTIONS = 10
SCALES_PER_OCTAVE = 3
_FACTOR_BITS = 20  # of the fixed-point factors in `ladder`, which the kernel repeats
OVERVIEW = 0.1  # option of most allocators: the share of the budget that covers all ink by the coarsest scale in use
NATIVE = 1.01  # a footprint up to this many times as wide as a patch shows the image's own pixels

Found = TypeVar("Found")


@dataclass(frozen=True)
class Layer:
    """Footprints of one size.

    squares: the first cell (row, column) of each
    span:    rows and columns of cells that each covers
    sides:   height and width of each in pixels
    """

    squares: list[Square]
    span: tuple[int, int]
    sides: tuple[float, float]

    @classmethod
    def square(cls, cells: Cells, squares: list[Square], side: float) -> Layer:
        """Squares `side` pixels wide."""
        span = cells.span(side)
        return cls(squares, (span, span), (side, side))

    @classmethod
    def over(cls, cells: Cells, mask: Array, span: int, most: int) -> Layer:
        """A mask (h, w) covered by squares of `span` cells; more than `most` squares do not suffice."""
        return cls.square(cells, cover(rows_of(mask), span, most), cells.width(span))

    def covered(self, cells: Cells) -> Array:
        """(h, w) bool: the cells in some square."""
        mask = np.zeros(cells.ink.shape, dtype=bool)
        for row, column in self.squares:
            mask[row : row + self.span[0], column : column + self.span[1]] = True
        return mask


def finest_span(cells: Cells, mask: Array, budget: int, between: tuple[int, int] | None = None) -> int:
    """The least span of squares of which `budget` cover the mask; no finer than the image's pixels.

    between: the least and the greatest span to try; the greatest must suffice
    """
    rows, (low, high) = rows_of(mask), between or (cells.finest, max(cells.finest, *mask.shape))
    return least(low - 1, high, lambda span: len(cover(rows, span, budget)) <= budget)


def fitted_layer(cells: Cells, mask: Array, budget: int, between: tuple[int, int] | None = None) -> Layer:
    """The finest layer of at most `budget` squares that covers the mask."""
    return Layer.over(cells, mask, finest_span(cells, mask, budget, between), budget)


def floor_budget(budget: int, overview: float) -> int:
    """How many tokens a coarse layer over all ink may take."""
    return max(1, int(budget * overview))


def floor_span(cells: Cells, budget: int, overview: float) -> int:
    """The coarsest span of an allocation: the share `overview` of the budget covers all ink by it."""
    return finest_span(cells, cells.ink, floor_budget(budget, overview))


def least(low: int, high: int, enough: Callable[[int], bool]) -> int:
    """Bisection: the least number above `low` that is enough, if all greater ones are too; `high` is."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def furthest(attempt: Callable[[int], Found | None], end: int) -> Found | None:
    """Bisection: what `attempt` gives for the greatest number up to `end` that fits, None if none does."""
    found, low, high = attempt(end), 0, end
    if found is not None:
        return found
    for _ in range(BISECTIONS):
        if high - low <= 1:
            break
        middle = (low + high) // 2
        tried = attempt(middle)
        low, high, found = (low, middle, found) if tried is None else (middle, high, tried)
    return found


def ladder(coarsest: int, finest: int, per_octave: float = SCALES_PER_OCTAVE) -> list[int]:
    """Spans from `coarsest` down to `finest` cells, so many per octave, each less than the one before."""
    spans = [coarsest]
    for step in range(1, 1 + math.ceil(per_octave * coarsest.bit_length())):
        spans.append(max(finest, coarsest * int(2 ** (_FACTOR_BITS - step / per_octave)) >> _FACTOR_BITS))
    return [span for span, before in zip(spans, [0, *spans]) if span != before]


def scored(cells: Cells, layers: Sequence[Layer], budget: int = 0) -> Boxes:
    """The layers' footprints with the mass of their cells, best first.

    budget: where all ink is shown at the image's own resolution, tokens that are left of it show the blank parts too
    """
    left = budget - sum(len(layer.squares) for layer in layers)
    if left > 0 and all(max(layer.sides) <= NATIVE * cells.patch for layer in layers if layer.squares):
        blank = ~np.logical_or.reduce([layer.covered(cells) for layer in layers])
        layers = [*layers, fitted_layer(cells, blank, left)]
    found, masses = [], cells.masses()
    for layer in layers:
        (rows, columns), (tall, wide) = layer.span, layer.sides
        for row, column in layer.squares:
            mass = masses[row : row + rows, column : column + columns].sum()
            y = row * cells.cell[0] - (tall - rows * cells.cell[0]) / 2  # centred on its cells
            x = column * cells.cell[1] - (wide - columns * cells.cell[1]) / 2
            found.append((cells.inside(x, y, wide, tall), float(np.float32(mass)) / UNIT))
    return sorted(found, key=lambda pair: -pair[1])


def blank_boxes(cells: Cells, found: Boxes, budget: int) -> Boxes:
    """Tokens that are left of a budget, over cells whose centre lies in no box; for boxes that are not whole cells."""
    blank = np.ones(cells.ink.shape, dtype=bool)
    tall, wide = cells.cell
    for (x0, y0, x1, y1), _ in found:
        top, bottom = (max(0, math.ceil(y / tall - 0.5 - 1e-6)) for y in (y0, y1))
        left, right = (max(0, math.ceil(x / wide - 0.5 - 1e-6)) for x in (x0, x1))
        blank[top:bottom, left:right] = False
    return scored(cells, [fitted_layer(cells, blank, budget - len(found))]) if len(found) < budget else []
