"""The search that allocators share: squares that cover chosen cells, as fine or as many as a budget allows.

A Layer is squares of one size from `ops.cover`. Every allocator on this search answers the same three questions: how
fine is a layer (`finest_span`, `ladder`), how many of the best cells does it reach (`furthest`), and which of several
answers is worth most (`value_of`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from texturevlm.allocate.cells import Array, Cells, Square
from texturevlm.allocate.footprints import Boxes
from texturevlm.ops.cover import cover, rows_of
from texturevlm.ops.legibility import UNIT

BISECTIONS = 10
SCALES_PER_OCTAVE = 3
_FACTOR_BITS = 20  # of the fixed-point factors in `ladder`, which the kernel repeats
OVERVIEW = 0.1  # option of most allocators: the share of the budget that covers all ink by the coarsest scale in use
NATIVE = 1.01  # a footprint up to this many times as wide as a patch shows the image's own pixels
_GROWTH, _MOST_GROWTH = 1.3, 4.0  # steps in which a nominal budget rises, and how far at most

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


def most_of_best(gain: Array, attempt: Callable[[Array], Found | None]) -> Found | None:
    """`furthest` over cells: what `attempt` gives for a mask (h, w) of as many of the cells of most gain as fit."""
    order = np.argsort(-gain, axis=None, kind="stable")[: np.count_nonzero(gain > 0)]  # of equal ones the first

    def first(count: int) -> Found | None:
        mask = np.zeros(gain.shape, dtype=bool)
        mask.flat[order[:count]] = True
        return attempt(mask)

    return furthest(first, len(order))


def best_squares(gain: Array, span: int, tokens: int) -> list[Square]:
    """Squares over as many of the cells of most gain as this many tokens cover."""

    def attempt(mask: Array) -> list[Square] | None:
        squares = cover(rows_of(mask), span, max(tokens, 0))
        return squares if len(squares) <= tokens else None

    return most_of_best(gain, attempt) or []


def lay(cells: Cells, wanted: Array, most: int, price: float = 0.0) -> list[Layer] | None:
    """Layers, finest first, that cover each cell at its wanted span or finer; None if that takes more than `most`.

    wanted: (h, w), the span of each cell; 0 where nothing is wanted
    price:  of a token: a square that gains less over the next coarser span than the tokens which that saves are worth
            is left out, and its cells are left to the coarser layer
    """
    wanted = wanted.copy()
    spans = np.unique(wanted[wanted > 0]).tolist()
    covered = np.zeros(wanted.shape, dtype=bool)
    found: list[Layer] = []
    for span, coarser in zip(spans, [*spans[1:], 0]):
        waiting = (wanted == span) & ~covered
        squares = cover(rows_of(waiting), span, waiting.size)
        if coarser and price > 0:
            gain = cells.legible(cells.scale(span)) - cells.legible(cells.scale(coarser))
            gain[~waiting] = 0.0
            lowest = price * (1 - (span / coarser) ** 2)
            squares = [(y, x) for y, x in squares if gain[y : y + span, x : x + span].sum() >= lowest]
        most -= len(squares)
        if most < 0:
            return None
        found.append(Layer.square(cells, squares, cells.width(span)))
        covered |= found[-1].covered(cells)
        if coarser:
            wanted[waiting & ~covered] = coarser
    return found


def tightened(cells: Cells, layers: Sequence[Layer]) -> list[Layer]:
    """The same tokens, or fewer: each square of layers, finest first, shrinks to the ink that none before it shows.

    A square to which no ink is left goes. All ink stays covered; what lies in a smaller square is shown more finely.
    """
    left, found = cells.ink.copy(), dict[int, list[Square]]()
    for layer in layers:
        span = layer.span[0]
        for row, column in layer.squares:
            own = left[row : row + span, column : column + span]
            rows, columns = (np.nonzero(own.any(axis))[0] for axis in (1, 0))
            if len(rows):
                extent = int(max(rows[-1] - rows[0], columns[-1] - columns[0])) + 1
                narrow = extent < span
                first = (row + int(rows[0]), column + int(columns[0])) if narrow else (row, column)
                found.setdefault(max(cells.finest, extent) if narrow else span, []).append(first)
            own[:] = False
    return [Layer.square(cells, squares, cells.width(span)) for span, squares in sorted(found.items())]


def value_of(cells: Cells, layers: Sequence[Layer]) -> float:
    """The expected value of square layers, finest first: the mass that is legible at the scale of the finest cover."""
    total, covered = 0.0, np.zeros(cells.ink.shape, dtype=bool)
    for layer in layers:
        new = layer.covered(cells) & ~covered
        total += float(cells.legible(layer.sides[0] / cells.patch)[new].sum())
        covered |= new
    return total


def shown_scale(cells: Cells, layers: Sequence[Layer]) -> Array:
    """(h, w): pixels per sample of the finest square over each cell, of layers finest first; infinite where none is."""
    scale = np.full(cells.ink.shape, np.inf)
    for layer in reversed(layers):
        scale[layer.covered(cells)] = layer.sides[0] / cells.patch
    return scale


def most_that_fits(cells: Cells, attempt: Callable[[int], list[Layer] | None], budget: int) -> list[Layer]:
    """The layers of most value that nominal budgets give and that fit the true budget.

    attempt: of a nominal budget, which counts each piece alone; None where that takes too many tokens. Pieces that are
             covered together need fewer tokens, so a nominal budget may exceed the true one; 0 must fit
    """
    fitting: list[list[Layer]] = []

    def fits(nominal: int) -> bool:
        found = attempt(nominal)
        fitting.extend([] if found is None else [found])
        return found is not None

    coarsest_fits = fits(0)
    assert coarsest_fits
    low, high = 0, budget
    while high < _MOST_GROWTH * budget and fits(high):
        low, high = high, math.ceil(high * _GROWTH)
    least(low, high, lambda nominal: not fits(nominal))
    return max(fitting, key=partial(value_of, cells))


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
