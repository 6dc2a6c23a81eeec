"""Tiles: the squares that an image is cut into, so that what changed can be named, grown, merged and looked up.

A mask says for each tile whether it changed. Rectangles of tiles are what the host loops over (few, so that a CPU does
little besides the work itself); one box a tile, empty where nothing changed, is what a GPU takes (always as many, so
that nothing waits for a count).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from texturevlm.ops.sampling import MAX_ANISOTROPY
from texturevlm.types import Allocation

Rectangle = tuple[int, int, int, int]  # xyxy in pixels, right and bottom exclusive
MOST = 0.7  # of the image: where parts come to more than this, the whole is done
OVERHEAD = 30_000  # pixels that could be worked on in the time that beginning with another part takes
READ_BEYOND = (
    2  # texels of the coarser of the two levels that a sample reads: how far outside its footprint that may be
)


def tile_grid(size: tuple[int, int], tile: int) -> tuple[int, int]:
    """Rows and columns of tiles; the last ones may be smaller."""
    return math.ceil(size[0] / tile), math.ceil(size[1] / tile)


def grown(mask: np.ndarray, reach: int, tile: int) -> np.ndarray:
    """(rows, columns): every tile that a pixel of a marked one can act on, `reach` pixels away."""
    around = math.ceil(reach / tile)
    wide = np.pad(mask, around)
    rows, columns = mask.shape
    across = np.logical_or.reduce([wide[:, step : step + columns] for step in range(2 * around + 1)])
    return np.logical_or.reduce([across[step : step + rows] for step in range(2 * around + 1)])


def rectangles(mask: np.ndarray, tile: int, size: tuple[int, int]) -> list[Rectangle]:
    """Rectangles that hold the marked tiles exactly, without overlap: runs of a row, merged downwards where equal."""
    height, width = size
    open_runs: dict[tuple[int, int], int] = {}
    found: list[Rectangle] = []

    def close(run: tuple[int, int], top: int, bottom: int) -> None:
        left, right = run[0] * tile, min(run[1] * tile, width)
        found.append((left, top * tile, right, min(bottom * tile, height)))

    for row in range(mask.shape[0] + 1):
        runs = _runs(mask[row]) if row < mask.shape[0] else set()
        for run in [run for run in open_runs if run not in runs]:
            close(run, open_runs.pop(run), row)
        for run in runs:
            open_runs.setdefault(run, row)
    return sorted(found, key=lambda box: (box[1], box[0]))


def _runs(row: np.ndarray) -> set[tuple[int, int]]:
    """First and one-past-last of each stretch of marked tiles."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], row.astype(np.int8), [0]])))
    return set(zip(edges[::2].tolist(), edges[1::2].tolist()))


def enlarged(box: Rectangle, by: int, size: tuple[int, int]) -> Rectangle:
    """A rectangle with a border, cut off at the image."""
    left, top, right, bottom = box
    return max(0, left - by), max(0, top - by), min(size[1], right + by), min(size[0], bottom + by)


def area(boxes: Sequence[Rectangle]) -> int:
    return sum((right - left) * (bottom - top) for left, top, right, bottom in boxes)


def rather_whole(boxes: Sequence[Rectangle], size: tuple[int, int]) -> bool:
    """Whether one pass over the whole image is cheaper for a CPU than one over each rectangle."""
    return area(boxes) + OVERHEAD * len(boxes) > MOST * size[0] * size[1]


def tile_boxes(size: tuple[int, int], tile: int, device: torch.device) -> Tensor:
    """(1, rows · columns, 4) int32: every tile as a box, row by row; times the mask, what `update_region` takes."""
    rows, columns = tile_grid(size, tile)
    y, x = torch.meshgrid(torch.arange(rows) * tile, torch.arange(columns) * tile, indexing="ij")
    right, bottom = (x + tile).clamp(max=size[1]), (y + tile).clamp(max=size[0])
    return torch.stack([x, y, right, bottom], -1).view(1, -1, 4).int().to(device)


def pixel_mask(mask: Tensor, tile: int, size: tuple[int, int]) -> Tensor:
    """(rows, columns) → (H, W)."""
    return mask.repeat_interleave(tile, 0)[: size[0]].repeat_interleave(tile, 1)[:, : size[1]]


def touched(allocation: Allocation, mask: Tensor, tile: int) -> Tensor:
    """(K,): whether what a footprint reads lies partly in a marked tile. Reads no value on the host.

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
    margin = READ_BEYOND * torch.stack(texel, -1) + 1
    # What lies outside the image reads its edge.
    height, width = allocation.size
    inside = torch.stack(
        [edge.clamp(0, most) for edge, most in zip(allocation.boxes[0].unbind(-1), (width, height) * 2)]
    )
    low, high = ((edges.T / tile).floor().long() for edges in (inside[:2] - margin.T, inside[2:] + margin.T))
    first, last = (
        torch.stack([edge[:, 0].clamp(0, columns - 1), edge[:, 1].clamp(0, rows - 1)]) for edge in (low, high)
    )
    (x0, y0), (x1, y1) = first, last + 1
    return total[y1, x1] - total[y0, x1] - total[y1, x0] + total[y0, x0] > 0
