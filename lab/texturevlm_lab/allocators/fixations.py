"""Fixations: a coarse overview first, then detail where the tokens so far are not enough.

Each look adds tokens and removes none, so a model that has read the first look can continue from its cache. A later
look goes to the mass that is not legible yet.
"""

import numpy as np

from texturevlm.allocate.allocator import per_image
from texturevlm.allocate.cells import Array, Cells
from texturevlm.allocate.footprints import Boxes, use_all
from texturevlm.allocate.layers import fitted
from texturevlm.allocate.search import NATIVE, SCALES_PER_OCTAVE, Layer, scored
from texturevlm.check import check_count
from texturevlm.relevance.maps import legibility
from texturevlm_lab.allocators.search import best_squares, scale_of_boxes

_MOST_LOOKS = 4
_FIRST = 0.1  # of the budget


@per_image(cut_leftover=False)
def fixations(cells: Cells, budget: int, *, looks: int = 2, first: float = _FIRST) -> Boxes:
    """Tokens in the order of the looks: the tokens of a look come before those of later looks.

    looks: 1 to 4; `tokens_by_look` says how many tokens each has
    first: the share of the budget that the overview gets
    """
    found: Boxes = []
    for count in tokens_by_look(budget, looks=looks, first=first):
        while (left := count - len(found)) > 0:
            added = _closer(cells, scale_of_boxes(cells, found), left) if found else fitted(cells, left)
            if not added:  # the image has nothing finer to show
                break
            found += use_all(added, budget=left, patch=cells.patch)
    return found


def tokens_by_look(budget: int, *, looks: int = 2, first: float = _FIRST) -> list[int]:
    """The number of tokens after each look: the share `first` of the budget, then equal parts of the rest."""
    check_count("fixations", "looks", looks, 1, _MOST_LOOKS)
    if looks == 1:
        return [budget]
    overview = max(1, round(first * budget))
    return [overview + (budget - overview) * look // (looks - 1) for look in range(looks)]


def _closer(cells: Cells, scale: Array, budget: int) -> Boxes:
    """The squares of one size, of several, that add most legibility. scale: (h, w), pixels per sample so far."""
    known = legibility(cells.legible_scale, scale)
    wanted = cells.inked_mass * (scale > NATIVE)
    if not wanted.any():  # all ink is shown at the image's resolution: now the rest
        wanted = np.ones_like(wanted) * (scale > NATIVE)
    if not wanted.any():
        return []
    coarsest = float(np.minimum(scale[wanted > 0], cells.coarsest / cells.patch).max())
    side = max(float(cells.patch), coarsest * cells.patch)
    best, most = Layer.square(cells, [], side), -1.0
    while True:
        gain = wanted * np.maximum(legibility(cells.legible_scale, side / cells.patch) - known, 0)
        squares = best_squares(gain, cells.span(side), budget) or [divmod(int(gain.argmax()), gain.shape[1])]
        layer = Layer.square(cells, squares, side)
        worth = float(gain[layer.covered(cells)].sum())
        if gain.any() and worth > most:
            best, most = layer, worth
        if side <= cells.patch:
            return scored(cells, [best])
        side = max(float(cells.patch), side / 2 ** (1 / SCALES_PER_OCTAVE))
