"""What the allocators of the lab share beyond the core's search: layers of several spans, and what boxes are worth."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from texturevlm.allocate.cells import Array, Cells, Square
from texturevlm.allocate.footprints import Boxes, allocation_of
from texturevlm.allocate.search import Found, Layer, furthest, least
from texturevlm.allocate.value import delivered_scale
from texturevlm.ops.cover import cover, rows_of
from texturevlm.relevance.maps import legibility

_GROWTH, _MOST_GROWTH = 1.3, 4.0  # steps in which a nominal budget rises, and how far at most
_ROUNDING = 1e-4  # of an octave
_BESIDE = [  # cells, and those below or to the right of them
    ((slice(None, -1), slice(None)), (slice(1, None), slice(None))),
    ((slice(None), slice(None, -1)), (slice(None), slice(1, None))),
]


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


def scale_of_boxes(cells: Cells, boxes: Boxes) -> Array:
    """`delivered_scale` of one image's boxes on its cells: (h, w)."""
    found = allocation_of([boxes], cells.size, budget=len(boxes), patch=cells.patch, device=torch.device("cpu"))
    rows, columns = cells.ink.shape
    return np.asarray(delivered_scale(found, (rows, columns))[0])


def value_of_boxes(cells: Cells, boxes: Boxes) -> float:
    """`expected_value` of one image's boxes."""
    return float((cells.mass * legibility(cells.legible_scale, scale_of_boxes(cells, boxes))).sum())


def cracks(scale: Array, ink: Array) -> float:
    """The share of neighbouring cells with ink of which one is shown at least twice as finely as the other.

    scale: (h, w), pixels per sample, finite where there is ink
    """
    both = [(scale[one], scale[other], ink[one] & ink[other]) for one, other in _BESIDE]
    steps = np.concatenate([np.log2(first[inked] / second[inked]) for first, second, inked in both])
    return float((np.abs(steps) >= 1 - _ROUNDING).mean()) if len(steps) else 0.0
