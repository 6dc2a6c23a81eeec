"""Canvases for region_words.py: one photograph, or a mosaic of many, put together on the device.

A caption says what is in a photograph, not where; in a mosaic it does. Photographs are cut, mirrored and jittered.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.channels.build import build
from texturevlm.types import Texture

CANVAS, CELL = 256, 8  # pixels
SIDE = CANVAS // CELL  # cells along a side
CHANNELS = ("edges", "edges_inverted", "high_pass", "low_pass", "saliency")
PLANES = 3 + len(CHANNELS)
SMALLEST = {1: 0.55, 2: 0.6, 4: 0.75}  # share of a photograph's side that is seen at least, by tiles along a side
GREY = 0.05  # share of photographs without colour
LEAST_LEFT = 0.4  # of a box must be seen
SHORTEST = 0.02  # of the photograph: the side of a box
BACKGROUNDS = 8  # boxes beside the objects, per photograph
MOST_OBJECT = 0.2  # of a background box may be object
CHUNK = 64


@dataclass(frozen=True, eq=False)
class Source:
    """Photographs with channels, as a mip pyramid: each level (N, PLANES, S, S) uint8."""

    levels: list[Tensor]

    @classmethod
    def of(cls, pixels: Tensor, device: str, smallest: int = 64) -> "Source":
        parts = [_pyramid(part.to(device), smallest) for part in pixels.split(CHUNK)]
        return cls([torch.cat(same) for same in zip(*parts)])

    def level_for(self, side: int) -> Tensor:
        """The coarsest level that is as fine as tiles of that side; the finest, where none is."""
        return next((level for level in reversed(self.levels) if level.shape[-1] >= side), self.levels[0])


def _pyramid(pixels: Tensor, smallest: int) -> list[Tensor]:
    """Levels (N, PLANES, S, S) uint8 of photographs (N, 3, S, S) uint8; channels are made anew at each level."""
    colour, levels = pixels.float() / 255, []
    while colour.shape[-1] >= smallest:
        layers = build(Texture((colour,)).mipmapped(), CHANNELS, backend="reference").levels[0]
        levels.append((torch.cat([colour, layers], 1).clamp(0, 1) * 255).round().to(torch.uint8))
        colour = functional.avg_pool2d(colour, 2)
    return levels


class Windows(NamedTuple):
    """The part of each photograph that is seen: low (R, 2) and extent (R, 2), shares, x then y; mirrored (R, 1)."""

    low: Tensor
    extent: Tensor
    mirrored: Tensor


def draw_windows(count: int, tiles: int, device: str) -> Windows:
    least = SMALLEST[tiles]
    extent = least + (1 - least) * torch.rand(count, 2, device=device)
    low = (1 - extent) * torch.rand(count, 2, device=device)
    return Windows(low, extent, torch.rand(count, 1, device=device) < 0.5)


def whole(count: int, device: str) -> Windows:
    zeros = torch.zeros(count, 2, device=device)
    return Windows(zeros, zeros + 1, torch.zeros(count, 1, dtype=torch.bool, device=device))


def canvases(source: Source, photographs: Tensor, tiles: int, windows: Windows, *, jitter: bool = True) -> Tensor:
    """(R / tiles², PLANES, CANVAS, CANVAS): photographs (R,) laid on grids of tiles × tiles."""
    side = CANVAS // tiles
    planes = source.level_for(side)[photographs].float() / 255
    sign = torch.where(windows.mirrored[:, 0], -1.0, 1.0)
    matrix = planes.new_zeros(len(photographs), 2, 3)
    matrix[:, 0, 0], matrix[:, 1, 1] = windows.extent[:, 0] * sign, windows.extent[:, 1]
    matrix[:, :, 2] = 2 * windows.low + windows.extent - 1
    grid = functional.affine_grid(matrix, [len(planes), PLANES, side, side], align_corners=False)
    seen = functional.grid_sample(planes, grid, padding_mode="border", align_corners=False)
    if jitter:
        seen = torch.cat([_jittered(seen[:, :3]), seen[:, 3:]], 1)
    rows: Tensor = seen.unflatten(0, (-1, tiles, tiles))  # canvas, row, column, plane, y, x
    return rows.permute(0, 3, 1, 4, 2, 5).reshape(-1, PLANES, CANVAS, CANVAS)


def _jittered(colour: Tensor) -> Tensor:
    shape = len(colour), 3, 1, 1
    gain = 1 + 0.35 * (2 * torch.rand(shape[0], 1, 1, 1, device=colour.device) - 1)
    tint = 1 + 0.12 * (2 * torch.rand(shape, device=colour.device) - 1)
    shift = 0.12 * (2 * torch.rand(shape[0], 1, 1, 1, device=colour.device) - 1)
    grey = colour.mean(1, keepdim=True)
    level = grey.mean((2, 3), keepdim=True)
    saturation = 1.4 * torch.rand(shape[0], 1, 1, 1, device=colour.device)
    saturation = saturation * (torch.rand_like(saturation) > GREY)
    return (((grey + (colour - grey) * saturation) * tint - level) * gain + level + shift).clamp(0, 1)


def moved_boxes(boxes: Tensor, there: Tensor, windows: Windows) -> tuple[Tensor, Tensor]:
    """Boxes (R, M, 4) after the photographs were cut and mirrored, and which (R, M) of them are still seen."""
    low, extent = windows.low[:, None], windows.extent[:, None]
    corners = [((boxes[..., first : first + 2] - low) / extent) for first in (0, 2)]
    x0, x1 = corners[0][..., :1], corners[1][..., :1]
    mirrored = windows.mirrored[:, None]
    first = torch.cat([torch.where(mirrored, 1 - x1, x0), corners[0][..., 1:]], -1)
    last = torch.cat([torch.where(mirrored, 1 - x0, x1), corners[1][..., 1:]], -1)
    area = (last - first).clamp(min=1e-6).prod(-1)
    first, last = first.clamp(0, 1), last.clamp(0, 1)
    sides = last - first
    seen = (sides.prod(-1) > LEAST_LEFT * area) & (sides.amin(-1) > SHORTEST)
    return torch.cat([first, last], -1), there & seen


def background_boxes(boxes: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
    """(R, BACKGROUNDS, 4) random boxes, and which (R, BACKGROUNDS) of them hold hardly any object."""
    count = len(boxes)
    sides = 0.1 + 0.4 * torch.rand(count, BACKGROUNDS, 2, device=boxes.device)
    low = (1 - sides) * torch.rand_like(sides)
    drawn = torch.cat([low, low + sides], -1)
    first = torch.maximum(drawn[:, :, None, :2], boxes[:, None, :, :2])
    last = torch.minimum(drawn[:, :, None, 2:], boxes[:, None, :, 2:])
    shared = (last - first).clamp(min=0).prod(-1) * there[:, None]
    return drawn, shared.sum(2) < MOST_OBJECT * sides.prod(-1)


def cell_shares(boxes: Tensor, tiles: int) -> Tensor:
    """Boxes (R, M, 4) of photographs on grids of tiles × tiles → (R, M, s, s): how much of each of the s × s cells of
    their own tile lies in each."""
    side = SIDE // tiles
    edges = torch.arange(side + 1, device=boxes.device) / side

    def between(low: Tensor, high: Tensor) -> Tensor:
        part = torch.minimum(edges[1:], high[..., None]) - torch.maximum(edges[:-1], low[..., None])
        return part.clamp(min=0) * side

    down, across = between(boxes[..., 1], boxes[..., 3]), between(boxes[..., 0], boxes[..., 2])
    return down[..., :, None] * across[..., None, :]


def by_tile(values: Tensor, tiles: int) -> Tensor:
    """(B, V, SIDE, SIDE) → (B · tiles², V, s, s), photographs in the order of `canvases`."""
    parts: Tensor = values.unflatten(3, (tiles, -1)).unflatten(2, (tiles, -1))  # B, V, row, y, column, x
    return parts.permute(0, 2, 4, 1, 3, 5).flatten(0, 2)
