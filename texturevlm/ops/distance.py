"""Distance fields: how far each pixel is from the nearest one that is set, exactly.

The square of a Euclidean distance is a sum over the axes, so a row is solved by two running extremes and a column by
the least of (y − j)² + (distance inside row j)². The reference finds that minimum by growing one row per step: in step
k a pixel takes the value of a vertical neighbour plus 2k − 1 if that is less, and 1 + 3 + … + (2k − 1) = k².
"""

import math
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from texturevlm.check import check_shapes
from texturevlm.cuda import HOLE, WARP, Layout, constants, launch, template
from texturevlm.ops import backend as backends
from texturevlm.ops.packed import Marks, pack_marks

MAX_KERNEL_EXTENT = 1 << 15  # a squared distance must fit into 32 bits
TILE_ROWS, LIMIT = constants("distance.cu", "TILE", "LIMIT")
_FIELD, _WITHIN = Layout("distance.cu", "Field"), Layout("distance.cu", "Within")
STEPS_PER_CHECK = 8
LINES_PER_BLOCK = 8  # one per warp


def distance_field(mask: Tensor, *, backend: str = "auto") -> Tensor:
    """The Euclidean distance from each pixel's centre to the centre of the nearest set pixel, in pixels.

    mask:    (B, H, W) of any dtype, any extent from 1×1; a pixel that is not zero is set
    returns  (B, H, W) float32, exact up to rounding: 0 on set pixels. Where an image has no set pixel, all of it is
             the diagonal √(H² + W²), which no distance inside the image reaches
    """
    check_shapes("distance_field", mask=(mask, "B H W"))
    if mask.numel() == 0:
        raise ValueError(f"distance_field: mask must not be empty, got {tuple(mask.shape)}")
    field = torch.empty(mask.shape, dtype=torch.float32, device=mask.device)
    limit = f"the kernel takes extents below {MAX_KERNEL_EXTENT}, not {max(mask.shape[1:])}"
    large = max(mask.shape[1:]) >= MAX_KERNEL_EXTENT
    if backends.choose("distance_field", field, backend, limit if large else None) == "cuda":
        return _distance_field_cuda(mask, field)
    return distance_field_reference(mask)


def distance_field_reference(mask: Tensor) -> Tensor:
    """The specification, in plain PyTorch."""
    furthest = mask.shape[1] ** 2 + mask.shape[2] ** 2
    exact = torch.float32 if furthest < 1 << 24 else torch.float64  # holds every squared distance as a whole number
    squares = _along_columns(_along_rows(mask != 0, exact).square_())
    return squares.clamp(max=furthest).sqrt_().float()


def _along_rows(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """How far the nearest set pixel of the same row is; infinitely far where the row has none."""
    x = torch.arange(mask.shape[-1], dtype=dtype, device=mask.device)
    infinite = torch.tensor(torch.inf, dtype=dtype, device=mask.device)
    left = torch.where(mask, x, -infinite).cummax(-1).values
    right = torch.where(mask, x, infinite).flip(-1).cummin(-1).values.flip(-1)
    return torch.minimum(x - left, right - x)


def _along_columns(squares: Tensor) -> Tensor:
    """The least of (y − j)² + squares[j] over all rows j.

    A row whose neighbours did not change in one step cannot change in the next, because each step adds more. So
    every few steps the search narrows to the rows near the last changes, and where nothing changed it is done.
    """
    height = squares.shape[1]
    best = torch.nn.functional.pad(squares, (0, 0, 1, 1), value=torch.inf)
    grown = torch.empty_like(best)
    first, last = 1, height + 1
    for step in range(1, height):
        here, there = best[:, first:last], grown[:, first:last]
        torch.minimum(best[:, first - 1 : last - 1], best[:, first + 1 : last + 1], out=there)
        there += 2 * step - 1
        if step % STEPS_PER_CHECK == 0:
            changed = (there < here).any(2).any(0).nonzero()
            if len(changed) == 0:
                break
            upper, lower = first + int(changed[0]), first + int(changed[-1])
            first, last = max(1, upper - STEPS_PER_CHECK), min(height + 1, lower + 1 + STEPS_PER_CHECK)
        torch.minimum(here, there, out=here)
    return best[:, 1:-1]


def _distance_field_cuda(mask: Tensor, field: Tensor) -> Tensor:
    """Fill `field` (B, H, W). Per pixel, rows read one byte and write two, columns read two and write four."""
    batch, height, width = mask.shape
    mask = (mask if mask.dtype in (torch.bool, torch.uint8, torch.int8) else mask != 0).contiguous()
    across = torch.empty(mask.shape, dtype=torch.int16, device=mask.device)
    sizes = {"lines": batch * height, "height": height, "width": width, "diagonal": math.hypot(height, width)}
    parameters = _FIELD.pack(mask=mask, across=across, distance=field, **sizes)
    launch("distance.cu", "distance_rows", mask.device, -(-batch * height // LINES_PER_BLOCK), parameters)
    launch("distance.cu", "distance_columns", mask.device, _tiles(field.shape), parameters)
    return field


def _tiles(shape: torch.Size) -> int:
    batch, height, width = shape
    return -(-width // WARP) * -(-height // TILE_ROWS) * batch


def distance_within_cuda(bits: Tensor, field: Tensor, *, marks: Marks | None = None, reach: int = 0) -> None:
    """Fill `field` (B, H, W), each image of it contiguous, with the distance in units of LIMIT, at most 1.

    bits:  (B, H, ⌈W / 32⌉) int32, one bit per pixel, the first pixel's lowest
    marks: update only the pixels within LIMIT + `reach` of a marked tile
    """
    pack, tiles = _within(field.shape, field.stride(0), reach, pack_marks(marks))
    launch("distance.cu", "distance_within", field.device, tiles, pack(bits.data_ptr(), field.data_ptr()))


@lru_cache(maxsize=256)
def _within(shape: torch.Size, stride: int, reach: int, marks: bytes | None) -> tuple[Callable[..., bytes], int]:
    """What packs the parameters from the two addresses, and the number of blocks."""
    _, height, width = shape
    beyond = min(math.hypot(height, width) / LIMIT, 1.0)
    parameters = _WITHIN.pack(
        bits=HOLE, distance=HOLE, stride=stride, height=height, width=width, beyond=beyond, reach=reach, marks=marks
    )
    return template(parameters), _tiles(shape)
