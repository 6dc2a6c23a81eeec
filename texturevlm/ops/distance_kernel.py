"""distance_field by our kernels (distance.cu): exact, in two launches; in one up to a limit."""

import math
import struct

import torch
from torch import Tensor

from texturevlm.cuda.launch import launch
from texturevlm.ops.marks import Marks, packed

LINES_A_BLOCK = 8  # one a warp
TILE_ROWS, TILE_COLUMNS = 64, 32
LIMIT = 64  # pixels, as in distance.cu
_FIELD = struct.Struct("=3Q3if")
_WITHIN = struct.Struct("=2Qq2ifi24s")


def distance_field_cuda(mask: Tensor, field: Tensor) -> Tensor:
    """Fill `field`. A pixel is one byte read and two written along rows, two read and four written along columns."""
    batch, height, width = mask.shape
    mask = (mask if mask.dtype in (torch.bool, torch.uint8, torch.int8) else mask != 0).contiguous()
    across = torch.empty(mask.shape, dtype=torch.int16, device=mask.device)
    lines = batch * height
    parameters = _FIELD.pack(
        mask.data_ptr(), across.data_ptr(), field.data_ptr(), lines, height, width, math.hypot(height, width)
    )
    launch("distance.cu", "distance_rows", mask.device, -(-lines // LINES_A_BLOCK), parameters, SCALAR=32)
    tiles = -(-width // TILE_COLUMNS) * -(-height // TILE_ROWS) * batch
    launch("distance.cu", "distance_columns", mask.device, tiles, parameters, SCALAR=32)
    return field


def distance_within_cuda(bits: Tensor, field: Tensor, *, marks: Marks | None = None, reach: int = 0) -> None:
    """Fill `field` (B, H, W), each image of it contiguous, with the distance in units of LIMIT, at most 1.

    bits:  (B, H, ⌈W / 32⌉) int32, a bit for each set pixel, the first pixel's lowest
    marks: only what bits up to `reach` pixels from a marked tile act on is made
    """
    batch, height, width = field.shape
    beyond = min(math.hypot(height, width) / LIMIT, 1.0)
    where = (bits.data_ptr(), field.data_ptr(), field.stride(0))
    parameters = _WITHIN.pack(*where, height, width, beyond, reach, packed(marks))
    tiles = -(-width // TILE_COLUMNS) * -(-height // TILE_ROWS) * batch
    launch("distance.cu", "distance_within", field.device, tiles, parameters, SCALAR=32)
