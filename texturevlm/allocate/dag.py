"""Dag: clusters that follow content, each at a scale of its own, split where the gain per token is greatest.

As in Nanite, a coarse cluster is replaced by finer ones where its error matters. The root is all ink at the coarsest
scale. A cluster's children are a step finer, and are cut apart at gaps that a token of their scale would waste itself
on: blocks, then lines, then words. A cluster that is wider than a few tokens is cut where it has the least ink. Squares
cover the ink tightly, so blank space costs nothing.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import or_

import numpy as np

from texturevlm.allocate.allocator import per_image
from texturevlm.allocate.cells import Array, CellBox, Cells, sum_in, summed
from texturevlm.allocate.footprints import Boxes
from texturevlm.allocate.forest import Forest
from texturevlm.allocate.search import (
    OVERVIEW,
    Layer,
    floor_span,
    ladder,
    lay,
    most_that_fits,
    scored,
    value_of,
    with_blank,
)
from texturevlm.check import check_count, check_share
from texturevlm.ops.cover import cover, rows_of

_STEPS = 2.0  # scales per octave
_GAP = 0.5  # of a token's side: a gap this wide separates two clusters
_REACH = 1  # tokens: a cluster that is wider or taller is cut
_LEAST_ERROR = 0.005  # of the mean value of a token: a cluster that loses less has no children
_PRICES = (0.7, 2.0)  # the least gain of a square, in units of the best gain that was not bought: both are tried


@per_image()
def dag(
    cells: Cells,
    budget: int,
    *,
    overview: float = OVERVIEW,
    steps: float = _STEPS,
    gap: float = _GAP,
    reach: int = _REACH,
) -> Boxes:
    """Clusters of content, split where the gain per token is greatest; each is covered tightly at its own scale.

    overview: the share of the budget that the root may take; it bounds the coarsest scale
    steps:    scales per octave: how much finer children are than their parent
    gap:      in tokens of the children's scale: blank space this wide cuts a cluster
    reach:    in tokens of the children's scale: a cluster that is larger is cut
    """
    check_count("dag", "reach", reach, 1)
    check_share("dag", "overview", overview)
    if not (steps > 0 and gap > 0):
        raise ValueError(f"dag: steps and gap must be above 0, got {steps!r} and {gap!r}")
    spans = ladder(floor_span(cells, budget, overview), cells.finest, steps)
    clusters = hierarchy(cells, spans, gap, reach, _LEAST_ERROR / budget)

    def attempt(nominal: int, price: float) -> list[Layer] | None:
        wanted = np.zeros(cells.ink.shape, dtype=np.int64)
        cut = clusters.forest.cut(nominal)
        for node in cut.tolist():
            top, left, bottom, right = clusters.boxes[node]
            wanted[top:bottom, left:right] = clusters.spans[node]
        slope = float(clusters.forest.slope[cut].max())
        return lay(cells, np.where(cells.ink, wanted, 0), budget, price * slope)

    found = [most_that_fits(cells, partial(attempt, price=price), budget) for price in _PRICES]
    best = max(found, key=lambda layers: value_of(cells, layers))
    return scored(cells, with_blank(cells, best, budget))


@dataclass(frozen=True)
class Clusters:
    """The hierarchy: boxes in cells, tight around their ink, and the span at which each cluster is covered."""

    forest: Forest
    boxes: list[CellBox]
    spans: list[int]


def hierarchy(cells: Cells, spans: Sequence[int], gap: float, reach: int, least_error: float = 0.0) -> Clusters:
    """All clusters, parents before children, from all ink at the first span down to the last span.

    A cluster that is covered at one span is cut by the next one, so that each part can be split or kept on its own. The
    parts share the tokens that cover them together, by their ink. No split gains more than its parent's error, so a
    cluster with an error of at most `least_error` gets no children.
    """
    ink = Ink(cells.ink)
    rows: list[tuple[CellBox, int, int, float, float]] = []  # box, span, parent, cost, error
    waiting = deque([(-1, ink.tight((0, 0, *cells.ink.shape)), 0)])
    while waiting:
        parent, box, step = waiting.popleft()
        longest = max(box[2] - box[0], box[3] - box[1])
        span = min(spans[step], max(spans[-1], longest))  # a cluster that one token holds fills it
        finer = next((k for k in range(step + 1, len(spans)) if spans[k] < span), None)
        tokens = len(cover(ink.rows(box), span, longest**2))
        cut = spans[-1 if finer is None else finer]
        for part in ink.cut(box, math.ceil(gap * cut), reach * cut):
            error = cells.lost_in(part, cells.scale(span))
            if finer is not None and error > least_error:
                waiting.append((len(rows), part, finer))
            rows.append((part, span, parent, tokens * ink.count(part) / ink.count(box), error))
    boxes, covered_at, parents, cost, errors = zip(*rows)
    return Clusters(Forest(np.array(parents), np.array(cost), np.array(errors)), list(boxes), list(covered_at))


class Ink:
    """Which cells have ink, in the forms that cutting needs."""

    def __init__(self, mask: Array) -> None:
        self._mask = mask
        self._table = summed(mask)
        self._rows = rows_of(mask)

    def rows(self, box: CellBox) -> list[int]:
        """The rows of a box, one bit per cell, as `cover` takes them."""
        top, left, bottom, right = box
        window = (1 << (right - left)) - 1
        return [(row >> left) & window for row in self._rows[top:bottom]]

    def count(self, box: CellBox) -> float:
        """How many cells of a box have ink."""
        return float(sum_in(self._table, *box))

    def tight(self, box: CellBox) -> CellBox:
        """The smallest box around the ink of a box, which has some."""
        top, left, bottom, _ = box
        rows = self.rows(box)
        together = reduce(or_, rows)
        first = next(index for index, row in enumerate(rows) if row)
        last = next(index for index, row in enumerate(reversed(rows)) if row)
        start = (together & -together).bit_length() - 1
        return top + first, left + start, bottom - last, left + together.bit_length()

    def cut(self, box: CellBox, gap: int, reach: int) -> list[CellBox]:
        """Tight boxes that hold all ink of a tight box, none with a gap across or longer than `reach`."""
        done, waiting = [], [box]
        while waiting:
            box = waiting.pop()
            parts = self._at_gaps(box, gap) or self._in_two(box, reach)
            if parts:
                waiting += [self.tight(part) for part in parts]
            else:
                done.append(box)
        return sorted(done)

    def _at_gaps(self, box: CellBox, gap: int) -> list[CellBox]:
        """The parts between gaps that cross the box from side to side; none if there is no gap."""
        top, left, bottom, right = box
        rows = self.rows(box)
        down = "".join("1" if row else "0" for row in rows)
        if "0" * gap in down:
            return [(top + first, left, top + last, right) for first, last in _runs(down, gap)]
        across = bin(reduce(or_, rows))[:1:-1]
        if "0" * gap in across:
            return [(top, left + first, bottom, left + last) for first, last in _runs(across, gap)]
        return []

    def _in_two(self, box: CellBox, reach: int) -> list[CellBox]:
        """Two parts of a box longer than `reach`, cut at the least ink in its middle third; none of a shorter box."""
        top, left, bottom, right = box
        axis = 0 if bottom - top >= right - left else 1
        length = box[axis + 2] - box[axis]
        if length <= reach or length < 2:
            return []
        ink = self._mask[top:bottom, left:right].sum(1 - axis)
        low, high = length // 3, max(length // 3 + 1, length - length // 3)
        middle = (low + high - 1) / 2
        at = min(range(max(1, low), max(2, high)), key=lambda place: (ink[place], abs(place - middle)))
        if axis == 0:
            return [(top, left, top + at, right), (top + at, left, bottom, right)]
        return [(top, left, bottom, left + at), (top, left + at, bottom, right)]


def _runs(used: str, gap: int) -> list[tuple[int, int]]:
    """Start and end of each run of ones with fewer than `gap` zeros between them."""
    return [found.span() for found in re.finditer(f"1(?:0{{0,{gap - 1}}}1)*", used)]
