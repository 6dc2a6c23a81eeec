"""Where tokens stand: on the grid of a pretrained model, in packed rows, and in its language model.

A model reads positions as rows and columns of patches. A footprint may lie between them and may be larger than a patch,
so its positions are fractions: a coarse token sits at the centre of its area, each of its sub-patches at its own place.
`places` is arithmetic on tensors of any batch shape that reads no values, so a CUDA graph can capture it.

In packed rows, `pixel_values` in which every patch carries its own geometry, there come behind the pixels of a patch
its place in the image, where its token stands for the language model, and the weight of its token. So nothing has to be
remembered between the processor and the model: rows may be concatenated by a collator, repeated for beams, sent to
another process, or cast to bfloat16, which moves no position because each number is stored as a sum of pieces that
survive the cast. Rows of another width are a model's ordinary input.

For the language model text counts upwards. A visual token stands at its row and column from the start of its picture,
and the text behind a picture resumes where it would resume behind the full image (`mrope_positions`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

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


PIECES = 3  # bfloat16 numbers that hold a float32 exactly: 8 bits each
SEGMENT, FINER, PICTURE = 1, 1.5, 2  # what a patch begins


@dataclass(frozen=True, eq=False)
class Geometry:
    """N patches, in the order of their tokens, merge² of them per token.

    patch:  (N, 2), row and column, in patches
    extent: (N, 2), rows and columns of the grid that `patch` counts on; 0 marks a row of padding
    token:  (N, 2), row and column of the whole token on the grid of the full image, in tokens
    grid:   (N, 2), rows and columns of that grid
    moment: (N, 1), position in time from the start of the picture
    begins: (N, 1), SEGMENT if the patch begins a segment of attention, FINER if that attends to the earlier ones of its
            picture, too, PICTURE if it begins a picture, else 0
    """

    patch: Tensor
    extent: Tensor
    token: Tensor
    grid: Tensor
    moment: Tensor
    begins: Tensor

    def of_tokens(self, merge: int) -> Geometry:
        """Only the first patch of each token."""
        return Geometry(*(getattr(self, column.name)[:: merge**2] for column in fields(self)))


NUMBERS = 10  # columns of a Geometry
COLUMNS = NUMBERS * PIECES + 1  # behind the pixels; the last one is the weight


def pack(pixels: Tensor, geometry: Geometry, weight: Tensor) -> Tensor:
    """(N, W) pixels → (N, W + COLUMNS); gradients flow through the pixels and the weight (N, 1)."""
    numbers = torch.cat([getattr(geometry, column.name) for column in fields(geometry)], -1).to(pixels.device)
    pieces, rest = [], numbers.detach().float()
    for _ in range(PIECES):
        piece = rest.bfloat16().float()
        pieces.append(piece)
        rest = rest - piece
    return torch.cat([pixels, *pieces, weight.to(pixels)], -1)


def is_packed(rows: Tensor, width: int) -> bool:
    """Whether rows have the columns behind pixels of this width."""
    return rows.shape[-1] == width + COLUMNS


def unpack(rows: Tensor, width: int) -> tuple[Tensor, Geometry, Tensor]:
    """Pixels (N, W), their geometry in float32, and the weights (N, 1)."""
    pixels, columns, weight = rows.split([width, NUMBERS * PIECES, 1], -1)
    numbers = torch.stack(columns.float().chunk(PIECES, -1)).sum(0)
    return pixels.contiguous(), Geometry(*numbers.split([2, 2, 2, 2, 1, 1], -1)), weight


def mrope_positions(input_ids: Tensor, mask: Tensor | None, tokens: Mapping[int, Geometry]) -> tuple[Tensor, Tensor]:
    """Positions (3, B, L), whole numbers where all of them are, and the offset (B, 1) of the text that will follow.

    mask:   (B, L), 0 for padding, on either side
    tokens: for each placeholder id, the geometry of its visual tokens, in the order of the placeholders
    """
    live = torch.ones_like(input_ids) if mask is None else mask.to(input_ids.device)
    advance = live.float()
    place = advance.new_zeros(3, *input_ids.shape)
    for mark, geometry in tokens.items():
        where = (input_ids == mark) & live.bool()
        count = int(where.sum())
        if count != len(geometry.token):
            raise ValueError(
                f"input_ids must have one placeholder per visual token ({len(geometry.token)}), got {count}"
            )
        opens = (geometry.begins[:, 0] >= PICTURE).float()
        extent = geometry.grid.amax(1)
        advance[where] = opens * extent
        # Behind the first token of a picture the count has already gone on by the extent of the picture.
        offset = torch.cat([geometry.moment, geometry.token], 1) - ((1 - opens) * extent)[:, None]
        place[:, where] = offset.T
    place += advance.cumsum(1) - advance
    place *= live
    delta = (advance.sum(1) - live.sum(1)).round().long()[:, None]
    whole = place.round()
    return (whole.long() if torch.equal(place, whole) else place), delta
