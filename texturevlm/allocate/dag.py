"""Dag: clusters that follow content, each at a scale of its own, split where relevance times detail lost is greatest.

As in Nanite, a coarse cluster is replaced by finer ones where its error matters. The root is all that is not blank, at
the floor of scale. A cluster's children are seen a step finer, and are cut apart at the gaps that a token of their
scale would waste itself on: blocks, then lines, then words, wherever they stand; a cluster that is wider than tokens
reach is cut where the least ink is. Squares cover its ink tightly, so blank space costs nothing.
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

from texturevlm.allocate.cells import Cells, each_image
from texturevlm.allocate.detail import Detail, summed
from texturevlm.allocate.footprints import Box
from texturevlm.allocate.layers import Layer
from texturevlm.allocate.spans import finest_span, ladder, lay, most_that_fits, side_of, value_of, with_scores
from texturevlm.allocate.traverse import Forest
from texturevlm.check import check_count
from texturevlm.ops.cover import cover, rows_of
from texturevlm.relevance.maps import Relevance
from texturevlm.types import Allocation, Texture

OVERVIEW = 0.1
STEPS = 2.0  # scales an octave
GAP = 0.5  # of a token's side: a gap as wide separates two clusters
REACH = 1  # tokens: a cluster that is wider or taller is cut
LEAST = 0.005  # of what a token is worth on average: a cluster that loses less is not looked into
THRIFT = (0.7, 2.0)  # what a token must gain to be laid, in units of the best gain that was not bought: both are tried

CellBox = tuple[int, int, int, int]  # top, left, bottom, right, in cells


def dag(
    texture: Texture,
    relevance: Relevance,
    *,
    budget: int = 273,
    patch: int = 32,
    overview: float = OVERVIEW,
    steps: float = STEPS,
    gap: float = GAP,
    reach: int = REACH,
) -> Allocation:
    """Clusters of content, split where the most is gained a token; each is covered tightly at its own scale.

    overview: the share of the budget that the root may cost: it sets the floor of scale under which no part of the
              image falls that is not blank
    steps:    scales an octave: how much finer children are than their parent
    gap:      in tokens of the children's scale: blank space as wide cuts a cluster
    reach:    in tokens of the children's scale: a cluster that is larger is cut
    """
    check_count("dag", "reach", reach, 1)
    if not 0 < overview <= 1:
        raise ValueError(f"dag: overview must be above 0 and at most 1, got {overview!r}")
    if not (steps > 0 and gap > 0):
        raise ValueError(f"dag: steps and gap must be above 0, got {steps!r} and {gap!r}")
    return each_image(
        texture, relevance, budget, patch, lambda cells: clustered(cells, budget, patch, overview, steps, gap, reach)
    )


def clustered(
    cells: Cells, budget: int, patch: int, overview: float, steps: float, gap: float, reach: int
) -> list[tuple[Box, float]]:
    """`dag` for one image."""
    detail = Detail(cells)
    floor = finest_span(cells, cells.ink, max(1, int(budget * overview)), patch)
    clusters = hierarchy(cells, detail, ladder(cells, floor, patch, steps), patch, gap, reach, LEAST / budget)

    def attempt(nominal: int, thrift: float) -> list[Layer] | None:
        wanted = np.zeros(cells.ink.shape, dtype=np.int64)
        cut = clusters.forest.cut(nominal)
        for node in cut.tolist():
            top, left, bottom, right = clusters.boxes[node]
            wanted[top:bottom, left:right] = clusters.spans[node]
        price = thrift * float(clusters.forest.slope[cut].max())
        return lay(cells, detail, np.where(cells.ink, wanted, 0), patch, budget, price)

    def worth(found: list[Layer]) -> float:
        return value_of(cells, detail, found, patch)

    best = max((most_that_fits(partial(attempt, thrift=thrift), worth, budget) for thrift in THRIFT), key=worth)
    return with_scores(cells, best, budget, patch)


@dataclass(frozen=True)
class Clusters:
    """The hierarchy: boxes in cells, tight around their ink, and the span at which each cluster is covered."""

    forest: Forest
    boxes: list[CellBox]
    spans: list[int]


def hierarchy(
    cells: Cells, detail: Detail, spans: Sequence[int], patch: int, gap: float, reach: int, least: float = 0.0
) -> Clusters:
    """All clusters, parents before their children, from the whole content at the first span down to the last.

    What is to be seen at one span is cut by the next, so that each part can be split, or left as it is, on its own; the
    parts share the tokens that cover them together, by their ink. No split gains more than its parent's error, so a
    cluster with less than `least` of it needs no children.
    """
    ink = Ink(cells.ink)
    boxes: list[CellBox] = []
    chosen: list[int] = []
    parents: list[int] = []
    cost: list[float] = []
    error: list[float] = []
    waiting = deque([(-1, ink.tight((0, 0, *cells.ink.shape)), 0)])
    while waiting:
        parent, box, step = waiting.popleft()
        longest = max(box[2] - box[0], box[3] - box[1])
        span = min(spans[step], max(spans[-1], longest))  # a cluster that one token holds fills it
        finer = next((k for k in range(step + 1, len(spans)) if spans[k] < span), None)
        tokens = len(cover(ink.rows(box), span, longest**2))
        cut = spans[-1 if finer is None else finer]
        scale = side_of(cells, span, patch) / patch
        for part in ink.cut(box, math.ceil(gap * cut), reach * cut):
            lost = detail.lost_in(part, scale)
            if finer is not None and lost > least:
                waiting.append((len(boxes), part, finer))
            boxes.append(part)
            chosen.append(span)
            parents.append(parent)
            cost.append(tokens * ink.count(part) / ink.count(box))
            error.append(lost)
    return Clusters(Forest(np.array(parents), np.array(cost), np.array(error)), boxes, chosen)


class Ink:
    """Which cells are not blank, in the forms that cutting needs."""

    def __init__(self, mask: np.ndarray) -> None:
        self._mask = mask
        self._table = summed(mask)
        self._rows = rows_of(mask)

    def rows(self, box: CellBox) -> list[int]:
        """The rows of a box, a bit a cell, as `cover` takes them."""
        top, left, bottom, right = box
        window = (1 << (right - left)) - 1
        return [(row >> left) & window for row in self._rows[top:bottom]]

    def count(self, box: CellBox) -> float:
        """How many cells of a box are not blank."""
        top, left, bottom, right = box
        table = self._table
        return float(table[bottom, right] - table[top, right] - table[bottom, left] + table[top, left])

    def tight(self, box: CellBox) -> CellBox:
        """The least box that holds the ink of a box, which has some."""
        top, left, bottom, _ = box
        rows = self.rows(box)
        together = reduce(or_, rows)
        first = next(index for index, row in enumerate(rows) if row)
        last = next(index for index, row in enumerate(reversed(rows)) if row)
        start = (together & -together).bit_length() - 1
        return top + first, left + start, bottom - last, left + together.bit_length()

    def cut(self, box: CellBox, gap: int, reach: int) -> list[CellBox]:
        """Tight boxes that hold all ink of a tight box, none with a gap across it or longer than `reach`."""
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
        """The parts between the gaps that cross the box from side to side; none if there is no gap."""
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
        """Two parts of a box that is longer than `reach`, cut where the least ink is in its middle third; else none."""
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
    """Where ones stand, from the first to after the last, each time that fewer than `gap` zeros lie between them."""
    return [found.span() for found in re.finditer(f"1(?:0{{0,{gap - 1}}}1)*", used)]
