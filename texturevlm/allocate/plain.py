"""The plain baselines: the whole image at one scale, and the best cells of a uniform grid."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch.nn import functional

from texturevlm.check import check_count
from texturevlm.relevance.maps import Relevance
from texturevlm.types import Allocation, Texture


def resize(texture: Texture, relevance: Relevance, *, budget: int = 273, patch: int = 32) -> Allocation:
    """The whole image at one scale, in whole tokens: the tiling of at most `budget` whose tokens are nearest square."""
    check_count("resize", "budget", budget, 1)
    rows, columns = tiling(texture.size, budget, patch)
    height, width = texture.size[0] / rows, texture.size[1] / columns
    slot = torch.arange(budget, device=texture.device)
    row, column = (part.double() for part in (slot // columns, slot % columns))
    used = row < rows
    tiles = torch.stack([column * width, row * height, (column + 1) * width, (row + 1) * height], -1)
    unused = torch.zeros_like(tiles)
    unused[:, 2:] = patch  # some patch at the corner
    boxes = torch.where(used[:, None], tiles, unused).expand(texture.batch, -1, -1)
    score, valid = (part.expand(texture.batch, -1).contiguous() for part in (used.float(), used))
    return replace(Allocation.of_boxes(boxes, texture.size, patch, score), valid=valid)


def tiling(size: tuple[int, int], budget: int, patch: int) -> tuple[int, int]:
    """(rows, columns): at most `budget` tiles, none finer than the image's pixels, delivering the most of them."""
    most = [max(1, math.ceil(extent / patch)) for extent in size]
    pairs = [(rows, min(budget // rows, most[1])) for rows in range(1, min(budget, most[0]) + 1)]

    def coarser_axis(pair: tuple[int, int]) -> float:
        return max(extent / count for extent, count in zip(size, pair))

    return min(pairs, key=lambda pair: (coarser_axis(pair), pair[0] * pair[1]))


def grid(
    texture: Texture, relevance: Relevance, *, budget: int = 273, patch: int = 32, share: float = 0.25
) -> Allocation:
    """The most relevant cells of a uniform grid of tokens at one scale, and nothing of the rest (no overview).

    share: of the grid's cells that the budget is; the grid is as fine as that, but no finer than the pixels
    """
    check_count("grid", "budget", budget, 1)
    if not 0 < share <= 1:
        raise ValueError(f"grid: share must be above 0 and at most 1, got {share!r}")
    side = max(float(patch), math.sqrt(texture.size[0] * texture.size[1] * share / budget))
    rows, columns = (max(1, math.ceil(extent / side)) for extent in texture.size)
    worth = functional.interpolate(relevance.mass[:, None].float(), (rows, columns), mode="area").flatten(1)
    count = min(budget, rows * columns)
    best = worth.topk(count, dim=1)
    row, column = best.indices // columns, best.indices % columns
    corner = torch.stack([column, row], -1).double() * side
    boxes = torch.cat([corner, corner + side], -1)
    blank = budget - count
    padded = functional.pad(boxes, (0, 0, 0, blank), value=0.0)
    padded[:, count:, 2:] = patch
    allocation = Allocation.of_boxes(padded, texture.size, patch, functional.pad(best.values, (0, blank)))
    if blank:
        allocation.valid[:, count:] = False
    return allocation
