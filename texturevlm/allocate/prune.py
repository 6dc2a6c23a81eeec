"""A relevance pyramid: a map with its maxima, used as a hierarchical depth buffer to skip whole regions with one look.

A coarse maximum bounds every cell below it, so where it is not above a threshold nothing below can be, and nothing
below is looked at. The answer is that of testing every cell; the work depends on how much of the map is above the
threshold and on how scattered that is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from texturevlm.check import check_floating, check_shapes
from texturevlm.ops.mip import mipmap


@dataclass(frozen=True)
class Found:
    """cells: (N, 2), row and column of the cells above the threshold, row by row; tested: how many values were read."""

    cells: Tensor
    tested: int


def relevance_pyramid(values: Tensor) -> list[Tensor]:
    """A map (h, w) and its maxima, level by level, up to one value."""
    check_shapes("relevance_pyramid", values=(values, "h w"))
    check_floating("relevance_pyramid", values=values)
    return [level[0, 0] for level in mipmap(values[None, None], reduce="max")]


def above(pyramid: Sequence[Tensor], threshold: float) -> Found:
    """Which cells of the finest level exceed a threshold, found by descending only where a maximum does.

    pyramid: from `relevance_pyramid`, finest first
    """
    level = pyramid[-1]
    rows, columns = (torch.arange(extent, device=level.device) for extent in level.shape)
    row, column = (axis.flatten() for axis in torch.meshgrid(rows, columns, indexing="ij"))
    tested = 0
    for finer in [*reversed(pyramid[:-1]), None]:
        tested += len(row)
        kept = level[row, column] > threshold
        row, column = row[kept], column[kept]
        if finer is None:
            break
        row, column = _children(row, column, level.shape, finer.shape)
        level = finer
    order = (row * level.shape[1] + column).argsort()
    return Found(torch.stack([row[order], column[order]], 1), tested)


def _children(row: Tensor, column: Tensor, coarse: torch.Size, fine: torch.Size) -> tuple[Tensor, Tensor]:
    """The texels one level finer that begin inside the given ones: two or three along each axis, each once."""
    axes = []
    for place, few, many in zip((row, column), coarse, fine):
        first, after = -(-place * many // few), -(-(place + 1) * many // few)
        within = first[:, None] + torch.arange(-(-many // few), device=place.device)
        axes.append((within, within < after[:, None]))
    (y, tall), (x, wide) = axes
    inside = tall[:, :, None] & wide[:, None, :]
    y, x = torch.broadcast_tensors(y[:, :, None], x[:, None, :])
    return y[inside], x[inside]
