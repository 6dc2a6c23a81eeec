"""Dag: clusters that follow content, each at a scale of its own, split where the gain per token is greatest.

As in Nanite, a coarse cluster is replaced by a group of finer ones where its error matters: by all of its children
together. Errors are bounds: no cluster's is below the sum of its children's. The root is all ink at the coarsest
scale. A cluster's children are a step finer, and are cut apart at gaps that a token of their scale would waste itself
on: blocks, then lines, then words. A cluster that is wider than a token is cut where it has the least ink. Squares
cover the ink tightly, so blank space costs nothing.

The hierarchy is a tree. In Nanite a group has several parents, because the border of a group must not change while its
neighbour is coarser; groups of each level have other borders, lest one border stays fine through all levels. Here
nothing must match at a border: the clusters of one span are covered together, across their borders, and a cell that a
finer square left is covered by a coarser one (`search.lay`). So no hole opens, and one parent is enough. What is left
at borders inside ink is a step from one scale to another (measured: results/merged.md).
"""

import math
import re
from collections import deque
from collections.abc import Sequence
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from texturevlm.allocate import search
from texturevlm.allocate.allocator import per_image
from texturevlm.allocate.cells import Array, CellBox, Cells, sum_in, summed
from texturevlm.allocate.footprints import Boxes
from texturevlm.allocate.forest import Forest
from texturevlm.ops.cover import cover, rows_of

_STEPS = 2.0  # scales per octave: how much finer children are than their parent
_GAP = 0.5  # of the side of the children's tokens: a gap this wide separates two clusters
_REACH = 1  # of the children's tokens: a cluster that is wider or taller is cut
_LEAST_ERROR = 0.005  # of the mean value of a token: a cluster that loses less has no children
_PRICES = (0.7, 2.0)  # the least gain of a square, in units of the best gain that was not bought: both are tried


@per_image()
def dag(cells: Cells, budget: int, *, overview: float = search.OVERVIEW) -> Boxes:
    """Clusters of content, split where the gain per token is greatest; each is covered tightly at its own scale."""
    spans = search.ladder(search.floor_span(cells, budget, overview), cells.finest, _STEPS)
    clusters = hierarchy(cells, spans, least_error=_LEAST_ERROR / budget)

    def attempt(nominal: int, price: float) -> list[search.Layer] | None:
        wanted = np.zeros(cells.ink.shape, dtype=np.int64)
        cut = clusters.forest.cut(nominal)
        for node in cut.tolist():
            top, left, bottom, right = clusters.boxes[node]
            wanted[top:bottom, left:right] = clusters.spans[node]
        slope = float(clusters.forest.slope[cut].max())
        return search.lay(cells, np.where(cells.ink, wanted, 0), budget, price * slope)

    found = [search.most_that_fits(cells, partial(attempt, price=price), budget) for price in _PRICES]
    best = max(found, key=partial(search.value_of, cells))
    return search.scored(cells, best, budget)


class Clusters(NamedTuple):
    """The hierarchy: boxes in cells, tight around their ink, and the span at which each cluster is covered."""

    forest: Forest
    boxes: list[CellBox]
    spans: list[int]


def hierarchy(cells: Cells, spans: Sequence[int], *, reach: int = _REACH, least_error: float = 0.0) -> Clusters:
    """All clusters, parents before children, from all ink at the first span down to the last span.

    A cluster that is covered at one span is cut by the next one, so that each part can be split or kept on its own. The
    parts share the tokens that cover them together, by their ink. No split gains more than its parent's error, so a
    cluster with an error of at most `least_error` gets no children.
    """
    ink, lost = cells.ink, cache(lambda span: summed(cells.lost(cells.scale(span))))
    rows: list[tuple[CellBox, int, int, float, float]] = []  # box, span, parent, cost, error
    waiting = deque([(-1, tight(ink, (0, 0, *ink.shape)), 0)])
    while waiting:
        parent, box, step = waiting.popleft()
        longest = max(box[2] - box[0], box[3] - box[1])
        span = min(spans[step], max(spans[-1], longest))  # a cluster that one token holds fills it
        finer = next((k for k in range(step + 1, len(spans)) if spans[k] < span), None)
        whole = _within(ink, box)
        tokens = len(cover(rows_of(whole), span, longest**2))
        narrowest = spans[-1 if finer is None else finer]
        for part in cut(ink, box, math.ceil(_GAP * narrowest), reach * narrowest):
            error = float(sum_in(lost(span), *part))
            if finer is not None and error > least_error:
                waiting.append((len(rows), part, finer))
            share = np.count_nonzero(_within(ink, part)) / np.count_nonzero(whole)
            rows.append((part, span, parent, tokens * share, error))
    boxes, covered_at, parents, cost, errors = zip(*rows)
    return Clusters(Forest(np.array(parents), np.array(cost), np.array(errors)), list(boxes), list(covered_at))


def tight(ink: Array, box: CellBox) -> CellBox:
    """The smallest box around the ink (h, w) of a box, which has some."""
    for axis in (0, 1):
        used = np.flatnonzero(_within(ink, box).any(1 - axis))
        box = _between(box, axis, int(used[0]), int(used[-1]) + 1)
    return box


def cut(ink: Array, box: CellBox, gap: int, reach: int) -> list[CellBox]:
    """Tight boxes that hold all ink of a tight box, none with a gap across or longer than `reach`."""
    done, waiting = [], [box]
    while waiting:
        box = waiting.pop()
        parts = _at_gaps(ink, box, gap) or _in_two(ink, box, reach)
        if parts:
            waiting += [tight(ink, part) for part in parts]
        else:
            done.append(box)
    return sorted(done)


def _at_gaps(ink: Array, box: CellBox, gap: int) -> list[CellBox]:
    """The parts between gaps that cross the box from side to side; none if there is no gap."""
    for axis in (0, 1):
        used = _within(ink, box).any(1 - axis).tobytes()
        if bytes(gap) in used:
            runs = re.finditer(rb"\x01(?:\x00{0,%d}\x01)*" % (gap - 1), used)  # fewer than `gap` zeros between ones
            return [_between(box, axis, *run.span()) for run in runs]
    return []


def _in_two(ink: Array, box: CellBox, reach: int) -> list[CellBox]:
    """Two parts of a box longer than `reach`, cut at the least ink in its middle third; none of a shorter box."""
    axis = 0 if box[2] - box[0] >= box[3] - box[1] else 1
    length = box[axis + 2] - box[axis]
    if length <= reach or length < 2:
        return []
    count = _within(ink, box).sum(1 - axis)
    low, high = length // 3, max(length // 3 + 1, length - length // 3)
    middle = (low + high - 1) / 2
    at = min(range(max(1, low), max(2, high)), key=lambda place: (count[place], abs(place - middle)))
    return [_between(box, axis, 0, at), _between(box, axis, at, length)]


def _within(ink: Array, box: CellBox) -> Array:
    top, left, bottom, right = box
    return ink[top:bottom, left:right]


def _between(box: CellBox, axis: int, first: int, last: int) -> CellBox:
    """The part of a box from `first` to `last` along an axis."""
    top, left, bottom, right = box
    return (top + first, left, top + last, right) if axis == 0 else (top, left + first, bottom, left + last)
