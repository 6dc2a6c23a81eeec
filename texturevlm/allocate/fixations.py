"""Several looks: a cheap overview of everything first, then detail where the looks so far say that it pays.

Each look adds tokens and takes none back, so that a model that has read the first look reads on where it stopped. What
a look is to show finer is decided with what was seen before it: by how much of the mass is not yet readable, or by a
callback, such as a model that says where it is unsure after having seen the tokens so far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.allocate.cells import Cells
from texturevlm.allocate.footprints import Box, allocation_of, use_all
from texturevlm.allocate.layers import BISECTIONS, SCALES_AN_OCTAVE, Layer, fitted, scored
from texturevlm.allocate.value import delivered_scale
from texturevlm.check import check_count
from texturevlm.ops.cover import cover, rows_of
from texturevlm.ops.legibility import legibility
from texturevlm.relevance.maps import Relevance
from texturevlm.types import Allocation, Texture

MOST_LOOKS = 4
FIRST = 0.1  # of the budget
NATIVE = 1.01  # pixels a sample: up to this the image has nothing finer to give
LookAgain = Callable[[Allocation], Tensor]
Boxes = list[tuple[Box, float]]


def fixations(
    texture: Texture,
    relevance: Relevance,
    *,
    budget: int = 273,
    patch: int = 32,
    looks: int = 2,
    first: float = FIRST,
    look_again: LookAgain | None = None,
) -> Allocation:
    """Tokens in the order of the looks: those of one look are the first of all that come after it.

    looks:      1 to 4; how many tokens each has is `tokens_by_look`
    first:      the share of the budget that the overview gets
    look_again: called before each later look with an Allocation of the tokens so far; returns a map (B, h, w), at least
                0, of where to look now. If None, where most of the mass cannot be made out yet
    """
    counts = tokens_by_look(budget, looks=looks, first=first)
    check_count("fixations", "patch", patch, 1)
    found: list[Boxes] = [[] for _ in range(texture.batch)]
    for look, count in enumerate(counts):
        maps = relevance
        if look and look_again is not None:
            maps = _pointed(relevance, look_again(_so_far(found, texture, patch)))
        for image, boxes in enumerate(found):
            cells = Cells.of(maps, image)
            while len(boxes) < count:
                left = count - len(boxes)
                added = _closer(cells, _seen(cells, boxes, patch), left, patch) if boxes else fitted(cells, left, patch)
                if not added:  # the image has nothing finer to give
                    break
                boxes += use_all(added, budget=left, patch=patch)
    return allocation_of(found, texture.size, budget=budget, patch=patch, device=texture.device)


def tokens_by_look(budget: int, *, looks: int = 2, first: float = FIRST) -> list[int]:
    """How many tokens there are after each look: the share `first` of the budget, then equal parts of the rest."""
    check_count("fixations", "budget", budget, 1)
    check_count("fixations", "looks", looks, 1, MOST_LOOKS)
    if not 0 < first <= 1:
        raise ValueError(f"fixations: first must be above 0 and at most 1, got {first!r}")
    if looks == 1:
        return [budget]
    overview = max(1, round(first * budget))
    return [overview + (budget - overview) * look // (looks - 1) for look in range(looks)]


def _so_far(found: Sequence[Boxes], texture: Texture, patch: int) -> Allocation:
    most = max(len(boxes) for boxes in found)
    return allocation_of(found, texture.size, budget=most, patch=patch, device=texture.device)


def _pointed(relevance: Relevance, wanted: Tensor) -> Relevance:
    """The relevance with another mass: a map of any extent, on the cells, summing to 1; unchanged where it is all 0."""
    batch = relevance.mass.shape[0]
    if wanted.dim() != 3 or wanted.shape[0] != batch or not wanted.numel():
        raise ValueError(f"fixations: look_again must return ({batch}, h, w), got {tuple(wanted.shape)}")
    if not bool(torch.isfinite(wanted).all()) or bool((wanted < 0).any()):
        raise ValueError("fixations: look_again must return numbers of at least 0, got others")
    on_cells = functional.interpolate(
        wanted[:, None].to(relevance.mass), relevance.grid, mode="bilinear", antialias=True
    )
    mass = on_cells[:, 0].clamp(min=0)
    total = mass.sum((1, 2), keepdim=True)
    return replace(relevance, mass=torch.where(total > 0, mass / total.clamp(min=1e-30), relevance.mass))


def _seen(cells: Cells, boxes: Boxes, patch: int) -> np.ndarray:
    """(h, w): pixels a sample so far; infinite where there is none."""
    so_far = allocation_of([boxes], cells.size, budget=len(boxes), patch=patch, device=torch.device("cpu"))
    rows, columns = cells.ink.shape
    return np.asarray(delivered_scale(so_far, (rows, columns))[0])


def _closer(cells: Cells, seen: np.ndarray, budget: int, patch: int) -> Boxes:
    """The squares of one side that add most to what is seen; the side is what the tokens are best spent on.

    seen: (h, w), pixels a sample so far
    """
    known = legibility(cells.legible_scale, seen)
    wanted = np.where(cells.ink, cells.mass, 0.0)
    if not (wanted * (seen > NATIVE)).any():  # all that matters is seen as it is: the rest, and what is blank
        wanted = np.ones_like(wanted)
    wanted = wanted * (seen > NATIVE)
    if not wanted.any():
        return []
    side = max(float(patch), float(np.minimum(seen[wanted > 0], cells.coarsest / patch).max()) * patch)
    best, most = Layer([], side), -1.0
    while True:
        gain = wanted * np.maximum(cells.legibility(side / patch) - known, 0)
        squares = _reach(cells, gain, cells.span(side), budget)
        worth = float(gain[cells.covered(squares, cells.span(side))].sum())
        if squares and worth > most:
            best, most = Layer(squares, side), worth
        if side <= patch:
            break
        side = max(float(patch), side / 2 ** (1 / SCALES_AN_OCTAVE))
    return scored(cells, [best])


def _reach(cells: Cells, gain: np.ndarray, span: int, budget: int) -> list[tuple[int, int]]:
    """Squares over as many of the cells of most gain as the budget covers."""
    order = np.argsort(-gain, axis=None, kind="stable")[: np.count_nonzero(gain > 0)]
    best = [divmod(int(cell), gain.shape[1]) for cell in order[:1]]
    low, high = 1, len(order)
    for step in range(BISECTIONS + 1):
        count = high if step == 0 else (low + high) // 2
        mask = np.zeros(gain.shape, dtype=bool)
        mask.flat[order[:count]] = True
        squares = cover(rows_of(mask), span, budget)
        if len(squares) <= budget:
            best, low = squares, count
            if step == 0:
                break
        else:
            high = count
    return best
