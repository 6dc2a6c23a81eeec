"""Crops: an overview of the whole image and a few rectangles in more detail, each an ordinary grid of tokens.

No part mixes scales, so each looks to a model like a resized image or a cut-out of one. That is the safest choice for a
model that was trained on nothing else. The share of the overview, the number of rectangles, and the position, shape and
scale of each are searched for the highest expected legibility. The tokens of all grids add up to the budget.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from texturevlm.allocate.allocator import per_image
from texturevlm.allocate.cells import Array, Cells, sum_in, summed
from texturevlm.allocate.footprints import Boxes
from texturevlm.allocate.plain import TokenGrid
from texturevlm.allocate.search import NATIVE

_MOST = 4  # rectangles
_SHARES = (0.1, 0.2, 0.35, 0.6, 1.0)  # of the budget for the overview: each is tried
_SCALES_PER_OCTAVE = 2
_LONGEST = 8.0  # times as wide as tall, or as tall as wide
_SLACK = 0.85  # of its tokens must a crop use, so that shapes can be chosen; the last one uses them all
_POSITIONS = 64  # per axis, where a crop may begin


@per_image(cut_leftover=False)
def crops(cells: Cells, budget: int, *, overview: float = _SHARES[0]) -> Boxes:
    """The whole image at one coarse scale, and a few rectangles at finer ones; tokens row by row, part by part.

    overview: the least share of the budget that shows the whole image
    """
    best = crop_grids(cells, budget, overview)
    boxes = [box for crop in best for box in crop.boxes]
    (tall, wide), (rows, columns) = cells.cell, cells.ink.shape
    edges = np.rint(np.array(boxes) / (wide, tall, wide, tall)).astype(int)  # to the nearest whole cell
    left, top, right, bottom = np.clip(edges, 0, (columns, rows, columns, rows)).T
    return list(zip(boxes, sum_in(summed(cells.mass), top, left, bottom, right).tolist()))


def crop_grids(cells: Cells, budget: int, overview: float = _SHARES[0]) -> list[TokenGrid]:
    """The grids of an image, the overview first; their tokens add up to at most the budget."""
    best, greatest = [TokenGrid.whole(cells.size, budget, cells.patch)], -1.0
    if max(best[0].token) > NATIVE * cells.patch:
        shares = [overview, *(share for share in _SHARES if share > overview)]
        tried = [TokenGrid.whole(cells.size, max(1, round(budget * share)), cells.patch) for share in shares]
        for whole in dict.fromkeys(tried):
            left = budget - math.prod(whole.shape)
            for count in range(1, min(_MOST, left) + 1) if left else [0]:
                found, value = _with_crops(cells, whole, count, left)
                if value > greatest:
                    best, greatest = found, value
    return best


def _with_crops(cells: Cells, whole: TokenGrid, count: int, tokens: int) -> tuple[list[TokenGrid], float]:
    """An overview and `count` crops of `tokens` in all, each where it adds most; and their value, -1 if none fit."""
    found, legible = [whole], cells.legible(max(whole.token) / cells.patch)
    steps = int(math.log2(max(max(whole.token) / cells.patch, 1.0)) * _SCALES_PER_OCTAVE)
    sides = [cells.patch * 2 ** (step / _SCALES_PER_OCTAVE) for step in range(steps + 1)]
    for number in range(count):
        best = _best_crop(cells, legible, sides, tokens // (count - number), number == count - 1)
        if best is None:
            return found, -1.0
        crop, window = best
        found.append(crop)
        tokens -= math.prod(crop.shape)
        legible = legible.copy()
        legible[window] = np.maximum(legible[window], cells.legible(crop.token[0] / cells.patch)[window])
    return found, float(legible.sum())


def _best_crop(
    cells: Cells, legible: Array, sides: Sequence[float], tokens: int, exactly: bool
) -> tuple[TokenGrid, tuple[slice, slice]] | None:
    """The crop of that many tokens, or a few less, that adds most to the legible mass (h, w), and its cells."""
    best, greatest = None, -1.0
    for side in sides:
        table = summed(np.maximum(cells.legible(side / cells.patch) - legible, 0.0))
        most = [math.ceil(extent / side) for extent in cells.size]
        for shape in _shapes(tokens, exactly, most):
            grid = zip(shape, cells.cell, legible.shape)
            spans = [max(1, min(round(count * side / cell), extent)) for count, cell, extent in grid]
            room = [extent - span for extent, span in zip(legible.shape, spans)]
            top, left = map(_positions, room)
            bottom, right = top + spans[0], left + spans[1]
            gain = sum_in(table, top[:, None], left, bottom[:, None], right)
            row, column = np.unravel_index(gain.argmax(), gain.shape)
            if gain[row, column] > greatest:
                greatest = float(gain[row, column])
                corner = left[column] * cells.cell[1], top[row] * cells.cell[0]
                x, y, _, _ = cells.inside(*corner, shape[1] * side, shape[0] * side)
                crop = TokenGrid((y, x), shape, (side, side))
                best = crop, (slice(top[row], bottom[row]), slice(left[column], right[column]))
    return best


@lru_cache(maxsize=1024)
def _positions(last: int) -> Array:
    """The cells from 0 to `last` at which a crop may begin, ascending."""
    return np.unique(np.linspace(0, last, _POSITIONS).round().astype(int))


def _shapes(tokens: int, exactly: bool, most: Sequence[int]) -> list[tuple[int, int]]:
    """Rows and columns, at most `most`, that use nearly all tokens (or exactly all), not too long if possible."""
    pairs = [(rows, tokens // rows) for rows in range(1, tokens + 1)]
    fitting = [(r, c) for r, c in pairs if (r * c == tokens if exactly else r * c >= _SLACK * tokens)]
    short = [(r, c) for r, c in fitting if max(r, c) <= _LONGEST * min(r, c)] or fitting
    return [(r, c) for r, c in short if r <= most[0] and c <= most[1]]
