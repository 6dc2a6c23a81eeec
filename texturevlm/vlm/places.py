"""Where a footprint lies on the grid that a pretrained model would have laid over the image.

A model reads positions as rows and columns of patches. A footprint may lie between them and may be larger than a patch,
so its positions are fractions: a coarse token sits at the centre of its area, each of its sub-patches at its own place.
All of this is arithmetic on tensors of any batch shape that reads no values, so a CUDA graph can capture it.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

COORDINATES = ("fine", "native")


@dataclass(frozen=True, eq=False)
class Places:
    """Rows and columns, as the model counts them.

    patch:  (..., M², 2), of each sub-patch, in patches, row by row
    extent: (..., M², 2), of the grid that `patch` counts on
    token:  (..., 2), of the whole token, in tokens
    """

    patch: Tensor
    extent: Tensor
    token: Tensor


def grid_for(size: tuple[int, int], side: int, *, least: float = 0, most: float = math.inf) -> tuple[int, int]:
    """Rows and columns of tokens that a Qwen processor would cut an image into.

    size:        (height, width)
    side:        of a token, in pixels
    least, most: pixels that the processor would enlarge or shrink the image to
    """
    height, width = size
    rows, columns = round(height / side), round(width / side)
    if rows * columns * side**2 > most:
        shrink = math.sqrt(height * width / most)
        return max(1, math.floor(height / shrink / side)), max(1, math.floor(width / shrink / side))
    if rows * columns * side**2 < least:
        grow = math.sqrt(least / (height * width))
        return math.ceil(height * grow / side), math.ceil(width * grow / side)
    return max(1, rows), max(1, columns)


def frame(size: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """(2, 2): pixels per token down and across, then rows and columns of the grid: input of `places`."""
    return torch.tensor([[size[0] / grid[0], size[1] / grid[1]], [float(grid[0]), float(grid[1])]])


def places(
    centre: Tensor, step: Tensor, frame: Tensor, *, side: int, merge: int = 2, coordinates: str = "fine"
) -> Places:
    """Positions of upright footprints.

    centre:      (..., K, 2), x then y in level-0 pixels
    step:        (..., K, 2), level-0 pixels per sample along x and along y
    frame:       (..., 2, 2), what `frame` gives for the image
    side, merge: a token is side × side samples and merge × merge patches
    coordinates: fine: all on the grid of the whole image; native: each on the grid of its own scale, as though the
                 image had been resized to it (the token's own position stays on the fine grid: the text refers to it)
    """
    cells, grid = frame[..., None, 0, :], frame[..., None, 1, :]
    on_grid = centre.flip(-1) / cells
    stretch = (step.flip(-1) * side / cells).unsqueeze(-2)
    inner = torch.arange(merge, device=centre.device, dtype=centre.dtype) + 0.5 - merge / 2
    down, across = inner[:, None].expand(merge, merge), inner[None].expand(merge, merge)
    offset = torch.stack([down, across], -1).reshape(merge**2, 2)
    middle, whole = (on_grid * merge).unsqueeze(-2), (grid * merge).unsqueeze(-2)
    if coordinates == "native":
        patch, extent = middle / stretch + offset - 0.5, whole / stretch
    else:
        patch, extent = middle + offset * stretch - 0.5, whole
    return Places(patch, extent.expand_as(patch), on_grid - 0.5)


def bilinear_taps(patch: Tensor, extent: Tensor, side: int) -> tuple[Tensor, Tensor]:
    """The four entries of a learned side × side position table around each position, and their weights.

    patch, extent: (N, 2), rows and columns; the first and the last position of the grid are those of the table
    returns        indices (N, 4) and weights (N, 4)
    """
    source = (patch.float() * (side - 1) / (extent.float() - 1).clamp(min=1)).clamp(0, side - 1)
    low = source.floor()
    near = source - low
    taps = torch.stack([low, (low + 1).clamp(max=side - 1)], -1).long()  # (N, axis, tap)
    share = torch.stack([1 - near, 1 - (1 - near)], -1)  # rounded as transformers rounds them
    indices = taps[:, 0, :, None] * side + taps[:, 1, None, :]
    weights = share[:, 0, :, None] * share[:, 1, None, :]
    return indices.flatten(1), weights.flatten(1)
