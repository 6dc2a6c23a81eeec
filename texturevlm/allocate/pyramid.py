"""Pyramid: the budget split over the levels of the image by how hard its parts are to make out.

Each cell needs some level: the coarsest at which it can be made out. What the cells that need a level would gain by
it, all together, is the level's share of the budget; with its share a level covers its best cells, and hands on what is
left. What no level reached is shown at the coarsest, the overview. Levels are an octave apart; they are whole (1, 2, 4,
… pixels a sample), or begin at the fraction of an octave that is expected to let most be made out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from texturevlm.allocate.cells import Cells, Square, each_image
from texturevlm.allocate.detail import Detail
from texturevlm.allocate.footprints import Box
from texturevlm.allocate.layers import Layer
from texturevlm.allocate.spans import finest_span, value_of, with_scores
from texturevlm.ops.cover import cover, rows_of
from texturevlm.relevance.maps import Relevance
from texturevlm.types import Allocation, Texture

OVERVIEW = 0.1
FRACTIONS = (0.0, 1 / 3, 2 / 3)  # of an octave
EASE = (
    1.4,
    1.0,
    0.7,
    0.5,
)  # a cell needs samples this many times as wide as what half of it is made out with; each is tried
BISECTIONS = 8


def pyramid(
    texture: Texture,
    relevance: Relevance,
    *,
    budget: int = 273,
    patch: int = 32,
    overview: float = OVERVIEW,
    fractional: bool = True,
) -> Allocation:
    """The budget split over levels by difficulty; each level's share is spent on its best cells.

    overview:   the share of the budget that the coarsest level may cost, were it to cover everything: it sets the floor
                of scale under which no part of the image falls that is not blank
    fractional: whether the levels may begin between two whole ones
    """
    if not 0 < overview <= 1:
        raise ValueError(f"pyramid: overview must be above 0 and at most 1, got {overview!r}")
    fractions = FRACTIONS if fractional else (0.0,)
    return each_image(texture, relevance, budget, patch, lambda cells: split(cells, budget, patch, overview, fractions))


def split(
    cells: Cells, budget: int, patch: int, overview: float, fractions: Sequence[float]
) -> list[tuple[Box, float]]:
    """`pyramid` for one image."""
    detail = Detail(cells)
    floor = finest_span(cells, cells.ink, max(1, int(budget * overview)), patch) * max(cells.side)
    found = []
    for fraction in fractions:
        count = max(0, math.ceil(math.log2(max(floor / patch, 1.0)) - fraction - 1e-6))
        sides = [patch * 2 ** (fraction + level) for level in range(count + 1)]
        found += [share_out(cells, detail, needs(cells, sides, ease, patch), sides, budget, patch) for ease in EASE]
    best = max(found, key=lambda layers: value_of(cells, detail, layers, patch))
    return with_scores(cells, best, budget, patch)


def needs(cells: Cells, sides: Sequence[float], ease: float, patch: int) -> np.ndarray:
    """(h, w): the coarsest of the levels whose samples are at most `ease` · half wide; the finest where none is."""
    scales = np.array(sides) / patch
    return np.maximum(np.searchsorted(scales, cells.legible_scale * ease, side="right") - 1, 0)


def shares(detail: Detail, needed: np.ndarray, sides: Sequence[float], patch: int) -> np.ndarray:
    """(levels - 1,): what the cells that need each level would gain by it over the last one, summing to 1 or all 0."""
    coarsest = detail.seen(sides[-1] / patch)
    gains = [(detail.seen(side / patch) - coarsest)[needed == level].sum() for level, side in enumerate(sides[:-1])]
    return np.array(gains) / max(float(np.sum(gains)), 1e-12)


def share_out(
    cells: Cells, detail: Detail, needed: np.ndarray, sides: Sequence[float], budget: int, patch: int
) -> list[Layer]:
    """Layers, finest first: each level's share spent on its best cells, the rest at the last level."""
    coarsest = detail.seen(sides[-1] / patch)
    split_by = shares(detail, needed, sides, patch)
    reserve = len(cover(rows_of(cells.ink), cells.span(sides[-1]), budget))
    while True:
        covered = np.zeros(cells.ink.shape, dtype=bool)
        found, purse, spent = [], 0.0, 0
        for level, (side, share) in enumerate(zip(sides, split_by)):
            purse += share * (budget - reserve)
            gain = np.where((needed == level) & ~covered, detail.seen(side / patch) - coarsest, 0.0)
            squares = _best_cells(gain, cells.span(side), int(purse + 1e-6) - spent)
            spent += len(squares)
            covered |= cells.covered(squares, cells.span(side))
            found.append(Layer(squares, side))
        rest = cover(rows_of(cells.ink & ~covered), cells.span(sides[-1]), budget)
        if spent + len(rest) <= budget:
            return [*found, Layer(rest, sides[-1])]
        reserve += spent + len(rest) - budget  # what is left over may, rarely, need more squares than the whole


def _best_cells(gain: np.ndarray, span: int, tokens: int) -> list[Square]:
    """Squares over as many of the cells that gain most as a number of tokens covers."""
    order = np.argsort(-gain, axis=None, kind="stable")[: np.count_nonzero(gain > 0)]
    best: list[Square] = []
    low, high, middle = 0, len(order), len(order)
    for _ in range(BISECTIONS + 1):
        mask = np.zeros(gain.shape, dtype=bool)
        mask.flat[order[:middle]] = True
        squares = cover(rows_of(mask), span, max(tokens, 0))
        if len(squares) <= tokens:
            low, best = middle, squares
        else:
            high = middle
        if high - low <= 1:
            break
        middle = (low + high) // 2
    return best
