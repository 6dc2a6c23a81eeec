"""Pyramid: the budget split over the levels of the image by how hard its parts are to read.

Each cell needs a level: the coarsest at which it is legible. A level's share of the budget is what the cells that need
it gain by it. With its share a level covers its best cells, and passes on what it does not use. All other ink is shown
at the coarsest level, the overview. Levels are an octave apart; the first one may lie between two whole levels.
"""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from texturevlm.allocate.allocator import per_image
from texturevlm.allocate.cells import Array, Cells
from texturevlm.allocate.footprints import Boxes
from texturevlm.allocate.search import OVERVIEW, Layer, floor_span, scored
from texturevlm.ops.cover import cover, rows_of
from texturevlm_lab.allocators.search import best_squares, value_of

_FRACTIONS = (0.0, 1 / 3, 2 / 3)  # of an octave
_EASE = (1.4, 1.0, 0.7, 0.5)  # a cell needs samples this many times as wide as its legible_scale; each is tried


@per_image()
def pyramid(cells: Cells, budget: int, *, overview: float = OVERVIEW) -> Boxes:
    """The budget split over levels by difficulty; each level spends its share on its best cells."""
    floor = floor_span(cells, budget, overview) * max(cells.cell)
    found = []
    for fraction in _FRACTIONS:
        count = max(0, math.ceil(math.log2(max(floor / cells.patch, 1.0)) - fraction - 1e-6))
        sides = [cells.patch * 2 ** (fraction + level) for level in range(count + 1)]
        found += [by_shares(cells, needs(cells, sides, ease), sides, budget) for ease in _EASE]
    best = max(found, key=partial(value_of, cells))
    return scored(cells, best, budget)


def needs(cells: Cells, sides: Sequence[float], ease: float) -> Array:
    """(h, w): the coarsest level whose samples are at most `ease` · legible_scale wide; the finest if none is."""
    scales = np.array(sides) / cells.patch
    return np.asarray(np.maximum(np.searchsorted(scales, cells.legible_scale * ease, side="right") - 1, 0))


def level_shares(cells: Cells, needed: Array, sides: Sequence[float]) -> Array:
    """(levels - 1,): what the cells that need each level gain by it over the last one; sums to 1, or all 0."""
    coarsest = cells.legible(sides[-1] / cells.patch)
    gains = [
        (cells.legible(side / cells.patch) - coarsest)[needed == level].sum() for level, side in enumerate(sides[:-1])
    ]
    return np.array(gains) / max(float(np.sum(gains)), 1e-12)


def by_shares(cells: Cells, needed: Array, sides: Sequence[float], budget: int) -> list[Layer]:
    """Layers, finest first: each level's share spent on its best cells, the rest at the last level."""
    coarsest = cells.legible(sides[-1] / cells.patch)
    shares = level_shares(cells, needed, sides)
    reserve = len(cover(rows_of(cells.ink), cells.span(sides[-1]), budget))
    while True:
        covered = np.zeros(cells.ink.shape, dtype=bool)
        found, allowed, spent = [], 0.0, 0
        for level, (side, share) in enumerate(zip(sides, shares)):
            allowed += share * (budget - reserve)
            gain = np.where((needed == level) & ~covered, cells.legible(side / cells.patch) - coarsest, 0.0)
            squares = best_squares(gain, cells.span(side), int(allowed + 1e-6) - spent)
            spent += len(squares)
            found.append(Layer.square(cells, squares, side))
            covered |= found[-1].covered(cells)
        rest = cover(rows_of(cells.ink & ~covered), cells.span(sides[-1]), budget)
        if spent + len(rest) <= budget:
            return [*found, Layer.square(cells, rest, sides[-1])]
        reserve += spent + len(rest) - budget  # rarely, the rest needs more squares than all ink
