"""select by our kernels (select.cu): three launches, for any number of images and plans."""

from functools import lru_cache

import torch
from torch import Tensor

from texturevlm.cuda.launch import launch
from texturevlm.cuda.struct import Layout
from texturevlm.ops.select import Footprints, Packed

ROWS_PER_BLOCK = 8  # one per warp
_SELECT = Layout("select.cu", "Select")
_PLAN = Layout("select.cu", "Plan").in_order("rows", "columns", "stages", "level")
_LEVEL = Layout("select.cu", "Level").in_order("across", "down", "survivors", "seen", "finest", "last", "unused")


def select_cuda(
    maps: Tensor, legible_scale: Tensor, ink: Tensor, todo: Packed, size: tuple[int, int], budget: int, patch: int
) -> Footprints:
    """`select` without uploads and without waiting: the plans travel with the launch."""
    batch, count, rows, columns = maps.shape
    maps, legible_scale, ink = maps.float().contiguous(), legible_scale.float().contiguous(), ink.contiguous()
    lines = batch * (count * len(todo.scales) + 1) * rows
    plans = len(todo.plans)
    room = lines * (columns + 1) + batch * plans * (5 * budget + 2)
    whole = torch.empty(room, dtype=torch.int32, device=maps.device)
    tables = whole.data_ptr()
    tiles = tables + 4 * lines * (columns + 1)
    tokens = empty_footprints(batch, budget, maps.device)
    parameters = _fixed(todo).pack(
        maps=maps,
        legible_scale=legible_scale,
        ink=ink,
        tables=tables,
        tiles=tiles,
        totals=tiles + 4 * batch * plans * 5 * budget,
        **tokens._asdict(),
        batch=batch,
        maps_count=count,
        cell_rows=rows,
        cell_columns=columns,
        height=size[0],
        width=size[1],
        budget=budget,
        patch=patch,
    )
    launch("select.cu", "select_sums", maps.device, -(-lines // ROWS_PER_BLOCK), parameters)
    launch("select.cu", "select_tokens", maps.device, (plans, batch), parameters, early=True)
    launch("select.cu", "select_best", maps.device, batch, parameters, early=True)
    return tokens


def empty_footprints(batch: int, budget: int, device: torch.device) -> Footprints:
    """Footprints for a kernel to write, by two allocations."""
    memory = torch.empty((7, batch, budget), device=device)
    centre, ddx, ddy = (memory[2 * part : 2 * part + 2].view(batch, budget, 2) for part in range(3))
    return Footprints(centre, ddx, ddy, memory[6], torch.empty((batch, budget), dtype=torch.bool, device=device))


@lru_cache(maxsize=256)
def _fixed(todo: Packed) -> Layout:
    """The struct with the plans in it."""
    return _SELECT.fix(
        plans=len(todo.plans),
        scales=len(todo.scales),
        plan=[_PLAN(*plan) for plan in todo.plans],
        level=[_LEVEL(*level, 0) for level in todo.levels],
        scale=todo.scales,
    )
