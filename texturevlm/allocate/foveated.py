"""Foveation: exactly K footprints that tile the whole image, finest at the fixation, coarser with distance.

Cortical magnification M(e) = M0 / (e + e0) is the sampling density per axis at distance e from the fixation. The
density of tokens is proportional to M², scaled so that K tokens fill the image, and at most one token per P×P pixels.
`density.tile` cuts the image by that density. A tile narrower than P pixels is widened to P, over its neighbours.
"""

from collections.abc import Callable
from typing import SupportsFloat

import torch
from torch import Tensor

from texturevlm.allocate.density import tile
from texturevlm.check import check_count, check_size
from texturevlm.defaults import BUDGET, PATCH
from texturevlm.types import Allocation

Magnification = Callable[[Tensor], Tensor]  # of the eccentricity, in units of the longer image side
RASTER = 512  # the density is integrated on a raster of at most this many cells along the longer side


def foveate(
    size: tuple[int, int],
    *,
    fixation: tuple[float, float] | Tensor,
    budget: int = BUDGET,
    patch: int = PATCH,
    M0: float = 1.0,
    e0: float = 0.5,
    cortical_magnification: Magnification | None = None,
    device: torch.device | str | None = None,
) -> Allocation:
    """Tile an image with `budget` footprints around a fixation.

    size:     (height, width) of the image
    fixation: (x, y) in level-0 pixels, or a tensor (B, 2), one per image
    M0, e0:   cortical magnification M(e) = M0 / (e + e0), e in units of the longer image side. Only ratios of M matter;
              a smaller e0 is a sharper fovea
    cortical_magnification: another M, in place of M0 and e0: a function of a tensor of eccentricities that returns a
              tensor of the same shape, finite and above 0
    returns   an Allocation whose footprints cover the image exactly, finest at the fixation, never finer than the
              pixels. An image with fewer pixels than the tokens hold is tiled evenly; an axis shorter than a patch is
              sampled finer than its pixels
    """
    height, width = check_size("foveate", size)
    if isinstance(budget, int) and budget > height * width:
        most = f"between 1 and {height * width}, got {budget} (at most one token per pixel)"
        raise ValueError(f"foveate: budget must be {most}")
    check_count("foveate", "budget", budget, 1, height * width)
    check_count("foveate", "patch", patch, 1)
    for name, value in (("M0", M0), ("e0", e0)):
        if not isinstance(value, SupportsFloat):
            raise TypeError(f"foveate: {name} must be a positive number, got {value!r}")
        if not 1e-30 <= value <= 1e30:  # beyond that, squares overflow
            raise ValueError(f"foveate: {name} must be a positive number, got {value} (1e-30 to 1e30 can be computed)")
    points = _fixations(fixation, height, width, device)
    magnification = cortical_magnification or (lambda eccentricity: M0 / (eccentricity + e0))
    boxes = tile(_density(points, height, width, magnification), (height, width), budget, patch)
    distance = (boxes[..., :2] + boxes[..., 2:]).div(2).sub(points[:, None]).norm(dim=-1)
    score = magnification(distance / max(size))
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
        known, points = points.tolist() if points.device.type == "cpu" else [], points.to(device)
    else:
        try:
            x, y = (float(value) for value in fixation)
        except (TypeError, ValueError):
            raise ValueError(f"foveate: fixation must be (x, y), got {fixation!r}") from None
        # Filled rather than copied: a copy from the host would wait for the GPU.
        known, filled = [(x, y)], [torch.full((1,), value, dtype=torch.float64, device=device) for value in (x, y)]
        points = torch.stack(filled, -1)
    for x, y in known:
        if not (0 <= x <= width and 0 <= y <= height):
            raise ValueError(f"foveate: fixation must lie in the image, 0 … {width} × 0 … {height}, got ({x:g}, {y:g})")
    return points


def _density(points: Tensor, height: int, width: int, magnification: Magnification) -> Tensor:
    """M² over a raster of cells, (B, rows, columns). M is checked: the values only unless they are on a GPU."""
    longer = max(height, width)
    cell = max(1.0, longer / RASTER)
    rows, columns = max(1, round(height / cell)), max(1, round(width / cell))
    y = (torch.arange(rows, device=points.device, dtype=torch.float64) + 0.5) * (height / rows)
    x = (torch.arange(columns, device=points.device, dtype=torch.float64) + 0.5) * (width / columns)
    dx, dy = x - points[:, :1], y - points[:, 1:]
    eccentricity = torch.hypot(dx[:, None, :], dy[:, :, None]) / longer
    if not callable(magnification):
        raise TypeError(
            f"foveate: cortical_magnification must be a function of the eccentricity, got {magnification!r}"
        )
    found = magnification(eccentricity)
    if not isinstance(found, Tensor) or found.shape != eccentricity.shape:
        got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ValueError(f"foveate: cortical_magnification must return {tuple(eccentricity.shape)}, got {got}")
    if found.device.type == "cpu" and not ((found > 0) & found.isfinite()).all():
        raise ValueError("foveate: cortical_magnification must be finite and above 0 in the whole image")
    return found**2
