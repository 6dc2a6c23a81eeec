"""Layers: the most relevant cells covered finely, the rest of the ink covered coarsely.

Two numbers make an allocation: how fine the fine layer is, and how many of the best cells it covers. Fine samples on
few cells, or coarser samples on more: the choice with the higher expected legibility. For each of a few scales,
bisection finds how many cells the budget covers. If the fine layer covers all ink, that is `fit`. On a GPU a kernel
tries every scale and count at once (ops/cover.cu), with bit for bit the same result.
"""

import numpy as np
from torch import Tensor

from texturevlm.allocate import search
from texturevlm.allocate.allocator import allocator, each_image
from texturevlm.allocate.cells import Array, Cells, cells_of, places_in, runs_of
from texturevlm.allocate.footprints import Boxes, allocation_of_tokens
from texturevlm.ops import backend as backends
from texturevlm.relevance import UNIT, Relevance
from texturevlm.types import Allocation, Texture

WORTH_IT = 0.05  # of the mass must a second layer add; below that, one scale for everything


@allocator(capture="kernels")
def fit(texture: Texture, relevance: Relevance, *, budget: int, patch: int, backend: str = "auto") -> Allocation:
    """All ink at one scale, the finest at which the budget covers it; blank parts are left out."""
    return layers_by_kernel("fit", relevance, budget, patch, None, backend) or each_image(
        texture, relevance, budget, patch, lambda cells: fitted(cells, budget)
    )


@allocator(capture="kernels")
def layers(
    texture: Texture,
    relevance: Relevance,
    *,
    budget: int,
    patch: int,
    overview: float = search.OVERVIEW,
    backend: str = "auto",
) -> Allocation:
    """The most relevant cells finely, the other ink coarsely; the scale and the number of cells are searched."""
    return layers_by_kernel("layers", relevance, budget, patch, overview, backend) or each_image(
        texture, relevance, budget, patch, lambda cells: layered(cells, budget, overview)
    )


def layers_by_kernel(
    name: str,
    relevance: Relevance,
    budget: int,
    patch: int,
    overview: float | None,
    backend: str = "auto",
    skipped: Tensor | None = None,
) -> Allocation | None:
    """`layers` (or `fit`, overview None) of all images on a GPU, without waiting; None where the kernel cannot run.

    name:    of the allocator, for errors
    skipped: (B,) bool, images that get no tokens
    """
    if backends.choose("layers", relevance.mass, backend) != "cuda":
        return None
    from texturevlm.ops import cover_limit, layers_cuda

    if reason := cover_limit(relevance.grid, budget):
        if backend == "cuda":
            raise ValueError(f"{name}: backend 'cuda' cannot run here: {reason}")
        return None
    tokens = layers_cuda(
        relevance.mass.detach(),
        relevance.legible_scale.detach(),
        relevance.ink,
        size=relevance.size,
        budget=budget,
        patch=patch,
        floor_budget=None if overview is None else search.floor_budget(budget, overview),
        worth_it=int(WORTH_IT * UNIT),
        native=search.NATIVE,
        skipped=skipped,
    )
    return allocation_of_tokens(tokens, relevance.size, patch)


def fitted(cells: Cells, budget: int) -> Boxes:
    """`fit` for one image."""
    return search.scored(cells, [search.fitted_layer(cells, cells.ink, budget)], budget)


def layered(cells: Cells, budget: int, overview: float) -> Boxes:
    """`layers` for one image."""
    best = [search.fitted_layer(cells, cells.ink, budget)]
    span = best[0].span[0]
    floor = max(span, search.floor_span(cells, budget, overview))
    coarse = cells.worth(cells.scale(floor))
    most = int(cells.worth(cells.scale(span)).sum()) + int(WORTH_IT * UNIT)
    for finer in search.ladder(span, cells.finest):
        found, worth = _two_layers(cells, budget, finer, floor, coarse)
        if worth > most:
            best, most = found, worth
    if len(best) == 2 and best[1].squares:  # the coarse layer as fine as the unused tokens allow
        above, below = best
        rest, left = cells.ink & ~above.covered(cells), budget - len(above.squares)
        best = [above, search.fitted_layer(cells, rest, left, (above.span[0], below.span[0]))]
    return search.scored(cells, best, budget)


class CellRanking:
    """Cells by gain, the most first; those of equal gain, to seven bits, by position.

    A histogram of the keys says where a count ends, so that the kernel needs no sort. Runs are sorted by their greatest
    key, once, so that those below that end are not read.

    gain: (n, RUN), of the live runs; no other cell gains anything
    """

    KEYS = 1 << 12
    LEAST = 0x3F80 - 1  # the upper 16 bits of the float 1, less 1: no gain has the key 0

    def __init__(self, cells: Cells, gain: Array) -> None:
        upper = gain.astype(np.float32).view(np.int32) >> 16
        self.shape, self.live = cells.ink.shape, cells.live
        self.keys = np.maximum(upper - self.LEAST, 0).astype(np.int16)
        highest = self.keys.max(1, initial=0)
        self.order = highest.argsort(kind="stable")
        self.highest = highest[self.order]  # ascending
        self.beyond = np.bincount(self.keys.ravel(), minlength=self.KEYS + 1)[::-1].cumsum()[::-1]  # from a key on
        self.total = int(self.beyond[1])

    def first(self, count: int) -> Array:
        """(h, w) bool: about the first `count` cells; of the last key, an equal share of the image's positions."""
        if count == 0:
            return np.zeros(self.shape, dtype=bool)
        key = len(self.beyond) - 1 - int(np.searchsorted(self.beyond[::-1], count))
        above, here = int(self.beyond[key + 1]), int(self.beyond[key])
        size = self.shape[0] * self.shape[1]
        end = (count - above) * size // (here - above)
        passing = self.order[np.searchsorted(self.highest, key) :]
        own, some = self.keys[passing], self.live[passing]
        chosen = (own > key) | ((own == key) & (places_in(some, self.shape) < end))
        return cells_of(chosen, some, self.shape)


def _two_layers(cells: Cells, budget: int, span: int, floor: int, coarse: Array) -> tuple[list[search.Layer], int]:
    """As many of the best cells as the budget covers by `span`, the rest by `floor`, worth `coarse`; and the value."""
    gain = cells.worth(cells.scale(span)) - coarse
    ranking = CellRanking(cells, gain)

    def attempt(share: int) -> list[search.Layer] | None:
        above = search.Layer.over(cells, ranking.first(share * ranking.total >> search.BISECTIONS), span, budget)
        left = budget - len(above.squares)
        if left < 0:
            return None
        below = search.Layer.over(cells, cells.ink & ~above.covered(cells), floor, left)
        return [above, below] if len(below.squares) <= left else None

    found = search.furthest(attempt, 1 << search.BISECTIONS)
    if found is None:
        return [], -1
    return found, int(coarse.sum()) + int(gain[runs_of(found[0].covered(cells))[cells.live]].sum())
