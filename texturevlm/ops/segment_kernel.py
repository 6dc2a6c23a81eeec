"""superpixels, region_statistics and boundaries by our kernels (segment.cu)."""

import struct
from functools import lru_cache

import torch
from torch import Tensor

from texturevlm.cuda.launch import launch
from texturevlm.ops.segment import strides

TABLE = 6144  # floats, as in segment.cu
TILE_COLUMNS = 32
_POINTERS = struct.Struct("=5Q")
_GEOMETRY = struct.Struct("=10if4x")
_REGIONS = struct.Struct("=3Q3i4x")


def superpixels_cuda(features: Tensor, grid: tuple[int, int], iterations: int, weight: float) -> Tensor:
    """One launch for the seeds and one an iteration, each with sums of its own, so that none has to clear another's."""
    batch, channels, height, width = features.shape
    features = features.float().contiguous()
    sums = torch.zeros((iterations, batch, grid[0] * grid[1], channels + 3), dtype=torch.int64, device=features.device)
    ids = torch.empty((batch, height, width), dtype=torch.int32, device=features.device)
    image, seeds, chosen = features.data_ptr(), sums.data_ptr(), ids.data_ptr()
    every, least = 8 * sums.stride(0), _tile_rows((height, width), grid, channels)
    tiles, geometry = _geometry(features.shape, grid, strides(height, width, grid), 8, weight)
    before = 0
    for after in range(seeds, seeds + iterations * every, every):
        parameters = _POINTERS.pack(image, seeds, before, after, chosen) + geometry
        launch("segment.cu", "superpixels_refine", features.device, tiles, parameters, SCALAR=32)
        before = after
    tiles, geometry = _geometry(features.shape, grid, (1, 1), least, weight)
    parameters = _POINTERS.pack(image, seeds, before, 0, chosen) + geometry
    launch("segment.cu", "superpixels_assign", features.device, tiles, parameters, SCALAR=32)
    return ids


@lru_cache(maxsize=256)
def _geometry(
    shape: torch.Size, grid: tuple[int, int], steps: tuple[int, int], tile_rows: int, weight: float
) -> tuple[int, bytes]:
    """How many tiles take part where every `steps`-th pixel does, and what the kernels must know of them."""
    batch, channels, height, width = shape
    pixels_y, pixels_x = _taking_part(height, steps[0]), _taking_part(width, steps[1])
    packed = _GEOMETRY.pack(channels, height, width, *grid, *steps, pixels_y, pixels_x, tile_rows, weight)
    return _tiles(batch, pixels_y, pixels_x, tile_rows), packed


def region_sums_cuda(ids: Tensor, regions: int) -> Tensor:
    """(B, R, 3): the sums of x and y over each region's pixels, and how many they are."""
    batch, height, width = ids.shape
    ids = ids.int().contiguous()
    sums = torch.zeros((batch, regions, 3), dtype=torch.int64, device=ids.device)
    parameters = _REGIONS.pack(ids.data_ptr(), sums.data_ptr(), 0, height, width, regions)
    launch("segment.cu", "region_sums", ids.device, _tiles(batch, height, width, 32), parameters, SCALAR=32)
    return sums


def boundaries_cuda(ids: Tensor, edges: Tensor) -> Tensor:
    """Fill `edges`."""
    batch, height, width = ids.shape
    ids = ids.int().contiguous()
    parameters = _REGIONS.pack(ids.data_ptr(), 0, edges.data_ptr(), height, width, 0)
    launch("segment.cu", "boundaries", ids.device, _tiles(batch, height, width, 32), parameters, SCALAR=32)
    return edges


def _tiles(batch: int, pixels_y: int, pixels_x: int, tile_rows: int) -> int:
    return -(-pixels_x // TILE_COLUMNS) * -(-pixels_y // tile_rows) * batch


def _taking_part(extent: int, stride: int) -> int:
    """How many pixels take part along an axis: every stride-th, from the middle of the first `stride` on."""
    return -(-(extent - stride // 2) // stride)


def _tile_rows(size: tuple[int, int], grid: tuple[int, int], channels: int) -> int:
    """The most rows that a tile can have for its table to hold all regions that its pixels choose among."""
    for rows in (32, 16):
        cells = _cells(rows, size[0], grid[0]) * _cells(TILE_COLUMNS, size[1], grid[1])
        if cells * (channels + 2) <= TABLE:
            return rows
    return 8


def _cells(pixels: int, extent: int, cells: int) -> int:
    """How many cells can matter to so many pixels in a row: those that they lie in, and one more on either side."""
    return min(cells, pixels + 2, (pixels - 1) * cells // extent + 4)
