"""The tree of clusters that `dag` was before its groups had several parents: the baseline of
texturevlm_lab.studies.hierarchies.

The root is all ink at the coarsest scale. The children of a cluster are a step finer, and lie inside it: it is cut
apart at gaps that a token of their scale would waste itself on, and, where a part is wider than a token, at the least
ink. A cluster is replaced by all of its children together, where the gain per token is greatest. The same as
texturevlm/allocate/dag.py at 6ac5369.
"""

import math
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
from texturevlm.allocate.groups import at_gaps, between, tight, within
from texturevlm.ops.cover import cover, rows_of

_STEPS = 2.0  # scales per octave: how much finer children are than their parent
_GAP = 0.5  # of the side of the children's tokens: a gap this wide separates two clusters
_LEAST_ERROR = 0.005  # of the mean value of a token: a cluster that loses less has no children
_PRICES = (0.7, 2.0)  # the least gain of a square, in units of the best gain that was not bought: both are tried


@per_image()
def cluster_tree(cells: Cells, budget: int, *, overview: float = search.OVERVIEW) -> Boxes:
    """Clusters of content, split where the gain per token is greatest; each is covered tightly at its own scale."""
    spans = search.ladder(search.floor_span(cells, budget, overview), cells.finest, _STEPS)
    clusters = _hierarchy(cells, spans, least_error=_LEAST_ERROR / budget)

    def attempt(nominal: int, price: float) -> list[search.Layer] | None:
        wanted = np.zeros(cells.ink.shape, dtype=np.int64)
        chosen = clusters.forest.cut(nominal)
        for node in chosen.tolist():
            within(wanted, clusters.boxes[node])[:] = clusters.spans[node]
        slope = float(clusters.forest.slope[chosen].max())
        return search.lay(cells, np.where(cells.ink, wanted, 0), budget, price * slope)

    found = [search.most_that_fits(cells, partial(attempt, price=price), budget) for price in _PRICES]
    return search.scored(cells, max(found, key=partial(search.value_of, cells)), budget)


class _Clusters(NamedTuple):
    """The hierarchy: boxes in cells, tight around their ink, and the span at which each cluster is covered."""

    forest: Forest
    boxes: list[CellBox]
    spans: list[int]


def _hierarchy(cells: Cells, spans: Sequence[int], *, least_error: float) -> _Clusters:
    """All clusters, parents before children, from all ink at the first span down to the last span.

    The parts of a cluster share the tokens that cover them together, by their ink. No split gains more than its
    parent's error, so a cluster with an error of at most `least_error` gets no children.
    """
    ink, lost = cells.ink, cache(lambda span: summed(cells.lost(cells.scale(span))))
    rows: list[tuple[CellBox, int, int, float, float]] = []  # box, span, parent, cost, error
    waiting = deque([(-1, tight(ink, (0, 0, *ink.shape)), 0)])
    while waiting:
        parent, box, step = waiting.popleft()
        longest = max(box[2] - box[0], box[3] - box[1])
        span = min(spans[step], max(spans[-1], longest))  # a cluster that one token holds fills it
        finer = next((k for k in range(step + 1, len(spans)) if spans[k] < span), None)
        whole = within(ink, box)
        tokens = len(cover(rows_of(whole), span, longest**2))
        narrowest = spans[-1 if finer is None else finer]
        for part in _cut(ink, box, math.ceil(_GAP * narrowest), narrowest):
            error = float(sum_in(lost(span), *part))
            if finer is not None and error > least_error:
                waiting.append((len(rows), part, finer))
            share = np.count_nonzero(within(ink, part)) / np.count_nonzero(whole)
            rows.append((part, span, parent, tokens * share, error))
    boxes, covered_at, parents, cost, errors = zip(*rows)
    return _Clusters(Forest(np.array(parents), np.array(cost), np.array(errors)), list(boxes), list(covered_at))


def _cut(ink: Array, box: CellBox, gap: int, reach: int) -> list[CellBox]:
    """Tight boxes that hold all ink of a tight box, none with a gap across or longer than `reach`."""
    done, waiting = [], [box]
    while waiting:
        box = waiting.pop()
        parts = at_gaps(ink, box, gap) or _in_two(ink, box, reach)
        waiting += [tight(ink, part) for part in parts]
        done += [] if parts else [box]
    return sorted(done)


def _in_two(ink: Array, box: CellBox, reach: int) -> list[CellBox]:
    """Two parts of a box longer than `reach`, cut at the least ink in its middle third; none of a shorter box."""
    axis = 0 if box[2] - box[0] >= box[3] - box[1] else 1
    length = box[axis + 2] - box[axis]
    if length <= reach or length < 2:
        return []
    count = within(ink, box).sum(1 - axis)
    low, high = length // 3, max(length // 3 + 1, length - length // 3)
    middle = (low + high - 1) / 2
    at = min(range(max(1, low), max(2, high)), key=lambda place: (count[place], abs(place - middle)))
    return [between(box, axis, 0, at), between(box, axis, at, length)]
