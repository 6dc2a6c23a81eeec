"""superpixels, region_statistics and boundaries by our kernels (segment.cu)."""

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from texturevlm.cuda.launch import launch
from texturevlm.cuda.struct import Layout, constants
from texturevlm.ops.segment import strides

(TABLE,) = constants("segment.cu", "TABLE")
TILE_COLUMNS = 32
_SEGMENTS, _REGIONS = Layout("segment.cu", "Segments"), Layout("segment.cu", "Regions")


def superpixels_cuda(features: Tensor, grid: tuple[int, int], iterations: int, weight: float) -> Tensor:
    """One launch for the seeds and one per iteration. Each has its own sums, so that none has to clear another's."""
    batch, channels, height, width = features.shape
    features = features.float().contiguous()
    sums = torch.zeros((iterations, batch, grid[0] * grid[1], channels + 3), dtype=torch.int64, device=features.device)
    ids = torch.empty((batch, height, width), dtype=torch.int32, device=features.device)
    image, seeds, chosen = features.data_ptr(), sums.data_ptr(), ids.data_ptr()
    every, least = 8 * sums.stride(0), _tile_rows((height, width), grid, channels)
    tiles, pack = _geometry(features.shape, grid, strides(height, width, grid), 8, weight)
    before = 0
    for after in range(seeds, seeds + iterations * every, every):
        parameters = pack(image, seeds, before, after, chosen)
        launch("segment.cu", "superpixels_refine", features.device, tiles, parameters)
        before = after
    tiles, pack = _geometry(features.shape, grid, (1, 1), least, weight)
    launch("segment.cu", "superpixels_assign", features.device, tiles, pack(image, seeds, before, 0, chosen))
    return ids


@lru_cache(maxsize=256)
def _geometry(
    shape: torch.Size, grid: tuple[int, int], steps: tuple[int, int], tile_rows: int, weight: float
) -> tuple[int, Callable[..., bytes]]:
    """How many tiles there are if every `steps`-th pixel takes part, and what packs the parameters from pointers."""
    batch, channels, height, width = shape
    pixels_y, pixels_x = _taking_part(height, steps[0]), _taking_part(width, steps[1])
    fixed = _SEGMENTS.fix(
        channels=channels,
        height=height,
        width=width,
        rows=grid[0],
        columns=grid[1],
        stride_y=steps[0],
        stride_x=steps[1],
        pixels_y=pixels_y,
        pixels_x=pixels_x,
        tile_rows=tile_rows,
        weight=weight,
    )
    pack = fixed.in_order("features", "seeds", "sums", "totals", "ids")
    return _tiles(batch, pixels_y, pixels_x, tile_rows), pack


def region_sums_cuda(ids: Tensor, regions: int) -> Tensor:
    """(B, R, 3): per region the sums of x and y over its pixels, and the number of pixels."""
    batch, height, width = ids.shape
    ids = ids.int().contiguous()
    sums = torch.zeros((batch, regions, 3), dtype=torch.int64, device=ids.device)
    parameters = _REGIONS.pack(ids=ids, sums=sums, edges=None, height=height, width=width, regions=regions)
    launch("segment.cu", "region_sums", ids.device, _tiles(batch, height, width, 32), parameters)
    return sums


def boundaries_cuda(ids: Tensor, edges: Tensor) -> Tensor:
    """Fill `edges` (B, H, W)."""
    batch, height, width = ids.shape
    ids = ids.int().contiguous()
    parameters = _REGIONS.pack(ids=ids, sums=None, edges=edges, height=height, width=width, regions=0)
    launch("segment.cu", "boundaries", ids.device, _tiles(batch, height, width, 32), parameters)
    return edges


def _tiles(batch: int, pixels_y: int, pixels_x: int, tile_rows: int) -> int:
    return -(-pixels_x // TILE_COLUMNS) * -(-pixels_y // tile_rows) * batch


def _taking_part(extent: int, stride: int) -> int:
    """How many pixels take part along an axis: every stride-th, starting at stride // 2."""
    return -(-(extent - stride // 2) // stride)


def _tile_rows(size: tuple[int, int], grid: tuple[int, int], channels: int) -> int:
    """The most rows per tile such that the table holds all regions that its pixels choose among."""
    for rows in (32, 16):
        cells = _cells(rows, size[0], grid[0]) * _cells(TILE_COLUMNS, size[1], grid[1])
        if cells * (channels + 2) <= TABLE:
            return rows
    return 8


def _cells(pixels: int, extent: int, cells: int) -> int:
    """How many cells `pixels` neighbouring pixels choose among: those they lie in, and one more on either side."""
    return min(cells, pixels + 2, (pixels - 1) * cells // extent + 4)
