"""Tiles: the squares that a frame is divided into, and what a mask of changed tiles means for boxes and footprints.

A mask holds one flag per tile. PyTorch operations loop over a few rectangles that cover the marked tiles; kernels get
the mask's summed area table (`texturevlm.ops.marks`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from texturevlm.ops.lookup_reference import MAX_ANISOTROPY
from texturevlm.types import Allocation

Rectangle = tuple[int, int, int, int]  # xyxy in pixels, right and bottom exclusive
MOST_AREA = 0.7  # of the frame: above this share one pass over the whole frame is cheaper than several parts
PART_OVERHEAD = 30_000  # pixels that a CPU processes in the time that it takes to start one more part
READ_MARGIN = 2  # texels of the coarser level that a trilinear sample may read outside its footprint


def tile_grid(size: tuple[int, int], tile: int) -> tuple[int, int]:
    """Rows and columns of tiles; the last row and column may be smaller."""
    return math.ceil(size[0] / tile), math.ceil(size[1] / tile)


def grow_mask(mask: np.ndarray, reach: int, tile: int) -> np.ndarray:
    """(rows, columns): every tile within `reach` pixels of a marked tile."""
    around = math.ceil(reach / tile)
    wide = np.pad(mask, around)
    rows, columns = mask.shape
    across = np.logical_or.reduce([wide[:, step : step + columns] for step in range(2 * around + 1)])
    grown: np.ndarray = np.logical_or.reduce([across[step : step + rows] for step in range(2 * around + 1)])
    return grown


def mask_rectangles(mask: np.ndarray, tile: int, size: tuple[int, int]) -> list[Rectangle]:
    """Disjoint rectangles that cover exactly the marked tiles: runs within a row, merged downwards where equal."""
    open_runs: dict[tuple[int, int], int] = {}
    found: list[Rectangle] = []
    for row in range(mask.shape[0] + 1):
        runs = _runs(mask[row]) if row < mask.shape[0] else set()
        for run in [run for run in open_runs if run not in runs]:
            top, bottom = open_runs.pop(run) * tile, min(row * tile, size[0])
            found.append((run[0] * tile, top, min(run[1] * tile, size[1]), bottom))
        for run in runs:
            open_runs.setdefault(run, row)
    return sorted(found, key=lambda box: (box[1], box[0]))


def _runs(row: np.ndarray) -> set[tuple[int, int]]:
    """First and one-past-last column of each run of marked tiles."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], row.astype(np.int8), [0]])))
    return set(zip(edges[::2].tolist(), edges[1::2].tolist()))


def expand_box(box: Rectangle, by: int, size: tuple[int, int]) -> Rectangle:
    """A rectangle with a border of `by` pixels, clipped to the frame."""
    left, top, right, bottom = box
    return max(0, left - by), max(0, top - by), min(size[1], right + by), min(size[0], bottom + by)


def whole_is_cheaper(boxes: Sequence[Rectangle], size: tuple[int, int]) -> bool:
    """Whether one pass over the whole frame costs a CPU less than one pass per rectangle."""
    area = sum((right - left) * (bottom - top) for left, top, right, bottom in boxes)
    return area + PART_OVERHEAD * len(boxes) > MOST_AREA * size[0] * size[1]


def pixel_mask(mask: Tensor, tile: int, size: tuple[int, int]) -> Tensor:
    """(rows, columns) → (H, W): tiles of `tile` texels as texels."""
    return mask.repeat_interleave(tile, 0)[: size[0]].repeat_interleave(tile, 1)[:, : size[1]]


def reads_marked(allocation: Allocation, mask: Tensor, tile: int) -> Tensor:
    """(K,): whether sampling a footprint may read a marked tile. Reads no value on the host.

    allocation: of one image
    mask:       (rows, columns) bool
    """
    rows, columns = mask.shape
    total = torch.zeros(rows + 1, columns + 1, dtype=torch.int64, device=mask.device)
    total[1:, 1:] = mask.long().cumsum(0).cumsum(1)
    axes = allocation.ddx[0].norm(dim=-1), allocation.ddy[0].norm(dim=-1)
    step = torch.maximum(torch.minimum(*axes), torch.maximum(*axes) / MAX_ANISOTROPY)
    coarse = torch.exp2(step.clamp(min=1).log2().ceil())
    texel = [extent / (extent / coarse).floor().clamp(min=1) for extent in reversed(allocation.size)]
    margin = READ_MARGIN * torch.stack(texel, -1) + 1
    # Samples outside the image read its edge.
    limits = allocation.size[::-1] * 2
    inside = torch.stack([edge.clamp(0, most) for edge, most in zip(allocation.boxes[0].unbind(-1), limits)])
    low, high = ((edges.T / tile).floor().long() for edges in (inside[:2] - margin.T, inside[2:] + margin.T))
    first, last = (
        torch.stack([edge[:, 0].clamp(0, columns - 1), edge[:, 1].clamp(0, rows - 1)]) for edge in (low, high)
    )
    (x0, y0), (x1, y1) = first, last + 1
    return total[y1, x1] - total[y0, x1] - total[y1, x0] + total[y0, x0] > 0
