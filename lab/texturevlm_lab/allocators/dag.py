"""Dag: a cut through groups of ink with shared parents (`hierarchy`), by the price of a token that a budget affords.

A price says which groups are refined, and so at which scale each cell is wanted. Squares of one scale are laid over all
groups together, across their borders, and cells that a finer square left are covered by a coarser one (`lay`),
so no hole opens. Of the cuts that fit the budget the best is kept: by what becomes legible, and by how few neighbours
differ in scale by a factor of two.

Groups of ink at every scale, each with the price per token at which it is worth being shown at that scale.

As in Nanite, what lies close together is refined together, as a group, and every scale is cut into groups anew, across
the borders of the scale above. So a group lies in several groups of the scale above, its parents, which other groups
share, and no border is one at all scales. A group is refined only where all of its parents are: scales change step by
step, and neighbours differ little.

A group's price is a monotone bound: never below that of a group under it. So the groups above one price, whatever it
is, form a cut: the parents of each are among them.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from texturevlm.allocate import search
from texturevlm.allocate.allocator import per_image
from texturevlm.allocate.cells import Array, Cells
from texturevlm.allocate.footprints import Boxes
from texturevlm.allocate.quadtree import break_even, price_ladder
from texturevlm.ops.cover import cover, rows_of
from texturevlm_lab.allocators.search import cracks, lay, shown_scale, tightened, value_of

CellBox = tuple[int, int, int, int]  # top, left, bottom, right, in cells
_GAP = 0.5  # of a token's side: a gap this wide separates two blocks of ink, which no group joins
_SLACK = 0.25  # of a group's side: how far a border moves to where the least ink is
_LEAST_COST = 0.1  # tokens: a refinement that costs less counts as this
_STEPS = 1.5  # scales per octave
_PRICES = (0.4, 0.7, 2.0)  # the least gain of a square, over that of the cheapest group that is refined: all are tried
_CRACKS = 0.3  # what a crack between all neighbours would cost, over the value of everything


@dataclass(frozen=True)
class Groups:
    """The groups of one scale, and their parents among the groups of the scale above.

    label: (cells with ink,), each cell's group
    gain:  (groups,), the mass that becomes legible when the group is refined from the scale above to this one
    extra: (groups,), the tokens that this takes
    child, parent, share: (edges,), a group, one that it lies in, and how much of its ink lies there
    """

    label: Array
    gain: Array
    extra: Array
    child: Array
    parent: Array
    share: Array


def hierarchy(cells: Cells, spans: Sequence[int]) -> list[Groups]:
    """The groups at each span after the first, at which all ink is one group; from coarse to fine."""
    ink, found = cells.ink, []
    label, tokens = np.zeros(np.count_nonzero(ink), dtype=np.int64), np.array([float(_count(ink, spans[0]))])
    lost = cells.lost(cells.scale(spans[0]))[ink]
    for step, span in enumerate(spans[1:]):
        above, above_tokens, above_lost = label, tokens, lost
        label, tokens = grouped(ink, span, shifted=step % 2 == 0)
        lost = cells.lost(cells.scale(span))[ink]
        pair, count = np.unique(label * len(above_tokens) + above, return_counts=True)
        child, parent = np.divmod(pair, len(above_tokens))
        saved = count / np.bincount(above)[parent] * above_tokens[parent]
        extra = np.maximum(tokens - np.bincount(child, saved), _LEAST_COST)
        share = count / np.bincount(label)[child]
        found.append(Groups(label, np.bincount(label, above_lost - lost), extra, child, parent, share))
    return found


def group_prices(generations: Sequence[Groups]) -> list[Array]:
    """Per scale the price of each group: the most that a token may cost if refining it, and groups under it, pays."""
    at = price_ladder(max((float((own.gain / own.extra).max()) for own in generations), default=0.0))
    found: list[Array] = []
    surplus, below = np.zeros((0, len(at))), None
    for own in reversed(generations):
        under, surplus = np.maximum(surplus, 0), own.gain[:, None] - own.extra[:, None] * at
        bound = np.zeros(len(own.gain))
        if below is not None:
            np.add.at(surplus, below.parent, below.share[:, None] * under[below.child])
            np.maximum.at(bound, below.parent, found[-1][below.child])
        found.append(np.maximum(bound, break_even(surplus, at)))
        below = own
    return found[::-1]


def grouped(ink: Array, span: int, *, shifted: bool) -> tuple[Array, Array]:
    """Each inked cell's group (cells with ink,), and how many squares of a span cover each group.

    Groups are about as wide and as tall as a token. shifted: whether their borders are moved by half a group. The
    squares of a block are shared by its groups, by their ink.
    """
    label, tokens = np.zeros(ink.shape, dtype=np.int64), list[float]()
    for block in _blocks(ink, math.ceil(_GAP * span)):
        inside = within(ink, block)
        per_cell = _count(inside, span) / np.count_nonzero(inside)
        for strip in _strips(ink, block, 0, span, shifted):
            for box in _strips(ink, strip, 1, span, shifted):
                within(label, box)[:] = len(tokens)
                tokens.append(per_cell * np.count_nonzero(within(ink, box)))
    return label[ink], np.array(tokens)


def _blocks(ink: Array, gap: int) -> list[CellBox]:
    """Tight boxes that hold all ink, none with a gap across."""
    done, waiting = [], [tight(ink, (0, 0, *ink.shape))]
    while waiting:
        box = waiting.pop()
        parts = at_gaps(ink, box, gap)
        waiting += [tight(ink, part) for part in parts]
        done += [] if parts else [box]
    return sorted(done)


def _strips(ink: Array, box: CellBox, axis: int, wide: int, shifted: bool) -> list[CellBox]:
    """Tight parts of a box along an axis, about `wide` cells each, cut where the least ink is near."""
    length = box[axis + 2] - box[axis]
    parts = math.ceil(length / wide)
    if parts == 1:
        return [box]
    amount, step, edges = within(ink, box).sum(1 - axis), length / parts, [0]
    for number in range(parts if shifted else parts - 1):
        middle = (number + (0.5 if shifted else 1.0)) * step
        first, last = math.ceil(middle - _SLACK * step), math.floor(middle + _SLACK * step)
        near = [place for place in range(first, last + 1) if edges[-1] < place < length]
        edges += [min(near, key=lambda place: (amount[place], abs(place - middle)))] if near else []
    pieces = [between(box, axis, *pair) for pair in zip(edges, [*edges[1:], length])]
    return [tight(ink, piece) for piece in pieces if within(ink, piece).any()]


def _count(ink: Array, span: int) -> int:
    return len(cover(rows_of(ink), span, ink.size))


def tight(ink: Array, box: CellBox) -> CellBox:
    """The smallest box around the ink (h, w) of a box, which has some."""
    for axis in (0, 1):
        (used,) = np.nonzero(within(ink, box).any(1 - axis))
        box = between(box, axis, int(used[0]), int(used[-1]) + 1)
    return box


def at_gaps(ink: Array, box: CellBox, gap: int) -> list[CellBox]:
    """The parts between gaps that cross the box from side to side; none if there is no gap."""
    for axis in (0, 1):
        used = within(ink, box).any(1 - axis).tobytes()
        if bytes(gap) in used:
            runs = re.finditer(rb"\x01(?:\x00{0,%d}\x01)*" % (gap - 1), used)  # fewer than `gap` zeros between ones
            return [between(box, axis, *run.span()) for run in runs]
    return []


def within(ink: Array, box: CellBox) -> Array:
    top, left, bottom, right = box
    return ink[top:bottom, left:right]


def between(box: CellBox, axis: int, first: int, last: int) -> CellBox:
    """The part of a box from `first` to `last` along an axis."""
    top, left, bottom, right = box
    return (top + first, left, top + last, right) if axis == 0 else (top, left + first, bottom, left + last)


@per_image()
def dag(cells: Cells, budget: int, *, overview: float = search.OVERVIEW) -> Boxes:
    """Groups of content with shared parents, refined from the dearest down as far as the budget goes."""
    ink, fitting = cells.ink, list[list[search.Layer]]()
    spans = search.ladder(search.floor_span(cells, budget, overview), cells.finest, _STEPS)
    generations = hierarchy(cells, spans)
    each = [own[groups.label] for own, groups in zip(group_prices(generations), generations)]
    price = np.stack(each) if each else np.zeros((0, np.count_nonzero(ink)))  # (scales, cells with ink)
    order = np.unique(price[price > 0])[::-1]

    def too_dear(least: float, count: int) -> bool:
        """Try a cut: the groups of the `count` highest prices are refined."""
        paid = float(order[count - 1]) if count else np.inf
        wanted = np.zeros(ink.shape, dtype=np.int64)
        wanted[ink] = np.array(spans)[(price >= paid).sum(0)]
        layers = tightened(cells, lay(cells, wanted, ink.size, least * paid) or [])
        beyond = sum(len(layer.squares) for layer in layers) > budget
        fitting.extend([] if beyond else [layers])
        return beyond

    for least in _PRICES:
        search.least(-1, len(order) + 1, partial(too_dear, least))
    return search.scored(cells, max(fitting, key=partial(_worth, cells)), budget)


def _worth(cells: Cells, layers: list[search.Layer]) -> float:
    return value_of(cells, layers) - _CRACKS * cracks(shown_scale(cells, layers), cells.ink)
