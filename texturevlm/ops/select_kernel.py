"""select by our kernels (select.cu): three launches, whatever the number of images and plans."""

import struct
from functools import lru_cache

import torch
from torch import Tensor

from texturevlm.cuda.launch import launch
from texturevlm.ops.select import MOST, Packed, Tokens

ROWS_A_BLOCK = 8  # one a warp
_POINTERS = struct.Struct("=11Q10i")
_PLAN = struct.Struct("=4H")
_LEVEL = struct.Struct("=2BH3Bx")


def select_cuda(
    maps: Tensor, half: Tensor, ink: Tensor, todo: Packed, size: tuple[int, int], budget: int, patch: int
) -> Tokens:
    """Nothing is uploaded and nothing waited for: the plans travel with the launch."""
    batch, count, rows, columns = maps.shape
    maps, half, ink = maps.float().contiguous(), half.float().contiguous(), ink.contiguous()
    lines = batch * (count * len(todo.scales) + 1) * rows
    plans = len(todo.plans)
    room = lines * (columns + 1) + batch * plans * (5 * budget + 2)
    whole = torch.empty(room, dtype=torch.int32, device=maps.device)
    tables = whole.data_ptr()
    tiles = tables + 4 * lines * (columns + 1)
    totals = tiles + 4 * batch * plans * 5 * budget
    memory = maps.new_empty((7, batch, budget))
    centre, ddx, ddy = (memory[2 * part : 2 * part + 2].view(batch, budget, 2) for part in range(3))
    score = memory[6]
    valid = torch.empty((batch, budget), dtype=torch.bool, device=maps.device)
    outputs = [tensor.data_ptr() for tensor in (centre, ddx, ddy, score, valid)]
    inputs = [tensor.data_ptr() for tensor in (maps, half, ink)]
    sizes = (batch, count, rows, columns, *size, budget, patch, plans, len(todo.scales))
    parameters = _POINTERS.pack(*inputs, tables, tiles, totals, *outputs, *sizes) + _pack(todo)
    launch("select.cu", "select_sums", maps.device, -(-lines // ROWS_A_BLOCK), parameters, SCALAR=32)
    launch("select.cu", "select_tokens", maps.device, (plans, batch), parameters, early=True, SCALAR=32)
    launch("select.cu", "select_best", maps.device, batch, parameters, early=True, SCALAR=32)
    return Tokens(centre, ddx, ddy, score, valid)


def empty_tokens(batch: int, budget: int, device: torch.device) -> Tokens:
    """Footprints for a kernel to write, by two allocations."""
    memory = torch.empty((7, batch, budget), device=device)
    centre, ddx, ddy = (memory[2 * part : 2 * part + 2].view(batch, budget, 2) for part in range(3))
    return Tokens(centre, ddx, ddy, memory[6], torch.empty((batch, budget), dtype=torch.bool, device=device))


@lru_cache(maxsize=256)
def _pack(todo: Packed) -> bytes:
    """The plans, as the kernel has room for them."""
    plans = b"".join(_PLAN.pack(*plan) for plan in todo.plans).ljust(_PLAN.size * MOST["plans"], b"\0")
    levels = b"".join(_LEVEL.pack(*level) for level in todo.levels).ljust(_LEVEL.size * MOST["levels"], b"\0")
    scales = struct.pack(f"={len(todo.scales)}f", *todo.scales).ljust(4 * MOST["scales"], b"\0")
    return plans + levels + scales
