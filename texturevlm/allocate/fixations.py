"""Fixations: a coarse overview first, then detail where the tokens so far are not enough.

Each look adds tokens and removes none, so a model that has read the first look can continue from its cache. Where a
later look goes depends on the tokens so far: to the mass that is not legible yet, or to where a callback points (for
example a model that is unsure).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.allocate.allocator import allocator
from texturevlm.allocate.cells import Array, Cells
from texturevlm.allocate.footprints import Boxes, allocation_of, use_all
from texturevlm.allocate.layers import fitted
from texturevlm.allocate.search import NATIVE, SCALES_PER_OCTAVE, Layer, best_squares, scored
from texturevlm.allocate.value import delivered_scale
from texturevlm.check import check_count, check_share
from texturevlm.ops.legibility import legibility
from texturevlm.relevance.maps import Relevance
from texturevlm.types import Allocation, Texture

_MOST_LOOKS = 4
_FIRST = 0.1  # of the budget
LookAgain = Callable[[Allocation], Tensor]


@allocator()
def fixations(
    texture: Texture,
    relevance: Relevance,
    *,
    budget: int,
    patch: int,
    looks: int = 2,
    first: float = _FIRST,
    look_again: LookAgain | None = None,
) -> Allocation:
    """Tokens in the order of the looks: the tokens of a look come before those of later looks.

    looks:      1 to 4; `tokens_by_look` says how many tokens each has
    first:      the share of the budget that the overview gets
    look_again: called before each later look with an Allocation of the tokens so far; returns a map (B, h, w), at least
                0, of where to look next. None: where most mass is not legible yet
    """
    found: list[Boxes] = [[] for _ in range(texture.batch)]
    for look, count in enumerate(tokens_by_look(budget, looks=looks, first=first)):
        maps = relevance
        if look and look_again is not None:
            most = max(len(boxes) for boxes in found)
            so_far = allocation_of(found, texture.size, budget=most, patch=patch, device=texture.device)
            maps = _pointed(relevance, look_again(so_far))
        for image, boxes in enumerate(found):
            cells = Cells.of(maps, image, patch)
            while (left := count - len(boxes)) > 0:
                added = _closer(cells, _scale_so_far(cells, boxes), left) if boxes else fitted(cells, left)
                if not added:  # the image has nothing finer to show
                    break
                boxes += use_all(added, budget=left, patch=patch)
    return allocation_of(found, texture.size, budget=budget, patch=patch, device=texture.device)


def tokens_by_look(budget: int, *, looks: int = 2, first: float = _FIRST) -> list[int]:
    """The number of tokens after each look: the share `first` of the budget, then equal parts of the rest."""
    check_count("fixations", "budget", budget, 1)
    check_count("fixations", "looks", looks, 1, _MOST_LOOKS)
    check_share("fixations", "first", first)
    if looks == 1:
        return [budget]
    overview = max(1, round(first * budget))
    return [overview + (budget - overview) * look // (looks - 1) for look in range(looks)]


def _pointed(relevance: Relevance, wanted: Tensor) -> Relevance:
    """The relevance with a map of any extent as its mass; unchanged for images where the map is all 0."""
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


def _scale_so_far(cells: Cells, boxes: Boxes) -> Array:
    """(h, w): pixels per sample of the boxes; infinite where there is none."""
    so_far = allocation_of([boxes], cells.size, budget=len(boxes), patch=cells.patch, device=torch.device("cpu"))
    rows, columns = cells.ink.shape
    return np.asarray(delivered_scale(so_far, (rows, columns))[0])


def _closer(cells: Cells, scale: Array, budget: int) -> Boxes:
    """The squares of one size that add most legibility; several sizes are tried.

    scale: (h, w), pixels per sample so far
    """
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
            break
        side = max(float(cells.patch), side / 2 ** (1 / SCALES_PER_OCTAVE))
    return scored(cells, [best])
