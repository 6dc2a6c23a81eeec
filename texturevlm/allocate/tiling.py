"""Tiling by density: an image is cut in two, again and again, into exactly as many tiles as there are tokens.

Each cut runs across the longer side of a tile and divides its density in the ratio of the tokens of the two parts. So
the tiles cover everything, denser parts get smaller ones, and all shapes are static.
"""

from functools import lru_cache

import torch
from torch import Tensor

from texturevlm.cuda.constants import device_constant

BISECTION_STEPS = 60  # for the overall scale: more than a double has bits


def capped(wanted: Tensor, area: float, cap: float, budget: int) -> Tensor:
    """Tokens per raster cell, (B, rows, columns), proportional to `wanted` up to a cap; they sum to the budget.

    wanted: (B, rows, columns), above 0
    area:   of a raster cell in pixels
    cap:    the most tokens per pixel; cap · area · cells must be at least the budget
    """
    # ∫ min(scale · wanted, cap) grows with the scale from 0 to cap · H · W ≥ budget: bisection finds the scale.
    low, high = torch.zeros_like(wanted[:, :1, :1]), cap / wanted.amin((1, 2), keepdim=True)
    for _ in range(BISECTION_STEPS):
        middle = (low + high) / 2
        enough = (middle * wanted).clamp(max=cap).sum((1, 2), keepdim=True) * area >= budget
        low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
    tokens = (high * wanted).clamp(max=cap) * area
    return tokens * (budget / tokens.sum((1, 2), keepdim=True))


@lru_cache(maxsize=64)
def cutting_rounds(budget: int) -> list[list[tuple[int, int, int]]]:
    """The cutting plan, the same for every image: per round, (tile, tokens of its first part, of its second part).

    The first part takes the tile's place, the second part is appended.
    """
    counts, rounds = [budget], []
    while max(counts) > 1:
        cuts = [
            (cell, _power_of_two(count), count - _power_of_two(count)) for cell, count in enumerate(counts) if count > 1
        ]
        for cell, first, second in cuts:
            counts[cell] = first
            counts.append(second)
        rounds.append(cuts)
    return rounds


@lru_cache(maxsize=64)
def _plan(budget: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """`cutting_rounds` on a device: the tiles to cut, and the share of each that its first part gets."""
    return [
        (
            device_constant([cell for cell, _, _ in cuts], torch.int64, device),
            device_constant([first / (first + second) for _, first, second in cuts], torch.float64, device),
        )
        for cuts in cutting_rounds(budget)
    ]


def _power_of_two(count: int) -> int:
    """The power of two nearest to count / 2; it lies between a third and two thirds of the count.

    Tiles of a power of two stay nearly square when they are halved; a tile of three tokens does not.
    """
    power = 1 << (count.bit_length() - 1)
    return power // 2 if 3 * power > 2 * count else power


def tile(density: Tensor, height: int, width: int, budget: int) -> Tensor:
    """Tiles of equal density, (B, budget, 4), xyxy in pixels. density: (B, rows, columns), tokens per raster cell."""
    batch, rows, columns = density.shape
    table = torch.nn.functional.pad(density.cumsum(1).cumsum(2), (1, 0, 1, 0))
    pixel_x, pixel_y = width / columns, height / rows
    cells = density.new_zeros(batch, 1, 4)
    cells[..., 2], cells[..., 3] = columns, rows
    for which, share in _plan(budget, density.device):
        parents = cells[:, which]
        extent = parents[..., 2:] - parents[..., :2]
        wide = extent[..., 0] * pixel_x >= extent[..., 1] * pixel_y
        at = torch.where(wide, _cut(table, parents, share), _cut(table.mT, parents[..., [1, 0, 3, 2]], share))
        x0, y0, x1, y1 = parents.unbind(-1)
        first = torch.stack([x0, y0, torch.where(wide, at, x1), torch.where(wide, y1, at)], -1)
        second = torch.stack([torch.where(wide, at, x0), torch.where(wide, y0, at), x1, y1], -1)
        cells = torch.cat([cells.index_copy(1, which, first), second], 1)
    x, y = cells[..., 0::2] * pixel_x, cells[..., 1::2] * pixel_y
    return torch.stack([x[..., 0], y[..., 0], x[..., 1], y[..., 1]], -1)


def _cut(table: Tensor, cells: Tensor, share: Tensor) -> Tensor:
    """The x of the vertical cut that leaves `share` of each tile's density to its left; all in raster units.

    table: (B, rows + 1, columns + 1), a summed-area table of the density; cells: (B, N, 4); returns (B, N)
    """
    x0, y0, x1, y1 = cells.unbind(-1)
    strip = _row_of(table, y1) - _row_of(table, y0)  # (B, N, columns + 1): density left of each column line
    left, right = _interpolate(strip, x0), _interpolate(strip, x1)
    target = left + (right - left) * share
    line = torch.searchsorted(strip.contiguous(), target[..., None], right=True).clamp(1, strip.shape[-1] - 1)
    before, after = strip.gather(-1, line - 1)[..., 0], strip.gather(-1, line)[..., 0]
    inside = (target - before) / (after - before).clamp(min=1e-300)
    return (line[..., 0] - 1 + inside.clamp(0, 1)).clamp(x0, x1)


def _row_of(table: Tensor, y: Tensor) -> Tensor:
    """The table's row at fractional y, linear in between, since the density is constant inside a raster cell."""
    first = y.floor().long().clamp(0, table.shape[1] - 2)
    index = first[..., None].expand(-1, -1, table.shape[2])
    above, below = table.gather(1, index), table.gather(1, index + 1)
    return above + (below - above) * (y - first)[..., None]


def _interpolate(strip: Tensor, x: Tensor) -> Tensor:
    first = x.floor().long().clamp(0, strip.shape[-1] - 2)
    before, after = strip.gather(-1, first[..., None])[..., 0], strip.gather(-1, first[..., None] + 1)[..., 0]
    return before + (after - before) * (x - first)


def no_finer_than_pixels(boxes: Tensor, patch: int, height: int, width: int) -> Tensor:
    """Widen tiles that are narrower than a patch, and keep them inside the image."""
    spans = []
    for axis, extent in enumerate((width, height)):
        low, high = boxes[..., axis], boxes[..., axis + 2]
        side = (high - low).clamp(min=float(patch)).clamp(max=float(extent))
        start = ((low + high - side) / 2).clamp(min=0.0).minimum(extent - side)
        spans.append((start, start + side))
    (left, right), (top, bottom) = spans
    return torch.stack([left, top, right, bottom], -1)
