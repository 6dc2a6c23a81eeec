"""A retina: finest around one or more fixations, coarser with distance, as cortical magnification M(e) = M0 / (e + e0).

The samples at eccentricity e are 1 / M(e) wide, and so are the tokens: rings of sectors about a fixation, or the seeds
of a sunflower. M0 is not chosen: it is as great as the budget allows, and never makes a token finer than the image's
pixels. Fixations are where most of the mass lies together; having looked there, the eye goes elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from texturevlm.allocate.cells import Cells
from texturevlm.allocate.plain import resize
from texturevlm.allocate.retina import Retina, allocation_of_tokens
from texturevlm.allocate.tiling import capped, no_finer_than_pixels, tile
from texturevlm.allocate.value import expected_value
from texturevlm.check import check_choice, check_count
from texturevlm.relevance.maps import Relevance
from texturevlm.types import Allocation, Texture

PATTERNS = ("rings", "spiral", "tiling")
E0_TRIED = (0.05, 0.2, 0.8)
WORTH_A_LOOK = 0.1  # of the greatest peak: a lesser one gets no fixation
BLANK_SHARE = 0.02  # of the density that a blank cell of a tiling keeps

Fixations = int | Sequence[tuple[float, float]] | Tensor


def logpolar(
    texture: Texture,
    relevance: Relevance,
    *,
    budget: int = 273,
    patch: int = 32,
    fixations: Fixations = 4,
    pattern: str = "rings",
    e0: float | None = None,
    inhibition: float = 0.15,
    rotated: bool = False,
) -> Allocation:
    """Tokens around fixations, and everything that is not blank in some token.

    fixations:  how many to choose by relevance, or where: (x, y) in pixels, the same for each image, or (B, F, 2)
    pattern:    rings, spiral, or tiling (`foveate`'s, exact: blank parts are covered too, by few tokens)
    e0:         the eccentricity at which tokens are twice as wide as at the fixation, in longer sides of the image; if
                None, the one of a few that is expected to show most
    inhibition: how far from a fixation there is no other, in longer sides of the image
    rotated:    footprints lie along the radius; a pretrained model reads upright ones only
    """
    check_count("logpolar", "budget", budget, 1)
    check_count("logpolar", "patch", patch, 1)
    check_choice("logpolar", "pattern", pattern, PATTERNS)
    choices = E0_TRIED if e0 is None else (e0,)
    for name, value in (("e0", choices[0]), ("inhibition", inhibition)):
        if not 1e-6 <= value <= 1e6:
            raise ValueError(f"logpolar: {name} must be between 1e-6 and 1e6, got {value!r}")
    if rotated and pattern == "tiling":
        raise ValueError("logpolar: rotated must be False for pattern 'tiling', got True")
    if budget * patch * patch >= texture.size[0] * texture.size[1]:  # all of it at its own resolution
        return resize(texture, relevance, budget=budget, patch=patch)
    every = [Cells.of(relevance, image) for image in range(texture.batch)]
    points = [_points(fixations, cells, image, texture.batch, inhibition)[:budget] for image, cells in enumerate(every)]
    tried = []
    for one in choices:
        if pattern == "tiling":
            tried.append(_tiled(texture, every, points, budget, patch, one))
            continue
        found = [
            Retina(cells, where, patch=patch, e0=one, spiral=pattern == "spiral", rotated=rotated).tokens(budget)
            for cells, where in zip(every, points)
        ]
        tried.append(allocation_of_tokens(found, texture.size, budget=budget, patch=patch, device=texture.device))
    return _best(tried, relevance)


def _best(tried: Sequence[Allocation], relevance: Relevance) -> Allocation:
    """For each image the allocation that is expected to show most; the first of equals."""
    if len(tried) == 1:
        return tried[0]
    best = torch.stack([expected_value(relevance, one) for one in tried]).argmax(0)
    image = torch.arange(len(best), device=best.device)
    columns: Any = {
        name: torch.stack([getattr(one, name) for one in tried])[best, image]
        for name in ("centre", "ddx", "ddy", "score", "valid", "source")
    }
    return replace(tried[0], **columns)


def peaks(mass: np.ndarray, count: int, radius: float) -> list[tuple[int, int]]:
    """Up to `count` cells (row, column) where most mass lies nearby, none within `radius` cells of another.

    Fewer where what is left is not worth a look.

    mass: (h, w). Inhibition of return: around each choice the rest counts as less, smoothly, out to the radius
    """
    smooth = mass
    for axis in (0, 1):
        smooth = _blurred(smooth, radius / 2, axis)
    y, x = np.indices(mass.shape)
    chosen: list[tuple[int, int]] = []
    least = WORTH_A_LOOK * smooth.max()
    while len(chosen) < count and smooth.max() > least:
        row, column = divmod(int(smooth.argmax()), mass.shape[1])
        chosen.append((row, column))
        near = np.exp(-((y - row) ** 2 + (x - column) ** 2) / (2 * (radius / 2) ** 2))
        smooth = np.where((y - row) ** 2 + (x - column) ** 2 <= radius**2, 0.0, smooth * (1 - near))
    return chosen or [(mass.shape[0] // 2, mass.shape[1] // 2)]


def _blurred(values: np.ndarray, deviation: float, axis: int) -> np.ndarray:
    """By a Gaussian along one axis; beyond the border there is nothing."""
    position = np.arange(values.shape[axis])
    weights = np.exp(-((position[:, None] - position[None, :]) ** 2) / (2 * max(deviation, 1e-3) ** 2))
    weights /= weights.max(0) * max(deviation, 1.0)
    return weights @ values if axis == 0 else values @ weights


def _points(fixations: Fixations, cells: Cells, image: int, batch: int, inhibition: float) -> np.ndarray:
    """(F, 2): x and y in pixels."""
    height, width = cells.size
    if isinstance(fixations, int):
        check_count("logpolar", "fixations", fixations, 1)
        radius = max(0.5, inhibition * max(cells.size) / max(cells.side))
        found = peaks(cells.mass * cells.ink, fixations, radius)
        return np.array([((column + 0.5) * cells.side[1], (row + 0.5) * cells.side[0]) for row, column in found])
    given = torch.as_tensor(fixations, dtype=torch.float64).cpu()
    given = given[None].expand(batch, -1, -1) if given.dim() == 2 else given
    if given.dim() != 3 or given.shape[0] != batch or given.shape[1] < 1 or given.shape[2] != 2:
        raise ValueError(f"logpolar: fixations must be a number, (F, 2) or ({batch}, F, 2), got {tuple(given.shape)}")
    if not ((given >= 0) & (given <= torch.tensor([width, height]))).all():  # false for NaN too
        raise ValueError(f"logpolar: fixations must lie in the image, 0 … {width} × 0 … {height}, got {given.tolist()}")
    return np.asarray(given[image])


def _tiled(
    texture: Texture,
    every: Sequence[Cells],
    points: Sequence[np.ndarray],
    budget: int,
    patch: int,
    e0: float,
) -> Allocation:
    """`foveate`'s tiling for several fixations: the density about the nearest of them; blank cells keep a little."""
    height, width = texture.size
    wanted = np.stack([_magnified(cells, where, e0) for cells, where in zip(every, points)])
    area = every[0].side[0] * every[0].side[1]
    tokens = capped(torch.from_numpy(wanted), area, 1 / patch**2, budget)
    boxes = no_finer_than_pixels(tile(tokens, height, width, budget), patch, height, width)
    score = [_mass_in(cells, boxes[image].numpy()) for image, cells in enumerate(every)]
    return Allocation.of_boxes(boxes, texture.size, patch, torch.tensor(np.stack(score)).float()).to(texture.device)


def _magnified(cells: Cells, points: np.ndarray, e0: float) -> np.ndarray:
    """(h, w): M² about the nearest fixation."""
    y, x = np.indices(cells.ink.shape) + 0.5
    dx, dy = (x * cells.side[1])[..., None] - points[:, 0], (y * cells.side[0])[..., None] - points[:, 1]
    eccentricity = np.hypot(dx, dy).min(-1) / max(cells.size)
    return np.asarray((eccentricity + e0) ** -2.0 * np.where(cells.ink, 1.0, BLANK_SHARE))


def _mass_in(cells: Cells, boxes: np.ndarray) -> np.ndarray:
    """(K,): of the cells in each box, to the nearest whole cell."""
    table = np.pad(cells.mass.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    tall, wide = cells.side
    left, top, right, bottom = np.rint(boxes / (wide, tall, wide, tall)).astype(int).T
    return np.asarray(table[bottom, right] - table[top, right] - table[bottom, left] + table[top, left])
