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
from texturevlm.allocate.footprints import Box, Boxes
from texturevlm.ops.cover import cover, rows_of
from texturevlm.ops.select import UNIT

BISECTIONS = 10
SCALES_PER_OCTAVE = 3
_FACTOR_BITS = 20  # of the fixed-point factors in `ladder`, which the kernel repeats
OVERVIEW = 0.1  # share of the budget that a coarse layer over the whole image may need: it bounds the coarsest scale
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

    def covered(self, cells: Cells) -> Array:
        """(h, w) bool: the cells in some square."""
        return cells.covered(self.squares, self.span)


def finest_span(cells: Cells, mask: Array, budget: int) -> int:
    """The least span of squares of which `budget` cover the mask; no finer than the image's pixels."""
    rows, coarsest = rows_of(mask), max(cells.finest, *mask.shape)
    return least(cells.finest - 1, coarsest, lambda span: len(cover(rows, span, budget)) <= budget)


def fitted_layer(cells: Cells, mask: Array, budget: int) -> Layer:
    """The finest layer of at most `budget` squares that covers the mask."""
    span = finest_span(cells, mask, budget)
    return Layer.square(cells, cover(rows_of(mask), span, budget), cells.width(span))


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
    """Bisection: what `attempt` gives for the greatest number up to `end` that fits.

    attempt: gives None where a number does not fit
    returns  None if nothing above 0 was found to fit
    """
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


def by_gain(gain: Array) -> Array:
    """The numbers of the cells that gain anything, the most first; of equal ones the first."""
    return np.argsort(-gain, axis=None, kind="stable")[: np.count_nonzero(gain > 0)]


def cells_of(numbers: Array, shape: tuple[int, ...]) -> Array:
    """(h, w) bool: the cells of these numbers."""
    mask = np.zeros(shape, dtype=bool)
    mask.flat[numbers] = True
    return mask


def best_squares(gain: Array, span: int, tokens: int) -> list[Square]:
    """Squares over as many of the cells of most gain as this many tokens cover."""
    order = by_gain(gain)

    def attempt(count: int) -> list[Square] | None:
        squares = cover(rows_of(cells_of(order[:count], gain.shape)), span, max(tokens, 0))
        return squares if len(squares) <= tokens else None

    return furthest(attempt, len(order)) or []


def lay(cells: Cells, wanted: Array, most: int, price: float = 0.0) -> list[Layer] | None:
    """Layers, finest first, that cover each cell at its wanted span or finer; None if that takes more than `most`.

    Squares of a finer layer also cover cells that want a coarser one, so pieces that are covered together take fewer
    squares than each alone.

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
        covered |= cells.covered(squares, span)
        if coarser:
            wanted[waiting & ~covered] = coarser
        found.append(Layer.square(cells, squares, cells.width(span)))
    return found


def value_of(cells: Cells, layers: Sequence[Layer]) -> float:
    """The expected value of square layers, finest first: the mass that is legible at the scale of the finest cover."""
    total, covered = 0.0, np.zeros(cells.ink.shape, dtype=bool)
    for layer in layers:
        new = layer.covered(cells) & ~covered
        total += float(cells.legible(layer.sides[0] / cells.patch)[new].sum())
        covered |= new
    return total


def most_that_fits(cells: Cells, attempt: Callable[[int], list[Layer] | None], budget: int) -> list[Layer]:
    """The layers of most value that nominal budgets give and that fit the true budget.

    attempt: of a nominal budget, which counts each piece alone; None where that takes too many tokens. Pieces that are
             covered together need fewer tokens, so a nominal budget may exceed the true one; 0 must fit
    """
    first = attempt(0)
    assert first is not None
    fitting, low, high = [first], 0, budget
    while high < _MOST_GROWTH * budget and (found := attempt(high)) is not None:
        fitting.append(found)
        low, high = high, math.ceil(high * _GROWTH)

    def kept(nominal: int) -> list[Layer] | None:
        found = attempt(nominal)
        fitting.extend([] if found is None else [found])
        return found

    least(low, high, lambda nominal: kept(nominal) is None)
    return max(fitting, key=lambda layers: value_of(cells, layers))


def with_blank(cells: Cells, layers: Sequence[Layer], budget: int) -> list[Layer]:
    """Where all ink is shown at the image's own resolution, unused tokens show the blank parts too."""
    left = budget - sum(len(layer.squares) for layer in layers)
    if not left or any(max(layer.sides) > NATIVE * cells.patch for layer in layers if layer.squares):
        return list(layers)
    blank = ~np.logical_or.reduce([layer.covered(cells) for layer in layers])
    return [*layers, fitted_layer(cells, blank, left)]


def blank_boxes(cells: Cells, boxes: Sequence[Box], budget: int) -> Boxes:
    """The same for footprints that are not squares of cells: at most `budget` boxes over what no other box holds."""
    blank = ~cells.held(boxes)
    return scored(cells, [fitted_layer(cells, blank, budget)]) if budget > 0 and blank.any() else []


def scored(cells: Cells, layers: Sequence[Layer]) -> Boxes:
    """The layers' footprints with the mass of their cells, best first."""
    found, masses = [], cells.masses()
    for layer in layers:
        tall, wide = layer.span
        for row, column in layer.squares:
            mass = masses[row : row + tall, column : column + wide].sum()
            box = cells.box((row, column), layer.span, layer.sides)
            found.append((box, float(np.float32(mass)) / UNIT))
    return sorted(found, key=lambda pair: -pair[1])
