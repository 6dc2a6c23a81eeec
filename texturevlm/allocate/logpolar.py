"""Logpolar: tokens around fixations, coarser with distance as cortical magnification M(e) = M0 / (e + e0) falls.

Tokens at eccentricity e are proportional to 1 / M(e) wide: rings of sectors about a fixation, a sunflower spiral, or a
tiling. M0 is as large as the budget allows, but no token is finer than the image's pixels. Fixations are peaks of the
smoothed relevance, with inhibition of return.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np
import torch
from torch import Tensor

from texturevlm.allocate.allocator import allocator
from texturevlm.allocate.cells import Array, Cells
from texturevlm.allocate.footprints import either
from texturevlm.allocate.plain import fits_whole, resize
from texturevlm.allocate.retina import Retina, allocation_of_oriented
from texturevlm.allocate.tiling import capped, no_finer_than_pixels, tile
from texturevlm.allocate.value import expected_value
from texturevlm.check import check_choice, check_count
from texturevlm.relevance.maps import Relevance
from texturevlm.types import Allocation, Texture

PATTERNS = ("rings", "spiral", "tiling")
_E0_TRIED = (0.05, 0.2, 0.8)
_LEAST_PEAK = 0.1  # of the greatest peak: a lower one gets no fixation
_BLANK_SHARE = 0.02  # of its density that a blank cell keeps in a tiling

Fixations = int | Sequence[tuple[float, float]] | Tensor


@allocator()
def logpolar(
    texture: Texture,
    relevance: Relevance,
    *,
    budget: int,
    patch: int,
    fixations: Fixations = 4,
    pattern: str = "rings",
    e0: float | None = None,
    inhibition: float = 0.15,
    rotated: bool = False,
) -> Allocation:
    """Tokens around fixations; all ink lies in some token.

    fixations:  how many to choose by relevance, or where: (x, y) in pixels, the same for each image, or (B, F, 2)
    pattern:    rings, spiral, or tiling (the exact tiling of `foveate`, which covers blank parts by few tokens)
    e0:         the eccentricity at which tokens are twice as wide as at the fixation, in units of the image's longer
                side; None: of a few values, the one with the highest expected value
    inhibition: the least distance between two fixations, in units of the image's longer side
    rotated:    footprints lie along the radius; pretrained models read upright ones only
    """
    check_choice("logpolar", "pattern", pattern, PATTERNS)
    choices = _E0_TRIED if e0 is None else (e0,)
    for name, value in (("e0", choices[0]), ("inhibition", inhibition)):
        if not 1e-6 <= value <= 1e6:
            raise ValueError(f"logpolar: {name} must be between 1e-6 and 1e6, got {value!r}")
    if rotated and pattern == "tiling":
        raise ValueError("logpolar: rotated must be False for pattern 'tiling', got True")
    if fits_whole(texture, budget, patch):
        return resize(texture, relevance, budget=budget, patch=patch)
    every = [Cells.of(relevance, image, patch) for image in range(texture.batch)]
    points = [_points(fixations, cells, image, texture.batch, inhibition)[:budget] for image, cells in enumerate(every)]
    tried = []
    for one in choices:
        if pattern == "tiling":
            tried.append(_tiled(texture, every, points, budget, one))
            continue
        found = [
            Retina(cells, where, e0=one, spiral=pattern == "spiral", rotated=rotated).tokens(budget)
            for cells, where in zip(every, points)
        ]
        tried.append(allocation_of_oriented(found, texture.size, budget, patch).to(texture.device))
    return _best(tried, relevance)


def _best(tried: Sequence[Allocation], relevance: Relevance) -> Allocation:
    """Per image the allocation with the highest expected value; the first of equal ones."""
    if len(tried) == 1:
        return tried[0]
    best = torch.stack([expected_value(relevance, one) for one in tried]).argmax(0)
    return reduce(lambda found, number: either(best == number, tried[number], found), range(1, len(tried)), tried[0])


def peaks(mass: Array, count: int, radius: float) -> list[tuple[int, int]]:
    """Up to `count` peaks (row, column) of the smoothed mass (h, w), none within `radius` cells of another.

    Inhibition of return: the mass around each choice is reduced smoothly. Peaks that are much lower are left out.
    """
    smooth = mass
    for axis in (0, 1):
        smooth = _blurred(smooth, radius / 2, axis)
    y, x = np.indices(mass.shape)
    chosen: list[tuple[int, int]] = []
    least = _LEAST_PEAK * smooth.max()
    while len(chosen) < count and smooth.max() > least:
        row, column = divmod(int(smooth.argmax()), mass.shape[1])
        chosen.append((row, column))
        near = np.exp(-((y - row) ** 2 + (x - column) ** 2) / (2 * (radius / 2) ** 2))
        smooth = np.where((y - row) ** 2 + (x - column) ** 2 <= radius**2, 0.0, smooth * (1 - near))
    return chosen or [(mass.shape[0] // 2, mass.shape[1] // 2)]


def _blurred(values: Array, deviation: float, axis: int) -> Array:
    """Gaussian blur along one axis; 0 beyond the border."""
    position = np.arange(values.shape[axis])
    weights = np.exp(-((position[:, None] - position[None, :]) ** 2) / (2 * max(deviation, 1e-3) ** 2))
    weights /= weights.max(0) * max(deviation, 1.0)
    return np.asarray(weights @ values if axis == 0 else values @ weights)


def _points(fixations: Fixations, cells: Cells, image: int, batch: int, inhibition: float) -> Array:
    """(F, 2): x and y in pixels."""
    height, width = cells.size
    if isinstance(fixations, int):
        check_count("logpolar", "fixations", fixations, 1)
        radius = max(0.5, inhibition * max(cells.size) / max(cells.cell))
        found = peaks(cells.mass * cells.ink, fixations, radius)
        return np.array([((column + 0.5) * cells.cell[1], (row + 0.5) * cells.cell[0]) for row, column in found])
    given = torch.as_tensor(fixations, dtype=torch.float64).cpu()
    given = given[None].expand(batch, -1, -1) if given.dim() == 2 else given
    if given.dim() != 3 or given.shape[0] != batch or given.shape[1] < 1 or given.shape[2] != 2:
        raise ValueError(f"logpolar: fixations must be a number, (F, 2) or ({batch}, F, 2), got {tuple(given.shape)}")
    if not ((given >= 0) & (given <= torch.tensor([width, height]))).all():  # false for NaN too
        raise ValueError(f"logpolar: fixations must lie in the image, 0 … {width} × 0 … {height}, got {given.tolist()}")
    return np.asarray(given[image])


def _tiled(texture: Texture, every: Sequence[Cells], points: Sequence[Array], budget: int, e0: float) -> Allocation:
    """The tiling of `foveate` for several fixations: density by the nearest one, little in blank cells."""
    (height, width), patch = texture.size, every[0].patch
    wanted = np.stack([_magnified(cells, where, e0) for cells, where in zip(every, points)])
    area = every[0].cell[0] * every[0].cell[1]
    tokens = capped(torch.from_numpy(wanted), area, 1 / patch**2, budget)
    boxes = no_finer_than_pixels(tile(tokens, height, width, budget), patch, height, width)
    score = [cells.mass_in(boxes[image].numpy()) for image, cells in enumerate(every)]
    return Allocation.of_boxes(boxes, texture.size, patch, torch.tensor(np.stack(score)).float()).to(texture.device)


def _magnified(cells: Cells, points: Array, e0: float) -> Array:
    """(h, w): M² about the nearest fixation."""
    y, x = np.indices(cells.ink.shape) + 0.5
    dx, dy = (x * cells.cell[1])[..., None] - points[:, 0], (y * cells.cell[0])[..., None] - points[:, 1]
    eccentricity = np.hypot(dx, dy).min(-1) / max(cells.size)
    return np.asarray((eccentricity + e0) ** -2.0 * np.where(cells.ink, 1.0, _BLANK_SHARE))
