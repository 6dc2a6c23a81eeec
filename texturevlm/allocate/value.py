"""Expected value: the share of the relevant content that an allocation makes legible.

Each cell counts with its mass times its legibility at the scale of the finest footprint over it; 0 if there is none. It
needs neither a model nor an answer.
"""

import numpy as np
import torch
from torch import Tensor

from texturevlm.cuda import can_capture
from texturevlm.relevance import Relevance, legibility
from texturevlm.types import Allocation

# Measured on shrunken text of train pages at equal area (results/readable-height.md): text sampled r times coarser
# across than down reads like text r^0.35 smaller (0.39 for Tesseract, 0.29 for RapidOCR); r times finer across costs
# nothing up to 1.5, then about (r / 1.5)^0.23 (0.29 and 0.19).
COARSER_ACROSS, FINER_ACROSS, FREE = 0.35, 0.23, 1.5
_AT_ONCE = 1 << 20  # cells × footprints that are tested together
_MORE_ON_A_GPU = 16  # times as many on a GPU, where each step costs a launch
_MARGIN = 1e-4  # of a footprint's radius: a cell's centre on its edge lies inside, up to rounding


def expected_value(relevance: Relevance, allocation: Allocation) -> Tensor:
    """(B,): the sum over cells of mass × legibility at the delivered scale, 0 to 1; on the relevance's device."""
    scale = delivered_scale(allocation, relevance.grid).to(relevance.mass.device)
    if scale.shape != relevance.mass.shape or allocation.size != relevance.size:
        raise ValueError(
            f"expected_value: allocation must be for {relevance.mass.shape[0]} images of {relevance.size}, "
            f"got {allocation.batch} of {allocation.size}"
        )
    return (relevance.mass * legibility(relevance.legible_scale, scale.to(relevance.legible_scale.dtype))).sum((1, 2))


def delivered_scale(allocation: Allocation, grid: tuple[int, int], *, at_once: int | None = None) -> Tensor:
    """(B, h, w): pixels per sample of the finest footprint over each cell's centre; infinite where there is none.

    grid:    rows and columns of cells; footprints may be rotated
    at_once: how many cells × footprints are tested together; each takes about 36 bytes
    """
    rows, columns = grid
    height, width = allocation.size
    device = allocation.centre.device
    y = (torch.arange(rows, device=device) + 0.5) * (height / rows)
    x = (torch.arange(columns, device=device) + 0.5) * (width / columns)
    scale = torch.where(allocation.valid, reading_scale(allocation), torch.inf)
    found = scale.new_full((allocation.batch, rows, columns), torch.inf)
    if not can_capture(device) and not scale.requires_grad and bool(allocation.upright[allocation.valid].all()):
        return _painted(found, allocation, scale)
    most = at_once or _AT_ONCE * (_MORE_ON_A_GPU if device.type == "cuda" else 1)
    step = max(1, most // max(1, found.numel()))
    (a, b), (c, d) = (axis.unbind(-1) for axis in _to_own_axes(allocation))
    for first in range(0, allocation.budget, step):
        some = slice(first, first + step)
        dx = (x - allocation.centre[:, some, :1])[:, :, None, :]
        dy = (y - allocation.centre[:, some, 1:])[:, :, :, None]
        a1, b1, c1, d1 = (part[:, some, None, None] for part in (a, b, c, d))
        inside = ((a1 * dx + b1 * dy).abs() <= 1 + _MARGIN) & ((c1 * dx + d1 * dy).abs() <= 1 + _MARGIN)
        over = torch.where(inside, scale[:, some, None, None], torch.inf)
        found = torch.minimum(found, over.amin(1))
    return found


def _painted(found: Tensor, allocation: Allocation, scale: Tensor) -> Tensor:
    """`delivered_scale` of upright footprints: each is painted as a rectangle of cells, finer over coarser."""
    (height, width), (rows, columns) = allocation.size, found.shape[1:]
    per_pixel = torch.tensor([columns / width, rows / height], dtype=torch.float64)
    radius = torch.stack([allocation.ddx[..., 0], allocation.ddy[..., 1]], -1).double() * (
        (1 + _MARGIN) * allocation.patch / 2
    )
    centre = allocation.centre.double()
    # Cell i has its centre at i + 0.5.
    first = ((centre - radius) * per_pixel - 0.5).ceil().clamp(min=0).int().tolist()
    last = ((centre + radius) * per_pixel - 0.5).floor().add(1).clamp(min=0).int().tolist()
    for image, canvas in enumerate(found.numpy()):
        order, values = scale[image].argsort(descending=True).tolist(), scale[image].tolist()
        for slot in order:
            if values[slot] < np.inf:
                (left, top), (right, bottom) = first[image][slot], last[image][slot]
                canvas[top:bottom, left:right] = values[slot]
    return found


def reading_scale(allocation: Allocation) -> Tensor:
    """(B, K): pixels per sample for legibility: the side of a square of the same area, times `stretch_cost`."""
    across = torch.hypot(allocation.ddx[..., 0], allocation.ddy[..., 0])
    down = torch.hypot(allocation.ddx[..., 1], allocation.ddy[..., 1])
    return allocation.area.sqrt() / allocation.patch * stretch_cost(across / down.clamp(min=1e-6))


def stretch_cost(ratio: Tensor) -> Tensor:
    """The factor by which a sample `ratio` times as wide as tall counts as wider, at equal area; at least 1."""
    return ratio.clamp(min=1) ** COARSER_ACROSS * (1 / (ratio * FREE).clamp(1e-6, 1)) ** FINER_ACROSS


def _to_own_axes(allocation: Allocation) -> tuple[Tensor, Tensor]:
    """(B, K, 2) twice: rows of the matrix that maps an offset in pixels to -1 … 1 along a footprint's own axes."""
    radius = allocation.patch / 2
    (x1, y1), (x2, y2) = allocation.ddx.unbind(-1), allocation.ddy.unbind(-1)
    determinant = x1 * y2 - x2 * y1
    inverse = torch.where(determinant == 0, torch.inf, 1 / (determinant * radius))  # no area: nothing lies inside
    return torch.stack([y2, -x2], -1) * inverse[..., None], torch.stack([-y1, x1], -1) * inverse[..., None]
