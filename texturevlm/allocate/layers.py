"""Layers: the most relevant cells covered finely, the rest of what is not blank covered coarsely.

Two numbers make an allocation out of relevance maps: how fine the fine layer is, and how far down the ranking of cells
it reaches. Fine samples on few cells, or coarser ones on more: whichever is expected to let more of what matters be
made out. For each of a few scales the reach is found by bisection, since it is as far as the budget goes; to reach
everything is `fit`, and then nothing is left for the coarse layer to cover. Squares are whole cells wide, so that there
are only so many scales; on a GPU a kernel tries all that a bisection could ask for at once (ops/cuda/cover.cu).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from texturevlm.allocate.cells import UNIT, Cells, Square, each_image
from texturevlm.allocate.footprints import Box, allocation_of_tokens
from texturevlm.check import check_count
from texturevlm.ops import backend as backends
from texturevlm.ops.cover import cover, rows_of
from texturevlm.relevance.maps import Relevance
from texturevlm.types import Allocation, Texture

BISECTIONS = 10
SCALES_AN_OCTAVE = 3
FACTOR_BITS = 20
WORTH_IT = 0.05  # of all that matters: for less, no part of an image is left coarse that could be seen finer
OVERVIEW = 0.1  # of the budget, at most, is what the coarse layer would need for the whole image
NATIVE = 1.01  # times the pixels: as fine as they are


def fit(
    texture: Texture, relevance: Relevance, *, budget: int = 273, patch: int = 32, backend: str = "auto"
) -> Allocation:
    """Blank space dropped, the rest at one fractional scale: the finest at which the budget covers it."""
    options: Any = {"budget": budget, "patch": patch, "overview": None, "backend": backend}
    return layers_by_kernel("fit", relevance, **options) or each_image(
        texture, relevance, budget, patch, lambda cells: fitted(cells, budget, patch)
    )


def layers(
    texture: Texture,
    relevance: Relevance,
    *,
    budget: int = 273,
    patch: int = 32,
    overview: float = OVERVIEW,
    backend: str = "auto",
) -> Allocation:
    """The most relevant cells finely, the rest coarsely; how finely and how many is what the budget is best spent on.

    overview: the share of the budget that the coarse layer may need, were it to cover everything: it sets the floor of
              scale under which no part of the image falls that is not blank
    """
    if not 0 < overview <= 1:
        raise ValueError(f"layers: overview must be above 0 and at most 1, got {overview!r}")
    options: Any = {"budget": budget, "patch": patch, "overview": overview, "backend": backend}
    return layers_by_kernel("layers", relevance, **options) or each_image(
        texture, relevance, budget, patch, lambda cells: layered(cells, budget, patch, overview)
    )


def layers_by_kernel(
    name: str,
    relevance: Relevance,
    *,
    budget: int,
    patch: int,
    overview: float | None,
    backend: str = "auto",
    skipped: Tensor | None = None,
) -> Allocation | None:
    """`layers` of all images at once on a GPU, without waiting for it, or `fit` (overview None); None without kernels.

    name:    of the allocator, for complaints
    skipped: (B,) bool, images that get no tokens
    """
    check_count(name, "budget", budget, 1)
    check_count(name, "patch", patch, 1)
    if backends.choose("layers", relevance.mass, backend) != "cuda":
        return None
    from texturevlm.ops.cover_kernel import layers_cuda, no_kernel_because

    if reason := no_kernel_because(relevance.grid, budget):
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
        floor_budget=None if overview is None else floor_budget(budget, overview),
        worth_it=int(WORTH_IT * UNIT),
        native=NATIVE,
        skipped=skipped,
    )
    return allocation_of_tokens(tokens, relevance.size, patch)


@dataclass(frozen=True)
class Layer:
    """Squares of one side, in pixels."""

    squares: list[Square]
    side: float


def fitted(cells: Cells, budget: int, patch: int) -> list[tuple[Box, float]]:
    """`fit` for one image."""
    found = [_fit(cells, cells.ink, budget, patch)]
    return scored(cells, _with_blank(cells, found, budget, patch))


def layered(cells: Cells, budget: int, patch: int, overview: float) -> list[tuple[Box, float]]:
    """`layers` for one image."""
    best = [_fit(cells, cells.ink, budget, patch)]
    span = cells.span(best[0].side)
    floor = max(span, finest_span(cells, cells.ink, floor_budget(budget, overview), patch))
    coarse = cells.worth(cells.width(floor, patch) / patch)
    most = int(cells.worth(best[0].side / patch).sum()) + int(WORTH_IT * UNIT)
    for finer in ladder(span, cells.span(patch)):
        found, worth = _reach(cells, budget, finer, floor, coarse, patch)
        if worth > most:
            best, most = found, worth
    return scored(cells, _with_blank(cells, _finer_floor(cells, best, budget, patch), budget, patch))


def floor_budget(budget: int, overview: float) -> int:
    """How many tokens the coarse layer would take for the whole image."""
    return max(1, int(budget * overview))


def ladder(span: int, finest: int) -> list[int]:
    """The spans that a fine layer may have: from `span` cells down to `finest`, a few an octave."""
    spans = [span]
    for step in range(1, 1 + SCALES_AN_OCTAVE * span.bit_length()):
        spans.append(max(finest, span * int(2 ** (FACTOR_BITS - step / SCALES_AN_OCTAVE)) >> FACTOR_BITS))
    return [one for one, above in zip(spans, [0, *spans]) if one != above]


def finest_side(cells: Cells, mask: np.ndarray, budget: int, patch: int) -> float:
    """The least side, in pixels, of squares of which `budget` cover the mask; no finer than the image's pixels."""
    return cells.width(finest_span(cells, mask, budget, patch), patch)


def finest_span(cells: Cells, mask: np.ndarray, budget: int, patch: int) -> int:
    """The same in cells."""
    rows, finest = rows_of(mask), cells.span(patch)
    return bisected(finest - 1, max(finest, *mask.shape), lambda span: len(cover(rows, span, budget)) <= budget)


def bisected(low: int, high: int, enough: Callable[[int], bool]) -> int:
    """The least number above `low` that is enough, where all above one are; `high` is."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _fit(cells: Cells, mask: np.ndarray, budget: int, patch: int) -> Layer:
    span = finest_span(cells, mask, budget, patch)
    return Layer(cover(rows_of(mask), span, budget), cells.width(span, patch))


class Ranking:
    """Cells by what they gain, the most first; those of equal gain, to seven bits, from the first row to the last.

    How many cells have each key says where a count ends: no sort is needed.
    """

    KEYS = 1 << 12
    LEAST = 0x3F80 - 1  # the upper half of the float 1, less 1: nothing gained has the key 0

    def __init__(self, gain: np.ndarray) -> None:
        upper = gain.ravel().astype(np.float32).view(np.int32) >> 16
        self.shape = gain.shape
        self.keys = np.maximum(upper - self.LEAST, 0).astype(np.int16)
        self.beyond = np.bincount(self.keys, minlength=self.KEYS + 1)[::-1].cumsum()[::-1]  # cells from a key on
        self.total = int(self.beyond[1])

    def first(self, count: int) -> np.ndarray:
        """(h, w): the first `count` cells, or nearly: of the last key, the same share of the image's cells."""
        if count == 0:
            return np.zeros(self.shape, dtype=bool)
        key = len(self.beyond) - 1 - int(np.searchsorted(self.beyond[::-1], count))
        above, here = int(self.beyond[key + 1]), int(self.beyond[key])
        end = (count - above) * self.keys.size // (here - above)
        chosen = self.keys > key
        np.greater_equal(self.keys[:end], key, out=chosen[:end])
        return chosen.reshape(self.shape)


def _reach(cells: Cells, budget: int, span: int, floor: int, coarse: np.ndarray, patch: int) -> tuple[list[Layer], int]:
    """As many of the best cells as the budget covers by `span`, the others by `floor`; and what that is worth.

    coarse: (h, w), what `floor` shows
    """
    side = cells.width(span, patch)
    gain = cells.worth(side / patch) - coarse
    ranking = Ranking(gain)

    def attempt(share: int) -> tuple[list[Square], list[Square]] | None:
        above = cover(rows_of(ranking.first(share * ranking.total >> BISECTIONS)), span, budget)
        if len(above) > budget:
            return None
        below = cover(rows_of(cells.ink & ~cells.covered(above, span)), floor, budget - len(above))
        return None if len(above) + len(below) > budget else (above, below)

    low, high = 0, 1 << BISECTIONS
    found = attempt(high)
    if found is None:
        while high - low > 1:
            middle = (low + high) // 2
            tried = attempt(middle)
            low, high, found = (low, middle, found) if tried is None else (middle, high, tried)
    if found is None:
        return [], -1
    above, below = found
    worth = int(coarse.sum()) + int(gain[cells.covered(above, span)].sum())
    return [Layer(above, side), Layer(below, cells.width(floor, patch))], worth


def _finer_floor(cells: Cells, found: list[Layer], budget: int, patch: int) -> list[Layer]:
    """The coarse layer as fine as the tokens that are left allow."""
    if len(found) < 2 or not found[1].squares:
        return found
    above, below = found
    span = cells.span(above.side)
    rest = rows_of(cells.ink & ~cells.covered(above.squares, span))
    left = budget - len(above.squares)
    finer = bisected(span - 1, cells.span(below.side), lambda span: len(cover(rest, span, left)) <= left)
    return [above, Layer(cover(rest, finer, left), cells.width(finer, patch))]


def _with_blank(cells: Cells, found: list[Layer], budget: int, patch: int) -> list[Layer]:
    """Where all that is not blank is seen as fine as it is, the tokens that are left show the blank parts too."""
    left = budget - sum(len(layer.squares) for layer in found)
    if not left or any(layer.side > NATIVE * patch for layer in found if layer.squares):
        return found
    blank = ~np.logical_or.reduce([cells.covered(layer.squares, cells.span(layer.side)) for layer in found])
    return [*found, _fit(cells, blank, left, patch)]


def scored(cells: Cells, found: list[Layer]) -> list[tuple[Box, float]]:
    """Boxes with the mass of the cells in them, best first."""
    rows, masses = [], cells.masses()
    for layer in found:
        span = cells.span(layer.side)
        for square in layer.squares:
            row, column = square
            mass = masses[row : row + span, column : column + span].sum()
            rows.append((cells.box(square, layer.side), float(np.float32(mass)) / UNIT))
    return sorted(rows, key=lambda pair: -pair[1])
