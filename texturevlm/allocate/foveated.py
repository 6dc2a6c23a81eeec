"""Foveation: exactly K footprints that tile the whole image, finest at the fixation, coarser with distance.

Cortical magnification M(e) = M0 / (e + e0) says how many samples a spot deserves at distance e from the fixation.
Tokens then have a density proportional to M², which is scaled until K of them fill the image; nowhere more than one
token for P×P pixels, since detail that the image does not have is not worth a token. The image is cut in two, again
and again, along the longer side, each time so that the parts hold as much of the density as tokens are meant for
them: the cells tile the image, and their number is exact. (A cell narrower than P pixels is then widened to P, over
its neighbours.)
"""

from functools import lru_cache

import torch
from torch import Tensor

from texturevlm.check import check_count, check_size
from texturevlm.types import Allocation

RASTER = 512  # the density is integrated on a raster of at most this many cells along the longer side
DOUBLINGS = 60  # bisection steps for the overall scale: more than a double has bits


def foveate(
    size: tuple[int, int],
    *,
    fixation: tuple[float, float] | Tensor,
    budget: int = 273,
    patch: int = 16,
    M0: float = 1.0,
    e0: float = 0.5,
    device: torch.device | str | None = None,
) -> Allocation:
    """Tile an image with `budget` footprints around a fixation.

    size:     (height, width) of the image
    fixation: (x, y) in level-0 pixels, or a tensor (B, 2), one an image
    M0, e0:   cortical magnification M(e) = M0 / (e + e0), e in units of the longer image side. Only ratios of M matter,
              since one overall scale is solved for; a smaller e0 is a sharper fovea
    returns   an Allocation whose footprints cover the image exactly, finest at the fixation and never finer than the
              image's own pixels. Where the whole image has fewer pixels than the tokens could carry, it is tiled
              evenly; where it is narrower than a patch, that axis is finer than its pixels
    """
    height, width = check_size("foveate", size)
    check_count("foveate", "budget", budget, 1, height * width)
    check_count("foveate", "patch", patch, 1)
    for name, value in (("M0", M0), ("e0", e0)):
        if not 0 < value < float("inf"):
            raise ValueError(f"foveate: {name} must be a positive number, got {value}")
        if not 1e-30 <= value <= 1e30:  # beyond that, squares of it are no longer numbers
            raise ValueError(f"foveate: {name} must be between 1e-30 and 1e30, got {value}")
    points = _fixations(fixation, height, width, device)
    small = budget * patch * patch >= height * width
    cap = budget / (height * width) if small else 1 / patch**2
    density = _density(points, height, width, cap, budget, M0, e0)
    boxes = _tile(density, height, width, budget)
    if not small:
        boxes = _no_finer_than_pixels(boxes, patch, height, width)
    distance = (boxes[..., :2] + boxes[..., 2:]).div(2).sub(points[:, None]).norm(dim=-1)
    score = M0 / (distance / max(size) + e0)
    return Allocation.of_boxes(boxes, (height, width), patch, score.float())


def _fixations(
    fixation: tuple[float, float] | Tensor, height: int, width: int, device: torch.device | str | None
) -> Tensor:
    """(B, 2), double. Values are checked unless they are on a GPU, so that nothing waits for it."""
    if isinstance(fixation, Tensor):
        points = fixation.double()
        points = points[None] if points.dim() == 1 else points
        if points.dim() != 2 or points.shape[1] != 2:
            raise ValueError(f"foveate: fixation must be (x, y) or (B, 2), got {tuple(fixation.shape)}")
        if points.device.type == "cpu":
            for x, y in points.tolist():
                _check_inside(x, y, height, width)
        return points.to(device)
    try:
        x, y = (float(value) for value in fixation)
    except (TypeError, ValueError):
        raise ValueError(f"foveate: fixation must be (x, y), got {fixation!r}") from None
    _check_inside(x, y, height, width)
    # Filled rather than copied: a copy from the host would wait for the GPU.
    return torch.stack([torch.full((1,), value, dtype=torch.float64, device=device) for value in (x, y)], -1)


def _check_inside(x: float, y: float, height: int, width: int) -> None:
    if not (0 <= x <= width and 0 <= y <= height):
        raise ValueError(f"foveate: fixation must lie in the image, 0 … {width} × 0 … {height}, got ({x:g}, {y:g})")


def _density(points: Tensor, height: int, width: int, cap: float, budget: int, M0: float, e0: float) -> Tensor:
    """Tokens in each raster cell, (B, rows, columns); they sum to the budget."""
    longer = max(height, width)
    cell = max(1.0, longer / RASTER)
    rows, columns = max(1, round(height / cell)), max(1, round(width / cell))
    y = (torch.arange(rows, device=points.device, dtype=torch.float64) + 0.5) * (height / rows)
    x = (torch.arange(columns, device=points.device, dtype=torch.float64) + 0.5) * (width / columns)
    dx, dy = x - points[:, :1], y - points[:, 1:]
    eccentricity = torch.hypot(dx[:, None, :], dy[:, :, None]) / longer
    wanted = (M0 / (eccentricity + e0)) ** 2
    area = (height / rows) * (width / columns)
    # ∫ min(scale · M², cap) grows with the scale from 0 to cap · H · W ≥ budget, so there is one scale to find.
    low, high = torch.zeros_like(points[:, :1, None]), cap / wanted.amin((1, 2), keepdim=True)
    for _ in range(DOUBLINGS):
        middle = (low + high) / 2
        enough = (middle * wanted).clamp(max=cap).sum((1, 2), keepdim=True) * area >= budget
        low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
    tokens = (high * wanted).clamp(max=cap) * area
    return tokens * (budget / tokens.sum((1, 2), keepdim=True))


def _rounds(budget: int) -> list[list[tuple[int, int, int]]]:
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
    """`_rounds` on a device: the cells to be cut, and the share of each that its first part gets."""
    return [
        (
            torch.tensor([cell for cell, _, _ in cuts], device=device),
            torch.tensor([first / (first + second) for _, first, second in cuts], dtype=torch.float64, device=device),
        )
        for cuts in _rounds(budget)
    ]


def _power_of_two(count: int) -> int:
    """The power of two nearest to half the count, between a third and two thirds of it.

    Halving a power of two keeps cells nearly square to the end; a three must leave one three times as long as wide.
    """
    power = 1 << (count.bit_length() - 1)
    return power // 2 if 3 * power > 2 * count else power


def _tile(density: Tensor, height: int, width: int, budget: int) -> Tensor:
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


def _no_finer_than_pixels(boxes: Tensor, patch: int, height: int, width: int) -> Tensor:
    """Widen a cell whose shorter side has fewer pixels than the patch has samples, and keep it inside the image."""
    spans = []
    for axis, extent in enumerate((width, height)):
        low, high = boxes[..., axis], boxes[..., axis + 2]
        side = (high - low).clamp(min=float(patch)).clamp(max=float(extent))
        start = ((low + high - side) / 2).clamp(min=0.0).minimum(extent - side)
        spans.append((start, start + side))
    (left, right), (top, bottom) = spans
    return torch.stack([left, top, right, bottom], -1)
