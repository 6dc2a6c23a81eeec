"""Superpixels: an image cut into a grid's worth of regions that follow its colours (SLIC).

A region is known by the mean colour and the mean position of its pixels. A pixel belongs to the nearest of nine: the
region seeded in its own cell of the grid and those of the eight cells around. The means are summed as whole numbers
(colours in units of 2⁻¹⁶), so that no order of summation changes a bit of them on any device.
"""

import math

import torch
from torch import Tensor

from texturevlm.check import check_count, check_floating, check_shapes
from texturevlm.ops import backend as backends

UNIT = 1 << 16  # colours are summed in units of 1 / UNIT
LIMIT = 1000.0  # and clamped to ± LIMIT there, so that 32 of them fit into 32 bits
SAMPLES = 32  # pixels of a seed's cell, along each axis, that its mean is refined from


def seed_grid(height: int, width: int, count: int) -> tuple[int, int]:
    """(rows, columns) of the seeds: nearly square cells, and the number of them nearest to `count`."""
    side = math.sqrt(height * width / count)
    candidates = [
        (min(max(1, rows), height), min(max(1, columns), width))
        for rows in (math.floor(height / side), math.ceil(height / side))
        for columns in (math.floor(width / side), math.ceil(width / side))
    ]
    return min(candidates, key=lambda grid: (abs(grid[0] * grid[1] - count), *grid))


def superpixels(
    features: Tensor, *, count: int = 50, iterations: int = 5, compactness: float = 0.1, backend: str = "auto"
) -> Tensor:
    """Which region each pixel belongs to.

    features:    (B, C, H, W), colours between 0 and 1 or any other features of that order, any extent from 1×1
    count:       how many regions are wanted; there are R = rows · columns of `seed_grid(H, W, count)`
    iterations:  how often pixels choose their region; between two choices the regions take their pixels' means. All
                 but the last choice are made by every n-th pixel alone where cells are 64 pixels or larger
    compactness: how much the distance between cells counts against a difference in colour: larger is rounder
    returns      (B, H, W) int32, from 0 to R - 1, in the order of the seeds, row by row; a region may be empty
    """
    sizes = check_shapes("superpixels", features=(features, "B C H W"))
    check_floating("superpixels", features=features)
    if features.numel() == 0:
        raise ValueError(f"superpixels: features must not be empty, got {tuple(features.shape)}")
    check_count("superpixels", "count", count, 1)
    check_count("superpixels", "iterations", iterations, 1)
    grid = seed_grid(sizes["H"], sizes["W"], count)
    weight = compactness**2 * grid[0] * grid[1] / (sizes["H"] * sizes["W"])
    return superpixels_reference(features.detach(), grid, iterations, weight)


def strides(height: int, width: int, grid: tuple[int, int]) -> tuple[int, int]:
    """Every how many rows and columns a pixel helps to refine the means."""
    return max(1, height // grid[0] // SAMPLES), max(1, width // grid[1] // SAMPLES)


def superpixels_reference(features: Tensor, grid: tuple[int, int], iterations: int, weight: float) -> Tensor:
    """The specification, in plain PyTorch. weight: what a squared pixel of distance costs."""
    height, width = features.shape[2:]
    features = features.float()
    y, x = torch.arange(height, device=features.device), torch.arange(width, device=features.device)
    down, across = strides(height, width, grid)
    some_y, some_x = y[down // 2 :: down], x[across // 2 :: across]
    some = features[:, :, down // 2 :: down, across // 2 :: across]
    home_y, home_x = some_y * grid[0] // height, some_x * grid[1] // width
    ids = (home_y[:, None] * grid[1] + home_x).expand(len(features), -1, -1)
    seeds = sums = _sums(some, ids, some_y, some_x, grid)
    for _ in range(iterations - 1):
        ids = _choose(some, some_y, some_x, _means(sums, seeds), grid, (height, width), weight)
        sums = _sums(some, ids, some_y, some_x, grid)
    return _choose(features, y, x, _means(sums, seeds), grid, (height, width), weight)


def _sums(features: Tensor, ids: Tensor, y: Tensor, x: Tensor, grid: tuple[int, int]) -> Tensor:
    """(B, R, C + 3) whole numbers: the sums of each region's colours, x and y, and the number of its pixels."""
    batch, channels = features.shape[:2]
    regions = grid[0] * grid[1]
    values = torch.empty((*ids.shape, channels + 3), dtype=torch.int64, device=ids.device)
    values[..., :channels] = (features.clamp(-LIMIT, LIMIT) * UNIT).round().movedim(1, -1)
    values[..., channels] = x
    values[..., channels + 1] = y[:, None]
    values[..., channels + 2] = 1
    rows = (ids + regions * torch.arange(batch, device=ids.device)[:, None, None]).flatten()
    sums = values.new_zeros((batch * regions, channels + 3))
    return sums.index_add_(0, rows, values.flatten(0, 2)).view(batch, regions, -1)


def _means(sums: Tensor, seeds: Tensor) -> Tensor:
    """(B, R, C + 2) mean colour, x and y. A region that lost all its pixels goes back to its seed."""
    sums = torch.where(sums[..., -1:] > 0, sums, seeds)
    means = sums[..., :-1].double() / sums[..., -1:]
    means[..., :-2] /= UNIT
    return means.float()


def _choose(
    features: Tensor,
    y: Tensor,
    x: Tensor,
    means: Tensor,
    grid: tuple[int, int],
    size: tuple[int, int],
    weight: float,
) -> Tensor:
    """The nearest of nine regions for the pixels (y, x): (B, len(y), len(x)) int32. By rows of cells, to save memory."""
    rows, columns = grid
    home_y, home_x = y * rows // size[0], x * columns // size[1]
    table = means.view(len(means), rows, columns, -1).permute(0, 3, 1, 2)[..., None, :]  # (B, C + 2, rows, 1, columns)
    ids = torch.zeros((len(features), len(y), len(x)), dtype=torch.int32, device=features.device)
    starts = torch.searchsorted(home_y, torch.arange(rows + 1, device=y.device)).tolist()
    for row in range(rows):
        strip = slice(starts[row], starts[row + 1])
        pixels, chosen = features[:, :, strip], ids[:, strip]
        best = torch.full(chosen.shape, torch.inf, device=features.device)
        for dy in (-1, 0, 1):
            for dx in (-1, 0, 1):
                near_y, near_x = min(max(row + dy, 0), rows - 1), (home_x + dx).clamp(0, columns - 1)
                mean = table[:, :, near_y][..., near_x]  # (B, C + 2, 1, W)
                cost = (pixels - mean[:, :-2]).square_().sum(1)
                cost += weight * ((x - mean[:, -2]).square() + (y[strip, None] - mean[:, -1]).square_())
                closer = cost < best
                chosen.copy_(torch.where(closer, (near_y * columns + near_x).int(), chosen))
                torch.minimum(best, cost, out=best)
    return ids
