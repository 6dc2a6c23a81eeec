"""From how wide a token each cell should lie in, counted in cells, to squares that cover them: finest first.

What a finer square covers by the way needs no coarser one, so the squares of many small pieces come out fewer than
those of each piece alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from texturevlm.allocate.cells import Cells
from texturevlm.allocate.detail import Detail
from texturevlm.allocate.footprints import Box
from texturevlm.allocate.layers import Layer, scored
from texturevlm.ops.cover import cover, rows_of

BISECTIONS = 7
GROWTH, MOST_SHARED = 1.3, 4.0  # steps in which a nominal budget is raised, and how far at most
NATIVE = 1.01  # pixels a sample: up to this a footprint gives all that the image has


def side_of(cells: Cells, span: int, patch: int) -> float:
    """The side, in pixels, of a square of `span` cells; no finer than the image's pixels."""
    return max(float(patch), span * max(cells.side))


def ladder(cells: Cells, coarsest: int, patch: int, steps: float) -> list[int]:
    """Spans from `coarsest` down to that of the image's own pixels, `steps` of them an octave, each less than the last.

    The last but one may be nearer: the finest is always there.
    """
    finest = cells.span(patch)
    spans = [max(coarsest, finest)]
    while spans[-1] > finest:
        wanted = spans[0] * 2 ** (-len(spans) / steps)
        spans.append(max(finest, min(spans[-1] - 1, round(wanted))))
    return spans


def finest_span(cells: Cells, mask: np.ndarray, budget: int, patch: int) -> int:
    """The least span of squares of which `budget` cover the mask; no finer than the image's pixels."""
    rows, low, high = rows_of(mask), cells.span(patch), max(*mask.shape, cells.span(patch))
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(cover(rows, middle, budget)) <= budget else (middle + 1, high)
    return high


def lay(
    cells: Cells, detail: Detail, wanted: np.ndarray, patch: int, most: int, price: float = 0.0
) -> list[Layer] | None:
    """Squares that cover each cell at its wanted span or finer; None if there would be more than `most`.

    wanted: (h, w), the span of each cell; 0 where nothing is wanted
    price:  of a token: a square that gains less over the next coarser span than the tokens which that saves are worth
            is left out, and its cells are left to the coarser one
    """
    wanted = wanted.copy()
    spans = np.unique(wanted[wanted > 0]).tolist()
    covered = np.zeros(wanted.shape, dtype=bool)
    found: list[Layer] = []
    left = most
    for span, coarser in zip(spans, [*spans[1:], 0]):
        side = side_of(cells, span, patch)
        waiting = (wanted == span) & ~covered
        squares = cover(rows_of(waiting), span, waiting.size)
        if coarser and price > 0:
            gain = detail.seen(side / patch) - detail.seen(side_of(cells, coarser, patch) / patch)
            gain[~waiting] = 0.0
            least = price * (1 - (span / coarser) ** 2)
            squares = [(y, x) for y, x in squares if gain[y : y + span, x : x + span].sum() >= least]
        left -= len(squares)
        if left < 0:
            return None
        covered |= cells.covered(squares, span)
        if coarser:
            wanted[waiting & ~covered] = coarser
        found.append(Layer(squares, side))
    return found


def value_of(cells: Cells, detail: Detail, found: Sequence[Layer], patch: int) -> float:
    """What layers, finest first, let be made out."""
    total, covered = 0.0, np.zeros(cells.ink.shape, dtype=bool)
    for layer in found:
        new = cells.covered(layer.squares, cells.span(layer.side)) & ~covered
        total += float(detail.seen(layer.side / patch)[new].sum())
        covered |= new
    return total


def most_that_fits(
    attempt: Callable[[int], list[Layer] | None], worth: Callable[[list[Layer]], float], budget: int
) -> list[Layer]:
    """The best of what nominal budgets give that still fits.

    attempt: of a nominal budget, which counts each piece alone; None where that is too much. Pieces that are laid
             together need fewer tokens than each alone, so the nominal budget may be above the true one. A nominal
             budget of 0 must fit
    worth:   of what an attempt gave; a little more nominal budget may be worth a little less
    """
    first = attempt(0)
    assert first is not None
    fitting, low, high = [first], 0, budget
    while high < MOST_SHARED * budget and (found := attempt(high)) is not None:
        fitting.append(found)
        low, high = high, math.ceil(high * GROWTH)
    for _ in range(BISECTIONS):
        middle = (low + high) // 2
        found = attempt(middle)
        low, high = (low, middle) if found is None else (middle, high)
        fitting += [] if found is None else [found]
    return max(fitting, key=worth)


def with_scores(cells: Cells, found: Sequence[Layer], budget: int, patch: int) -> list[tuple[Box, float]]:
    """Boxes with the mass in them; the blank parts too, where all else is seen as fine as it is and tokens are left."""
    boxes = scored(cells, list(found))
    if any(layer.side > NATIVE * patch for layer in found if layer.squares):
        return boxes
    return [*boxes, *blank_parts(cells, [box for box, _ in boxes], budget - len(boxes), patch)]


def blank_parts(cells: Cells, boxes: Sequence[Box], budget: int, patch: int) -> list[tuple[Box, float]]:
    """At most `budget` boxes over the cells that no other box holds, as fine as that allows."""
    if budget < 1:
        return []
    blank = ~held(cells, boxes)
    if not blank.any():
        return []
    span = finest_span(cells, blank, budget, patch)
    return scored(cells, [Layer(cover(rows_of(blank), span, budget), side_of(cells, span, patch))])


def held(cells: Cells, boxes: Sequence[Box]) -> np.ndarray:
    """(h, w): which cells have their middle in some box."""
    mask = np.zeros(cells.ink.shape, dtype=bool)
    tall, wide = cells.side
    for x0, y0, x1, y1 in boxes:
        top, bottom = (max(0, int(np.ceil(y / tall - 0.5 - 1e-6))) for y in (y0, y1))
        left, right = (max(0, int(np.ceil(x / wide - 0.5 - 1e-6))) for x in (x0, x1))
        mask[top:bottom, left:right] = True
    return mask
