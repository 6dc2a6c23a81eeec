"""Density: tokens tile the whole image, smaller where the relevance is higher; nothing is left out.

The image is cut in two, again and again, into exactly as many tiles as there are tokens. Each cut runs across the
longer side of a tile and divides its density in the ratio of the tokens of the two parts. All shapes are static. For
photographs: they have no blank parts, and what looks like background may be asked for. `foveate` tiles the same way.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from texturevlm.allocate.allocator import allocator
from texturevlm.allocate.footprints import allocation_of_tokens
from texturevlm.allocate.plain import fits_whole, resize
from texturevlm.cuda import Layout, constants, device_constant, launch
from texturevlm.ops import Footprints, empty_footprints
from texturevlm.ops import backend as backends
from texturevlm.relevance import Relevance
from texturevlm.types import Allocation, Texture

EVEN = 0.25  # of the mean density goes everywhere
BISECTION_STEPS = 60  # for the overall scale: more than a double has bits
MOST_TOKENS, ROWS_PER_BLOCK = constants("density.cu", "MOST_TOKENS", "ROWS_PER_BLOCK")
_DENSITY = Layout("density.cu", "Density")
Rounds = Sequence[Sequence[tuple[int, int, int]]]


@allocator(capture="always")
def density(
    texture: Texture,
    relevance: Relevance,
    *,
    budget: int,
    patch: int,
    even: float = EVEN,
    backend: str = "auto",
    wanted: Tensor | None = None,
) -> Allocation:
    """Tile the image by the density of relevance.

    even:   density that every position gets, in units of the mean density; it bounds how coarse a token can be
    wanted: (B,) bool, images whose tokens are used; the kernels skip the others
    """
    if fits_whole(texture.size, budget, patch):
        return resize(texture, relevance, budget=budget, patch=patch)
    limit = f"the kernels take up to {MOST_TOKENS} tokens" if budget > MOST_TOKENS else None
    if backends.choose("density", relevance.mass, backend, limit) == "cuda":
        options: Any = {"size": texture.size, "budget": budget, "patch": patch, "even": even, "wanted": wanted}
        tokens = density_cuda(relevance.mass.detach(), cutting_rounds(budget), **options)
        return allocation_of_tokens(tokens, texture.size, patch)
    rows, columns = relevance.grid
    boxes = tile(relevance.mass.double() * (rows * columns) + even, texture.size, budget, patch)
    centre = ((boxes[..., :2] + boxes[..., 2:]) / 2).float()
    x = (centre[..., 0] / (texture.size[1] / columns)).long().clamp(0, columns - 1)
    y = (centre[..., 1] / (texture.size[0] / rows)).long().clamp(0, rows - 1)
    score = relevance.mass.flatten(1).gather(1, y * columns + x).float()
    return Allocation.of_boxes(boxes, texture.size, patch, score)


def tile(wanted: Tensor, size: tuple[int, int], budget: int, patch: int) -> Tensor:
    """Exactly `budget` tiles, (B, budget, 4), xyxy in pixels, by a density; no finer than the pixels.

    wanted: (B, rows, columns), the density in any unit, above 0. It is capped at one token per patch
    Where the tokens hold more than the pixels, the tiles are even and finer than the pixels.
    """
    (height, width), (rows, columns) = size, wanted.shape[1:]
    small = budget * patch * patch >= height * width
    cap = budget / (height * width) if small else 1 / patch**2
    boxes = _cut_up(_capped(wanted, height * width / (rows * columns), cap, budget), height, width, budget)
    return boxes if small else _no_finer_than_pixels(boxes, patch, height, width)


def _capped(wanted: Tensor, area: float, cap: float, budget: int) -> Tensor:
    """Tokens per raster cell of `area` pixels, proportional to `wanted` up to `cap` per pixel; `budget` in all."""
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

    The first part takes the tile's place, the second part is appended. The first gets the power of two
    nearest to half of the tokens: tiles of a power of two stay nearly square when halved; one of three does not.
    """
    counts, rounds = [budget], []
    while max(counts) > 1:
        cuts = []
        for cell, count in enumerate(counts):
            if count > 1:
                power = 1 << (count.bit_length() - 1)
                first = power // 2 if 3 * power > 2 * count else power  # a third to two thirds of the count
                cuts.append((cell, first, count - first))
        for cell, first, second in cuts:
            counts[cell] = first
            counts.append(second)
        rounds.append(cuts)
    return rounds


@lru_cache(maxsize=64)
def _plan(budget: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """`cutting_rounds` on a device: the tiles to cut, and the share of each that its first part gets."""
    plan = []
    for cuts in cutting_rounds(budget):
        shares = [first / (first + second) for _, first, second in cuts]
        cells = device_constant([cell for cell, _, _ in cuts], torch.int64, device)
        plan.append((cells, device_constant(shares, torch.float64, device)))
    return plan


def _cut_up(density: Tensor, height: int, width: int, budget: int) -> Tensor:
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
    strip = _at(table, y1, 1) - _at(table, y0, 1)  # (B, N, columns + 1): density left of each column line
    left, right = (_at(strip, x, 2)[..., 0] for x in (x0, x1))
    target = left + (right - left) * share
    line = torch.searchsorted(strip.contiguous(), target[..., None], right=True).clamp(1, strip.shape[-1] - 1)
    before, after = strip.gather(-1, line - 1)[..., 0], strip.gather(-1, line)[..., 0]
    inside = (target - before) / (after - before).clamp(min=1e-300)
    return (line[..., 0] - 1 + inside.clamp(0, 1)).clamp(x0, x1)


def _at(values: Tensor, place: Tensor, axis: int) -> Tensor:
    """(B, R, C) at fractional places (B, N) along an axis; linear, since the density is constant in a raster cell."""
    first = place.floor().long().clamp(0, values.shape[axis] - 2)[..., None]
    index = first.expand(-1, -1, values.shape[2]) if axis == 1 else first
    before, after = values.gather(axis, index), values.gather(axis, index + 1)
    return before + (after - before) * (place[..., None] - first)


def _no_finer_than_pixels(boxes: Tensor, patch: int, height: int, width: int) -> Tensor:
    """Widen tiles that are narrower than a patch, and keep them inside the image."""
    starts, ends = [], []
    for axis, extent in enumerate((width, height)):
        low, high = boxes[..., axis], boxes[..., axis + 2]
        side = (high - low).clamp(min=float(patch)).clamp(max=float(extent))
        starts.append(((low + high - side) / 2).clamp(min=0.0).minimum(extent - side))
        ends.append(starts[-1] + side)
    return torch.stack([*starts, *ends], -1)


def density_cuda(
    mass: Tensor,
    rounds: Rounds,
    *,
    size: tuple[int, int],
    budget: int,
    patch: int,
    even: float,
    wanted: Tensor | None = None,
) -> Footprints:
    """`density` for all images at once by density.cu, in four launches and without waiting for the GPU.

    mass:   (B, h, w), sums to 1 per image
    rounds: the cutting plan: which cell is cut, the tokens of its first part, and of the second, which is appended
    even:   the density that every pixel gets, in units of the mean density
    wanted: (B,) bool, the images to tile; the others get no tokens
    """
    batch, rows, columns = mass.shape
    mass, wanted = mass.float().contiguous(), None if wanted is None else wanted.contiguous()
    starts = [1]
    for cuts in rounds[:-1]:
        starts.append(starts[-1] + len(cuts))
    work = torch.empty(batch * (2 + (rows + 1) * (columns + 1)), dtype=torch.float64, device=mass.device)
    tokens = empty_footprints(batch, budget, mass.device)
    plan = device_constant([number for cuts in rounds for cut in cuts for number in cut], torch.int32, mass.device)
    memory = {"mass": mass, "wanted": wanted, "plan": plan, "scale": work, "table": work.data_ptr() + 16 * batch}
    area = size[0] * size[1] / (rows * columns)
    sizes = {"batch": batch, "rows": rows, "columns": columns, "height": size[0], "width": size[1], "patch": patch}
    sizes |= {"budget": budget, "rounds": len(rounds)}
    densities = {"even": even, "cap": 1 / patch**2, "area": area}
    parameters = _DENSITY.pack(**memory, **tokens._asdict(), **densities, **sizes, start=starts)
    blocks: dict[str, int | tuple[int, int]] = {
        "density_scale": batch,
        "density_rows": -(-batch * (rows + 1) // ROWS_PER_BLOCK),
        "density_table": (-(-(columns + 1) // 256), batch),
        "density_tiles": batch,
    }
    for name, grid in blocks.items():
        launch("density.cu", name, mass.device, grid, parameters, early=name != "density_scale")
    return tokens
