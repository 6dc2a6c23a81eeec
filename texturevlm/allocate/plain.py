"""The baselines: the whole image at one scale, and the best cells of a uniform grid."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import torch
from torch.nn import functional

from texturevlm.allocate.allocator import allocator
from texturevlm.allocate.footprints import Box
from texturevlm.relevance import Relevance
from texturevlm.types import Allocation, Texture


@allocator(capture="always")
def resize(texture: Texture, relevance: Relevance, *, budget: int, patch: int) -> Allocation:
    """The whole image at one scale: the tiling of at most `budget` tokens that are nearest to square."""
    rows, columns = tiling(texture.size, budget, patch)
    height, width = texture.size[0] / rows, texture.size[1] / columns
    slot = torch.arange(budget, device=texture.device)
    row, column = (part.double() for part in (slot // columns, slot % columns))
    used = row < rows
    tiles = torch.stack([column * width, row * height, (column + 1) * width, (row + 1) * height], -1)
    unused = torch.zeros_like(tiles)
    unused[:, 2:] = patch  # a patch at the corner
    boxes = torch.where(used[:, None], tiles, unused).expand(texture.batch, -1, -1)
    score, valid = (part.expand(texture.batch, -1).contiguous() for part in (used.float(), used))
    return replace(Allocation.of_boxes(boxes, texture.size, patch, score), valid=valid)


class TokenGrid(NamedTuple):
    """A grid of tokens: its corner (y, x) in pixels, rows and columns, and the height and width of a token."""

    corner: tuple[float, float]
    shape: tuple[int, int]
    token: tuple[float, float]

    @classmethod
    def whole(cls, size: tuple[int, int], budget: int, patch: int) -> TokenGrid:
        """The tokens of `resize`."""
        rows, columns = tiling(size, budget, patch)
        return cls((0.0, 0.0), (rows, columns), (size[0] / rows, size[1] / columns))

    @property
    def boxes(self) -> list[Box]:
        """Row by row."""
        (y, x), (tall, wide) = self.corner, self.token
        places = product(*map(range, self.shape))
        return [(x + c * wide, y + r * tall, x + (c + 1) * wide, y + (r + 1) * tall) for r, c in places]


def fits_whole(size: tuple[int, int], budget: int, patch: int) -> bool:
    """Whether the budget holds all pixels of an image, so that `resize` shows it at its own resolution."""
    return budget * patch * patch >= size[0] * size[1]


def tiling(size: tuple[int, int], budget: int, patch: int) -> tuple[int, int]:
    """Rows and columns of at most `budget` tiles, none finer than the pixels, whose longer side is shortest."""
    most = [max(1, math.ceil(extent / patch)) for extent in size]
    pairs = [(rows, min(budget // rows, most[1])) for rows in range(1, min(budget, most[0]) + 1)]
    return min(pairs, key=lambda pair: (max(size[0] / pair[0], size[1] / pair[1]), pair[0] * pair[1]))


@allocator()
def grid(texture: Texture, relevance: Relevance, *, budget: int, patch: int, share: float = 0.25) -> Allocation:
    """The most relevant cells of a uniform grid of tokens, and nothing else: there is no overview.

    share: of the grid's cells that the budget covers; it sets how fine the grid is, but never finer than the pixels
    """
    side = max(float(patch), math.sqrt(texture.size[0] * texture.size[1] * share / budget))
    rows, columns = (max(1, math.ceil(extent / side)) for extent in texture.size)
    mass = functional.interpolate(relevance.mass[:, None].float(), (rows, columns), mode="area").flatten(1)
    count = min(budget, rows * columns)
    best = mass.topk(count, dim=1)
    corner = torch.stack([best.indices % columns, best.indices // columns], -1).double() * side
    boxes = functional.pad(torch.cat([corner, corner + side], -1), (0, 0, 0, budget - count))
    boxes[:, count:, 2:] = patch
    found = Allocation.of_boxes(boxes, texture.size, patch, functional.pad(best.values, (0, budget - count)))
    found.valid[:, count:] = False
    return found
