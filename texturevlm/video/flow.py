"""Optical flow between two frames on the grid of cells, and where it can be trusted.

Lucas–Kanade, coarse to fine, a few rounds per level: the old frame is warped by the flow so far, and a further small
motion explains the remaining difference, by least squares over a window. A vector is not trusted where the warped frame
does not look like the new one, where it points outside the image, or where it is long. Plain PyTorch of static shapes.
OpenCV's DIS flow is available by name where OpenCV is installed; it runs on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.channels.structure import box_mean
from texturevlm.ops.mip import mipmap

FLOW_METHODS = ("lucas_kanade", "dis", "none")
COARSEST_SIDE = 10  # texels: the search begins at the first level whose shorter side is at most this
ROUNDS = 3  # per level
FLOW_WINDOW = 7  # texels over which the motion is assumed constant
DAMPING = 1e-4  # squared contrast below which no motion is found: flat areas keep the vector of the coarser level
MAX_STEP = 1.0  # texels that one round may add
MAX_TRUSTED = 16.0  # cells: longer vectors are not trusted
TOLERANCE = (0.02, 0.3)  # difference explained by noise, and by moving edges as a share of the local contrast


class Flow(NamedTuple):
    """Backward flow: the new frame at x looks like the old one at x + vector."""

    vector: Tensor  # (1, 2, h, w), x then y, in cells
    trusted: Tensor  # (1, h, w) bool

    def carry(self, maps: Tensor, *, mode: str = "bilinear") -> Tensor:
        """Maps (1, C, h, w) of the old frame, warped to the new one."""
        return warp(maps, self.vector, mode=mode)


def find_flow(old: Tensor, new: Tensor, *, method: str = "lucas_kanade") -> Flow:
    """The flow between two frames, (1, 1, h, w) each: brightness on the grid of cells.

    method: lucas_kanade, dis (OpenCV) or none (zero flow; cells that differ are not trusted)
    """
    if method == "none":
        vector = old.new_zeros(1, 2, *old.shape[2:])
    elif method == "dis":
        vector = _dis(old, new)
    else:
        vector = _lucas_kanade(mipmap(old), mipmap(new))
    return Flow(vector, _trusted(old, new, vector))


def _lucas_kanade(old: Sequence[Tensor], new: Sequence[Tensor]) -> Tensor:
    first = next((i for i, level in enumerate(new) if min(level.shape[2:]) <= COARSEST_SIDE), len(new) - 1)
    vector = new[first].new_zeros(1, 2, *new[first].shape[2:])
    for index in range(first, -1, -1):
        here = new[index].shape[2:]
        ratio = [extent / before for extent, before in zip(here, vector.shape[2:])]
        vector = functional.interpolate(vector, here, mode="bilinear")
        given = torch.cat([vector[:, :1] * ratio[1], vector[:, 1:] * ratio[0]], 1)
        vector = given
        for _ in range(ROUNDS):
            vector = vector + _step(old[index], new[index], vector)
        vector = _best(old[index], new[index], [torch.zeros_like(given), given, box_mean(vector, 3, 3)])
    return vector


def _best(old: Tensor, new: Tensor, vectors: Sequence[Tensor]) -> Tensor:
    """For each texel the vector whose warped window differs least: undoes a search that diverged."""
    left = [box_mean((new - warp(old, vector)).abs(), FLOW_WINDOW, FLOW_WINDOW) for vector in vectors]
    which = torch.cat(left, 1).argmin(1)[:, None, None]
    return torch.stack(list(vectors), 1).gather(1, which.expand(-1, 1, 2, -1, -1))[:, 0]


def _step(old: Tensor, new: Tensor, vector: Tensor) -> Tensor:
    """The small motion that best explains the difference between the new frame and the warped old one."""
    warped = warp(old, vector)
    left = new - warped
    around = functional.pad((new + warped) / 2, (1, 1, 1, 1), mode="replicate")
    gx = (around[..., 1:-1, 2:] - around[..., 1:-1, :-2]) / 2
    gy = (around[..., 2:, 1:-1] - around[..., :-2, 1:-1]) / 2
    sums = box_mean(torch.cat([gx * gx, gy * gy, gx * gy, gx * left, gy * left], 1), FLOW_WINDOW, FLOW_WINDOW)
    xx, yy, xy, xt, yt = torch.split(sums, 1, 1)
    xx, yy = xx + DAMPING, yy + DAMPING
    both = (xx * yy - xy * xy).clamp(min=DAMPING**2)
    found = torch.cat([yy * xt - xy * yt, xx * yt - xy * xt], 1) / both
    return found.clamp(-MAX_STEP, MAX_STEP)


def warp(maps: Tensor, vector: Tensor, *, mode: str = "bilinear") -> Tensor:
    """Maps (1, C, h, w) read at x + vector (1, 2, h, w); positions outside read the edge."""
    height, width = maps.shape[2:]
    x, y = _targets(vector)
    grid = torch.stack([(2 * x + 1) / width - 1, (2 * y + 1) / height - 1], -1)
    return functional.grid_sample(maps, grid, mode=mode, padding_mode="border", align_corners=False)


def _targets(vector: Tensor) -> tuple[Tensor, Tensor]:
    """x and y, (1, h, w) each, that the vectors point at."""
    y, x = (torch.arange(extent, device=vector.device, dtype=vector.dtype) for extent in vector.shape[2:])
    return x + vector[:, 0], y[:, None] + vector[:, 1]


def _trusted(old: Tensor, new: Tensor, vector: Tensor) -> Tensor:
    """(1, h, w): where the warped old frame looks like the new one, and the vector is short and points inside."""
    height, width = new.shape[2:]
    left = box_mean((new - warp(old, vector)).abs(), 3, 3)
    spread = box_mean(new.square(), 5, 5) - box_mean(new, 5, 5).square()
    alike = left <= TOLERANCE[0] + TOLERANCE[1] * spread.clamp(min=0).sqrt()
    x, y = _targets(vector)
    inside = (x > -1) & (x < width) & (y > -1) & (y < height)
    near = vector.square().sum(1) <= MAX_TRUSTED**2
    return alike[:, 0] & inside & near


def _dis(old: Tensor, new: Tensor) -> Tensor:
    """OpenCV's dense inverse search, from bytes; zero flow for an image too small for its pyramid."""
    try:
        import cv2
    except ImportError:
        raise ImportError("find_flow: method 'dis' needs OpenCV: pip install opencv-python-headless") from None
    if min(new.shape[2:]) < 16:
        return new.new_zeros(1, 2, *new.shape[2:])
    finder: Any = cv2.DISOpticalFlow.create(1)  # 1: fast
    finder.setFinestScale(0)
    grey = [(one[0, 0].clamp(0, 1) * 255).round().byte().cpu().numpy() for one in (new, old)]
    found = finder.calc(grey[0], grey[1], None)
    return torch.from_numpy(found).permute(2, 0, 1)[None].to(new)
