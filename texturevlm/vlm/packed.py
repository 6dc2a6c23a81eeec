"""Packed rows: `pixel_values` in which every patch carries its own geometry.

Behind the pixels of a patch come its place in the image, where its token stands for the language model, and the weight
of its token. So nothing has to be remembered between the processor and the model: rows may be concatenated by a
collator, repeated for beams, sent to another process, or cast to bfloat16, which moves no position because each number
is stored as a sum of pieces that survive the cast. Rows of another width are a model's ordinary input.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

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
        return Geometry(*(getattr(self, one.name)[:: merge**2] for one in fields(self)))


NUMBERS = 10  # columns of a Geometry
COLUMNS = NUMBERS * PIECES + 1  # behind the pixels; the last one is the weight


def pack(pixels: Tensor, geometry: Geometry, weight: Tensor) -> Tensor:
    """(N, W) pixels → (N, W + COLUMNS); gradients flow through the pixels and the weight (N, 1)."""
    numbers = torch.cat([getattr(geometry, one.name) for one in fields(geometry)], -1).to(pixels.device)
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
