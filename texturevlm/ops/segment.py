"""Superpixels: an image cut into regions that follow its colours (SLIC), one per cell of a grid of seeds.

A region is known by the mean colour and the mean position of its pixels. A pixel belongs to the nearest of nine: the
region seeded in its own cell of the grid and those of the eight cells around. Nothing makes a region connected. The
means are summed as whole numbers (colours in units of 2⁻¹⁶), so that no order of summation changes a bit of them.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from itertools import product

import torch
from torch import Tensor

from texturevlm.check import check_count, check_floating, check_shapes
from texturevlm.cuda import WARP, Layout, constants, launch
from texturevlm.ops import backend as backends

COLOUR_UNIT = 1 << 16  # colours are summed in units of 1 / COLOUR_UNIT
LIMIT = 1000.0  # and clamped to ± LIMIT there, so that a warp's sum fits into 32 bits
SAMPLES = 32  # pixels of a seed's cell, along each axis, that its mean is refined from
MAX_CHANNELS = 16  # for the kernel
(TABLE,) = constants("segment.cu", "TABLE")
_SEGMENTS, _REGIONS = Layout("segment.cu", "Segments"), Layout("segment.cu", "Regions")


@lru_cache(maxsize=256)
def seed_grid(height: int, width: int, count: int) -> tuple[int, int]:
    """(rows, columns) of the seeds: as many as come nearest to `count` in nearly square cells of a pixel or more."""
    side = math.sqrt(height * width / count)
    grids = [(rows, columns) for rows in _near(height / side, height) for columns in _near(count / rows, width)]
    grids += [(rows, columns) for columns in _near(width / side, width) for rows in _near(count / columns, height)]
    return min(
        grids, key=lambda grid: (abs(grid[0] * grid[1] - count), abs(math.log(height * grid[1] / width / grid[0])))
    )


def _near(number: float, most: int) -> set[int]:
    """The whole numbers on either side, but from 1 to `most`."""
    return {min(max(1, whole), most) for whole in (math.floor(number), math.ceil(number))}


def superpixels(
    features: Tensor, *, count: int = 50, iterations: int = 5, compactness: float = 0.15, backend: str = "auto"
) -> Tensor:
    """Which region each pixel belongs to.

    features:    (B, C, H, W), colours between 0 and 1 or other features of that order, any extent from 1×1
    count:       how many regions are wanted; there are R = rows · columns of `seed_grid(H, W, count)`, fewer than
                 wanted where there are fewer pixels
    iterations:  how often pixels choose their region; between two choices the regions take their pixels' means. Where
                 cells are 64 pixels wide or more, all choices but the last are made by every n-th pixel alone
    compactness: the difference in colour that weighs as much as the distance between two seeds: larger is rounder
    returns      (B, H, W) int32, from 0 to R - 1, seeds counted row by row; a region may be empty, or in pieces
    """
    sizes = check_shapes("superpixels", features=(features, "B C H W"))
    check_floating("superpixels", features=features)
    if features.numel() == 0:
        raise ValueError(f"superpixels: features must not be empty, got {tuple(features.shape)}")
    check_count("superpixels", "count", count, 1)
    check_count("superpixels", "iterations", iterations, 1)
    if not 0 <= compactness < math.inf:
        raise ValueError(f"superpixels: compactness must be at least 0 and finite, got {compactness!r}")
    height, width = sizes["H"], sizes["W"]
    grid = seed_grid(height, width, count)
    weight = compactness**2 * grid[0] * grid[1] / (height * width)
    limit = _kernel_limit(sizes["C"], height, width, grid)
    on_gpu = backends.choose("superpixels", features, backend, limit) == "cuda"
    find = _superpixels_cuda if on_gpu else superpixels_reference
    return find(features.detach(), grid, iterations, weight)


def _kernel_limit(channels: int, height: int, width: int, grid: tuple[int, int]) -> str | None:
    if channels > MAX_CHANNELS:
        return f"the kernel takes up to {MAX_CHANNELS} channels, not {channels}"
    if max(height * grid[0], width * grid[1]) >= 1 << 31:
        return f"the kernel cannot number {grid[0]} × {grid[1]} seeds in {height} × {width} pixels"
    return None


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
    seeds = sums = _sums(some, ids, some_y, some_x, grid[0] * grid[1])
    for _ in range(iterations - 1):
        ids = _choose(some, some_y, some_x, _means(sums, seeds), grid, (height, width), weight)
        sums = _sums(some, ids, some_y, some_x, grid[0] * grid[1])
    return _choose(features, y, x, _means(sums, seeds), grid, (height, width), weight)


def _sums(features: Tensor, ids: Tensor, y: Tensor, x: Tensor, regions: int) -> Tensor:
    """(B, R, C + 3) whole numbers: the sums of each region's colours, x and y, and the number of its pixels."""
    batch, channels = features.shape[:2]
    values = torch.ones((*ids.shape, channels + 3), dtype=torch.int64, device=ids.device)
    values[..., :channels] = (features.clamp(-LIMIT, LIMIT) * COLOUR_UNIT).round().movedim(1, -1)
    values[..., channels], values[..., channels + 1] = x, y[:, None]
    rows = (ids + regions * torch.arange(batch, device=ids.device)[:, None, None]).flatten()
    sums = values.new_zeros((batch * regions, channels + 3))
    return sums.index_add_(0, rows, values.flatten(0, 2)).view(batch, regions, -1)


def _means(sums: Tensor, seeds: Tensor) -> Tensor:
    """(B, R, C + 2) mean colour, x and y. A region that lost all its pixels goes back to its seed."""
    sums = torch.where(sums[..., -1:] > 0, sums, seeds)
    means = sums[..., :-1].double() / sums[..., -1:]
    means[..., :-2] /= COLOUR_UNIT
    return means.float()


def _choose(
    features: Tensor, y: Tensor, x: Tensor, means: Tensor, grid: tuple[int, int], size: tuple[int, int], weight: float
) -> Tensor:
    """The nearest of nine regions for each pixel: (B, len(y), len(x)) int32. By rows of cells, to stay in the cache."""
    rows, columns = grid
    home_y, home_x = y * rows // size[0], x * columns // size[1]
    table = means.view(len(means), rows, columns, -1).permute(0, 3, 1, 2)[..., None, :]  # (B, C + 2, rows, 1, columns)
    ids = torch.zeros((len(features), len(y), len(x)), dtype=torch.int32, device=features.device)
    starts = torch.searchsorted(home_y, torch.arange(rows + 1, device=y.device)).tolist()
    for row in range(rows):
        strip = slice(starts[row], starts[row + 1])
        pixels, chosen = features[:, :, strip], ids[:, strip]
        best = torch.full(chosen.shape, torch.inf, device=features.device)
        for dy, dx in product((-1, 0, 1), repeat=2):
            near_y, near_x = min(max(row + dy, 0), rows - 1), (home_x + dx).clamp(0, columns - 1)
            mean = table[:, :, near_y][..., near_x]  # (B, C + 2, 1, W)
            cost = (pixels - mean[:, :-2]).square_().sum(1)
            cost += weight * ((x - mean[:, -2]).square() + (y[strip, None] - mean[:, -1]).square_())
            chosen.copy_(torch.where(cost < best, (near_y * columns + near_x).int(), chosen))
            torch.minimum(best, cost, out=best)
    return ids


def region_statistics(ids: Tensor, regions: int, *, backend: str = "auto") -> tuple[Tensor, Tensor]:
    """How large each region is and where its middle lies.

    ids:     (B, H, W) whole numbers, from 0 to regions - 1; a pixel with any other belongs to no region
    returns  share (B, R) of the image's pixels, and centroid (B, R, 2), x then y in pixels, the first pixel's centre
             at (0.5, 0.5); float32. An empty region has share 0 and lies at the first pixel
    """
    sizes = _check_ids("region_statistics", ids)
    check_count("region_statistics", "regions", regions, 1)
    centroid = torch.empty((sizes["B"], regions, 2), dtype=torch.float32, device=ids.device)
    on_gpu = backends.choose("region_statistics", centroid, backend) == "cuda"
    sums = region_sums_cuda(ids, regions) if on_gpu else region_sums_reference(ids, regions)
    pixels = sums[..., 2:].double()
    torch.add(sums[..., :2] / pixels.clamp(min=1), 0.5, out=centroid)
    return (pixels[..., 0] / (sizes["H"] * sizes["W"])).float(), centroid


def region_sums_reference(ids: Tensor, regions: int) -> Tensor:
    """(B, R, 3): the sums of x and y over each region's pixels, and how many they are."""
    y, x = (torch.arange(extent, device=ids.device) for extent in ids.shape[1:])
    known = torch.where((ids >= 0) & (ids < regions), ids, regions)
    colourless = torch.empty((len(ids), 0, *ids.shape[1:]), device=ids.device)
    return _sums(colourless, known, y, x, regions + 1)[:, :regions]


def boundaries(ids: Tensor, *, backend: str = "auto") -> Tensor:
    """Where regions meet.

    ids:     (B, H, W) whole numbers
    returns  (B, H, W) float32: 1 where the pixel to the right or the one below belongs to another region, else 0
    """
    _check_ids("boundaries", ids)
    edges = torch.empty(ids.shape, dtype=torch.float32, device=ids.device)
    if backends.choose("boundaries", edges, backend) == "cuda":
        _launch_regions("boundaries", ids, edges=edges)
        return edges
    edges.zero_()
    edges[:, :, :-1] = ids[:, :, 1:] != ids[:, :, :-1]
    edges[:, :-1].masked_fill_(ids[:, 1:] != ids[:, :-1], 1.0)
    return edges


def _check_ids(function: str, ids: Tensor) -> dict[str, int]:
    sizes = check_shapes(function, ids=(ids, "B H W"))
    if ids.is_floating_point() or ids.dtype == torch.bool:
        raise TypeError(f"{function}: ids must hold whole numbers, got {ids.dtype}")
    if ids.numel() == 0:
        raise ValueError(f"{function}: ids must not be empty, got {tuple(ids.shape)}")
    return sizes


def _superpixels_cuda(features: Tensor, grid: tuple[int, int], iterations: int, weight: float) -> Tensor:
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
    # Along an axis every stride-th pixel takes part, starting at stride // 2.
    pixels_y, pixels_x = (-(-(extent - step // 2) // step) for extent, step in ((height, steps[0]), (width, steps[1])))
    sizes = {"channels": channels, "height": height, "width": width, "rows": grid[0], "columns": grid[1]}
    steps_of = {"stride_y": steps[0], "stride_x": steps[1], "pixels_y": pixels_y, "pixels_x": pixels_x}
    fixed = _SEGMENTS.fix(**sizes, **steps_of, tile_rows=tile_rows, weight=weight)
    pack = fixed.in_order("features", "seeds", "sums", "totals", "ids")
    return _tiles(batch, pixels_y, pixels_x, tile_rows), pack


def region_sums_cuda(ids: Tensor, regions: int) -> Tensor:
    """(B, R, 3): per region the sums of x and y over its pixels, and the number of pixels."""
    sums = torch.zeros((len(ids), regions, 3), dtype=torch.int64, device=ids.device)
    _launch_regions("region_sums", ids, sums=sums, regions=regions)
    return sums


def _launch_regions(
    kernel: str, ids: Tensor, *, sums: Tensor | None = None, edges: Tensor | None = None, regions: int = 0
) -> None:
    batch, height, width = ids.shape
    ids = ids.int().contiguous()
    parameters = _REGIONS.pack(ids=ids, sums=sums, edges=edges, height=height, width=width, regions=regions)
    launch("segment.cu", kernel, ids.device, _tiles(batch, height, width, 32), parameters)


def _tiles(batch: int, pixels_y: int, pixels_x: int, tile_rows: int) -> int:
    return -(-pixels_x // WARP) * -(-pixels_y // tile_rows) * batch


def _tile_rows(size: tuple[int, int], grid: tuple[int, int], channels: int) -> int:
    """The most rows per tile such that the table holds all regions that its pixels choose among."""
    for rows in (32, 16):
        cells = _cells(rows, size[0], grid[0]) * _cells(WARP, size[1], grid[1])
        if cells * (channels + 2) <= TABLE:
            return rows
    return 8


def _cells(pixels: int, extent: int, cells: int) -> int:
    """How many cells `pixels` neighbouring pixels choose among: those they lie in, and one more on either side."""
    return min(cells, pixels + 2, (pixels - 1) * cells // extent + 4)
