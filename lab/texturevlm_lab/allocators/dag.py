"""Dag: a cut through groups of ink with shared parents (`groups.py`), by the price of a token that a budget affords.

A price says which groups are refined, and so at which scale each cell is wanted. Squares of one scale are laid over all
groups together, across their borders, and cells that a finer square left are covered by a coarser one (`search.lay`),
so no hole opens. Of the cuts that fit the budget the best is kept: by what becomes legible, and by how few neighbours
differ in scale by a factor of two.
"""

from functools import partial

import numpy as np

from texturevlm.allocate import search
from texturevlm.allocate.allocator import per_image
from texturevlm.allocate.cells import Cells
from texturevlm.allocate.footprints import Boxes
from texturevlm.allocate.value import cracks
from texturevlm_lab.allocators.groups import group_prices, hierarchy

_STEPS = 1.5  # scales per octave
_PRICES = (0.4, 0.7, 2.0)  # the least gain of a square, over that of the cheapest group that is refined: all are tried
_CRACKS = 0.3  # what a crack between all neighbours would cost, over the value of everything


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
        layers = search.tightened(cells, search.lay(cells, wanted, ink.size, least * paid) or [])
        beyond = sum(len(layer.squares) for layer in layers) > budget
        fitting.extend([] if beyond else [layers])
        return beyond

    for least in _PRICES:
        search.least(-1, len(order) + 1, partial(too_dear, least))
    return search.scored(cells, max(fitting, key=partial(_worth, cells)), budget)


def _worth(cells: Cells, layers: list[search.Layer]) -> float:
    return search.value_of(cells, layers) - _CRACKS * cracks(search.shown_scale(cells, layers), cells.ink)
