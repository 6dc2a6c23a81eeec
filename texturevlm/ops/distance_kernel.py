"""distance_field by our kernels (distance.cu): exact, in two launches; in one up to a limit."""

import math
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from texturevlm.cuda.launch import launch
from texturevlm.cuda.struct import HOLE, Layout, constants, template
from texturevlm.ops.marks import Marks, packed

LINES_PER_BLOCK = 8  # one per warp
TILE_ROWS, LIMIT = constants("distance.cu", "TILE", "LIMIT")
TILE_COLUMNS = 32
_FIELD, _WITHIN = Layout("distance.cu", "Field"), Layout("distance.cu", "Within")


def distance_field_cuda(mask: Tensor, field: Tensor) -> Tensor:
    """Fill `field` (B, H, W). Per pixel, rows read one byte and write two, columns read two and write four."""
    batch, height, width = mask.shape
    mask = (mask if mask.dtype in (torch.bool, torch.uint8, torch.int8) else mask != 0).contiguous()
    across = torch.empty(mask.shape, dtype=torch.int16, device=mask.device)
    lines = batch * height
    parameters = _FIELD.pack(
        mask=mask,
        across=across,
        distance=field,
        lines=lines,
        height=height,
        width=width,
        diagonal=math.hypot(height, width),
    )
    launch("distance.cu", "distance_rows", mask.device, -(-lines // LINES_PER_BLOCK), parameters)
    tiles = -(-width // TILE_COLUMNS) * -(-height // TILE_ROWS) * batch
    launch("distance.cu", "distance_columns", mask.device, tiles, parameters)
    return field


def distance_within_cuda(bits: Tensor, field: Tensor, *, marks: Marks | None = None, reach: int = 0) -> None:
    """Fill `field` (B, H, W), each image of it contiguous, with the distance in units of LIMIT, at most 1.

    bits:  (B, H, ⌈W / 32⌉) int32, one bit per pixel, the first pixel's lowest
    marks: update only the pixels within LIMIT + `reach` of a marked tile
    """
    pack, tiles = _within(field.shape, field.stride(0), reach, packed(marks))
    launch("distance.cu", "distance_within", field.device, tiles, pack(bits.data_ptr(), field.data_ptr()))


@lru_cache(maxsize=256)
def _within(shape: torch.Size, stride: int, reach: int, marks: bytes | None) -> tuple[Callable[..., bytes], int]:
    """What packs the parameters from the two addresses, and the number of blocks."""
    batch, height, width = shape
    beyond = min(math.hypot(height, width) / LIMIT, 1.0)
    parameters = _WITHIN.pack(
        bits=HOLE, distance=HOLE, stride=stride, height=height, width=width, beyond=beyond, reach=reach, marks=marks
    )
    return template(parameters), -(-width // TILE_COLUMNS) * -(-height // TILE_ROWS) * batch
