"""Cells that tile an image, as many as there are tokens, the smaller the denser: by cutting in two, again and again.

Each cut runs across the longer side, where the parts hold as much of the density as tokens are meant for them. So the
number of cells is exact, they cover everything, and nothing of it depends on values: shapes are static.
"""

from functools import lru_cache

import torch
from torch import Tensor

from texturevlm.cuda.constants import device_constant

DOUBLINGS = 60  # bisection steps for the overall scale: more than a double has bits


def capped(wanted: Tensor, area: float, cap: float, budget: int) -> Tensor:
    """Tokens in each raster cell, (B, rows, columns), in proportion to `wanted` but for a cap; they sum to the budget.

    wanted: (B, rows, columns), above 0
    area:   of a raster cell in pixels
    cap:    tokens a pixel at most; cap · area · cells must be at least the budget
    """
    # ∫ min(scale · wanted, cap) grows with the scale from 0 to cap · H · W ≥ budget, so there is one scale to find.
    low, high = torch.zeros_like(wanted[:, :1, :1]), cap / wanted.amin((1, 2), keepdim=True)
    for _ in range(DOUBLINGS):
        middle = (low + high) / 2
        enough = (middle * wanted).clamp(max=cap).sum((1, 2), keepdim=True) * area >= budget
        low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
    tokens = (high * wanted).clamp(max=cap) * area
    return tokens * (budget / tokens.sum((1, 2), keepdim=True))


@lru_cache(maxsize=64)
def cutting_rounds(budget: int) -> list[list[tuple[int, int, int]]]:
    """The cutting plan, the same for every image: in each round, (cell, its first part, its second part) in tokens.

    The first part stays in the cell's place, the second is appended.
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
    """`cutting_rounds` on a device: the cells to be cut, and the share of each that its first part gets."""
    return [
        (
            device_constant([cell for cell, _, _ in cuts], torch.int64, device),
            device_constant([first / (first + second) for _, first, second in cuts], torch.float64, device),
        )
        for cuts in cutting_rounds(budget)
    ]


def _power_of_two(count: int) -> int:
    """The power of two nearest to half the count, between a third and two thirds of it.

    Halving a power of two keeps cells nearly square to the end; a three must leave one three times as long as wide.
    """
    power = 1 << (count.bit_length() - 1)
    return power // 2 if 3 * power > 2 * count else power


def tile(density: Tensor, height: int, width: int, budget: int) -> Tensor:
    """Cells of equal density that tile the image, (B, budget, 4) xyxy in pixels."""
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
    """Where a vertical cut leaves `share` of each cell's density to its left. All in raster units.

    table: (B, rows + 1, columns + 1), the density summed from the top left corner; cells: (B, N, 4); returns (B, N)
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
    """The table's row at fractional y, linear in between: density is even inside a raster cell."""
    first = y.floor().long().clamp(0, table.shape[1] - 2)
    index = first[..., None].expand(-1, -1, table.shape[2])
    above, below = table.gather(1, index), table.gather(1, index + 1)
    return above + (below - above) * (y - first)[..., None]


def _interpolate(strip: Tensor, x: Tensor) -> Tensor:
    first = x.floor().long().clamp(0, strip.shape[-1] - 2)
    before, after = strip.gather(-1, first[..., None])[..., 0], strip.gather(-1, first[..., None] + 1)[..., 0]
    return before + (after - before) * (x - first)


def no_finer_than_pixels(boxes: Tensor, patch: int, height: int, width: int) -> Tensor:
    """Widen a cell whose shorter side has fewer pixels than the patch has samples, and keep it inside the image."""
    spans = []
    for axis, extent in enumerate((width, height)):
        low, high = boxes[..., axis], boxes[..., axis + 2]
        side = (high - low).clamp(min=float(patch)).clamp(max=float(extent))
        start = ((low + high - side) / 2).clamp(min=0.0).minimum(extent - side)
        spans.append((start, start + side))
    (left, right), (top, bottom) = spans
    return torch.stack([left, top, right, bottom], -1)
