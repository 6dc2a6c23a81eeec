"""Hierarchical attention on a GPU by Triton. The backward pass goes through the reference, group by group."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm_lab.attention.block_layout import WHOLE, BlockLayout
from texturevlm_lab.attention.hierarchical_reference import attend, mean_summaries, readings
from texturevlm_lab.attention.key_value_texture import KeyValueLevel, block_means

LOG2E = math.log2(math.e)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
WIDTHS, SIDES = (16, 32, 64, 128, 256), (16, 32, 64, 128)  # of a head; of a block or a group
MOST_BLOCKS = 8192  # that one program can choose from
ONE_WARP = 1024  # blocks up to which one warp chooses: it needs no barriers
MOST_ROWS = 128  # of queries in one tile
PREFILL = {"num_warps": 8, "num_stages": 3}
DECODE = {"num_warps": 4, "num_stages": 2}
DECODE_SPLITS = 32  # programs that share the keys of a new token


@dataclass(eq=False)
class Choice:
    """Blocks that a layer has chosen, as the kernels take them; layers that share a choice take it as it is.

    chosen: (B, K, G, C), -1 for none
    count:  (B, K, G), how many they are
    bias:   (B, K, G, V), of the summaries of the others, in base 2
    given:  what was returned to the caller for `chosen`
    """

    chosen: Tensor
    count: Tensor
    bias: Tensor
    given: Tensor | None = None


def no_triton_because(q: Tensor, k: Tensor, v: Tensor, layout: BlockLayout, kind: str, masked: bool) -> str | None:
    """Why the kernels cannot run; None if they can."""
    group = layout.queries.shape[2]
    if q.device.type != "cuda" and not _interpreted():
        return f"the tensors are on {q.device}, not on a CUDA GPU"
    if q.dtype not in DTYPES or k.dtype != q.dtype or v.dtype != q.dtype:
        got = ", ".join(str(one.dtype).removeprefix("torch.") for one in (q, k, v))
        return f"the kernels take float32, float16 or bfloat16, one for all, not {got}"
    if q.shape[3] > WIDTHS[-1] or v.shape[3] != q.shape[3]:
        return f"the kernels take heads of up to {WIDTHS[-1]}, of one width, not {q.shape[3]} and {v.shape[3]}"
    if layout.block not in SIDES or group not in SIDES:
        return f"the kernels take blocks and groups of {', '.join(map(str, SIDES))}, not {layout.block} and {group}"
    if kind == "latent" or masked:
        return "the kernels have no latent summaries and no mask but is_causal and that of keys"
    if not 0 < layout.visual <= MOST_BLOCKS:
        return f"the kernels take 1 to {MOST_BLOCKS} visual blocks, not {layout.visual}"
    if not _has_triton():
        return "Triton is not installed: pip install 'texturevlm[attention]'"
    return None


def attend_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: BlockLayout,
    *,
    fine: float,
    scale: float,
    summaries: bool,
    level: KeyValueLevel | None = None,
    chosen: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The output, and the blocks that were chosen; arguments as of `hierarchical_attention`."""
    width = q.shape[3]
    if short := next(one for one in WIDTHS if one >= width) - width:  # zeros change no score
        q, k, v = (functional.pad(one, (0, short)) for one in (q, k, v))
        if level is not None:
            wide_key, wide_value = (functional.pad(one, (0, short)) for one in (level.key, level.value))
            level = KeyValueLevel(wide_key, wide_value, level.count)
        out, chosen = attend_triton(
            q, k, v, layout, fine=fine, scale=scale, summaries=summaries, level=level, chosen=chosen
        )
        return out[..., :width], chosen
    means = (None, None) if level is None else (level.key, level.value)
    given = (q, k, v, *means)
    if torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in given):
        options = layout, fine, scale, summaries, None if level is None else level.count, chosen
        found: tuple[Tensor, Tensor] = _Attend.apply(*given, *options)  # type: ignore[no-untyped-call]
        return found
    return _forward(q, k, v, layout, fine, scale, summaries, level, chosen)


class _Attend(torch.autograd.Function):
    """q, k, v, the means that are known, or None; then what is not differentiated."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        layout: BlockLayout,
        fine: float,
        scale: float,
        summaries: bool,
        count: Tensor | None,
        chosen: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        level = _level(key, value, count)
        out, chosen = _forward(q, k, v, layout, fine, scale, summaries, level, chosen)
        ctx.save_for_backward(q, k, v, key, value, chosen)
        ctx.options = layout, scale, summaries, count
        ctx.mark_non_differentiable(chosen)
        return out, chosen

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        *given, chosen = ctx.saved_tensors
        layout, scale, summaries, count = ctx.options
        q, k, v, key, value = given = [None if one is None else one.detach().requires_grad_() for one in given]
        with torch.enable_grad():
            level = _level(key, value, count) or block_means(k, v, layout.table, layout.block)
            stands = mean_summaries(level) if summaries else None
            out = attend(q, k, v, layout, chosen, stands, scale=scale).to(q.dtype)
        there = [one for one in given if one is not None]
        found = iter(torch.autograd.grad(out, there, gradients[0], allow_unused=True))  # unused: means in a window
        return (*(None if one is None else next(found) for one in given), *(None,) * 6)


def _level(key: Tensor | None, value: Tensor | None, count: Tensor | None) -> KeyValueLevel | None:
    return None if key is None or value is None or count is None else KeyValueLevel(key, value, count)


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: BlockLayout,
    fine: float,
    scale: float,
    summaries: bool,
    level: KeyValueLevel | None,
    chosen: Tensor | None,
) -> tuple[Tensor, Tensor]:
    q, k, v = (one if one.stride(3) == 1 else one.contiguous() for one in (q, k, v))
    if q.shape[2] > 1 and not layout.plain:
        key_means, k = _means(k, layout.keys.flatten(1), layout.block, arrange=True)
        value_means, v = _means(v, layout.keys.flatten(1), layout.block, arrange=True)
        if level is None:
            key_means, value_means = (one[:, :, : layout.visual].contiguous() for one in (key_means, value_means))
            level = KeyValueLevel(key_means, value_means, layout.count)
    elif level is None:
        key_means, value_means = (_means(one, layout.table.contiguous(), layout.block)[0] for one in (k, v))
        level = KeyValueLevel(key_means, value_means, layout.count)
    if chosen is not None:
        choice = _given(chosen, layout)
    elif summaries or layout.most(fine):
        choice = _select(q, level, layout, fine, scale)
    else:
        choice = _nothing(level, layout)
    run = _decode if q.shape[2] == 1 else _prefill
    out = run(q, k, v, layout, level, choice, scale, summaries)
    if chosen is None:
        choice.given = choice.chosen[..., : layout.most(fine)]
        layout.memory["choice"] = choice
    return out, choice.chosen if choice.given is None else choice.given


def means_by_triton(key: Tensor, value: Tensor, table: Tensor, block: int) -> tuple[Tensor, Tensor] | None:
    """The means of the blocks of a table (B, N · block); None where the kernel cannot run, or gradients are wanted."""
    wanted = torch.is_grad_enabled() and (key.requires_grad or value.requires_grad)
    fits = key.dtype in DTYPES and block in SIDES and all(one.shape[3] in WIDTHS for one in (key, value))
    if wanted or not fits or not table.numel() or key.device.type != "cuda" or not _has_triton():
        return None
    given = (one if one.stride(3) == 1 else one.contiguous() for one in (key, value))
    table = table.to(torch.int32).contiguous()
    mean_key, mean_value = (_means(one, table, block)[0] for one in given)
    return mean_key, mean_value


def _means(rows: Tensor, table: Tensor, block: int, *, arrange: bool = False) -> tuple[Tensor, Tensor]:
    """The means of the rows (B, H, L, D) of each block of a table (B, N · block), and the rows in its order."""
    from texturevlm_lab.attention.hierarchical_kernels import mean_kernel

    batch, heads, _, width = rows.shape
    slots = table.shape[1]
    means = rows.new_empty(batch, heads, slots // block, width)
    arranged = rows.new_empty(batch, heads, slots, width) if arrange else rows
    mean_kernel[slots // block, batch * heads](
        rows, table, means, arranged, heads, slots, *rows.stride()[:3], BLOCK=block, WIDTH=width, ARRANGE=arrange
    )
    return means, arranged


def _select(q: Tensor, level: KeyValueLevel, layout: BlockLayout, fine: float, scale: float) -> Choice:
    """Choose by the means of queries and keys."""
    from triton import next_power_of_2

    from texturevlm_lab.attention.hierarchical_kernels import score_kernel, select_kernel

    batch, heads, blocks, width = level.key.shape
    groups, repeat = layout.queries.shape[1], q.shape[1] // heads
    most = layout.most(fine)
    chosen = torch.empty(batch, heads, groups, max(1, most), dtype=torch.int32, device=q.device)
    count = _room(layout, q, "count", batch, heads, groups, dtype=torch.int32)
    bias = _room(layout, q, "bias", batch, heads, groups, blocks)
    asking = q if q.shape[2] == 1 else _means(q, layout.queries.flatten(1), layout.queries.shape[2])[0]
    asking = asking.to(level.key.dtype).contiguous()
    rows, side = repeat * groups, 64 if repeat * groups > 16 else 16
    scores = _room(layout, q, "scores", batch * heads, rows, blocks)
    score_kernel[_over(rows, side), _over(blocks, 64), batch * heads](
        asking, level.key, scores, rows, blocks, scale * LOG2E,
        ROWS=side, BLOCKS=64, WIDTH=width, PRECISION=_precision(level.key),
    )  # fmt: skip
    select_kernel[groups, batch * heads](
        scores, layout.state, layout.allowed(fine), layout.count, chosen, count, bias,
        heads, groups, blocks, layout.state.shape[2], chosen.shape[3],
        REPEAT=repeat, BLOCKS=max(32, next_power_of_2(blocks)), num_warps=1 if blocks <= ONE_WARP else 4,
    )  # fmt: skip
    return Choice(chosen, count, bias)


def _nothing(level: KeyValueLevel, layout: BlockLayout) -> Choice:
    """No block, and no summary: attention within windows."""
    shape = (*level.key.shape[:2], layout.queries.shape[1])
    count = torch.zeros(shape, dtype=torch.int32, device=level.key.device)
    return Choice(count[..., None] - 1, count, level.key.new_empty(0).float())


def _given(chosen: Tensor, layout: BlockLayout) -> Choice:
    """Blocks that were chosen before; those that a group does not see whole are left out."""
    last: Choice | None = layout.memory.get("choice")
    if last is not None and chosen is last.given:
        return last
    state = layout.state[:, None].expand(-1, chosen.shape[1], -1, -1)
    whole = state.gather(3, chosen.clamp(min=0).long()) == WHOLE
    kept = torch.where(whole & (chosen >= 0), chosen, -1).sort(dim=-1, descending=True).values.int().contiguous()
    instead = readings(layout, kept)[1]
    size = layout.count.clamp(min=1).log2()[:, None, None]
    bias = torch.where(instead, size, -math.inf).contiguous()
    return Choice(kept, (kept >= 0).sum(-1, dtype=torch.int32), bias)


def _prefill(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: BlockLayout,
    level: KeyValueLevel,
    choice: Choice,
    scale: float,
    summaries: bool,
) -> Tensor:
    from texturevlm_lab.attention.hierarchical_kernels import attend_kernel

    batch, heads, blocks, width = level.key.shape
    (groups, group), repeat, asked = layout.queries.shape[1:], q.shape[1] // heads, q.shape[2]
    always, always_count = layout.always
    together = max(one for one in (1, 2, 4, 8) if repeat % one == 0 and (one == 1 or one * group <= MOST_ROWS))
    out = (q.new_zeros if layout.padded else q.new_empty)(batch, q.shape[1], asked, width)
    attend_kernel[groups * (repeat // together), batch * heads](
        q, k, v, level.key, level.value, choice.bias, layout.keys, layout.queries,
        choice.chosen, choice.count, always, always_count, layout.limit, out,
        heads, repeat, groups, blocks, layout.keys.shape[1], choice.chosen.shape[3], always.shape[2],
        asked, layout.length - asked, scale * LOG2E, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
        GROUP=group, HEADS=together, BLOCK=layout.block, WIDTH=width,
        CAUSAL=layout.causal, SUMMARIES=summaries, PRECISION=_precision(q), **PREFILL,
    )  # fmt: skip
    return out


def _decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: BlockLayout,
    level: KeyValueLevel,
    choice: Choice,
    scale: float,
    summaries: bool,
) -> Tensor:
    from triton import next_power_of_2

    from texturevlm_lab.attention.hierarchical_kernels import decode_kernel, merge_kernel

    batch, heads, blocks, width = level.key.shape
    repeat = q.shape[1] // heads
    rows = max(16, next_power_of_2(repeat))
    always, always_count = layout.always
    partial = _room(layout, q, "partial", batch * heads, DECODE_SPLITS, repeat, width)
    parts = _room(layout, q, "parts", batch * heads, DECODE_SPLITS, repeat, 2)  # greatest score and sum of each
    decode_kernel[DECODE_SPLITS, batch * heads](
        q, k, v, level.key, level.value, choice.bias, layout.keys, choice.chosen, choice.count, always, always_count,
        partial, parts,
        heads, blocks, layout.keys.shape[1], choice.chosen.shape[3], always.shape[2],
        DECODE_SPLITS, _over(blocks, layout.block) if summaries else 0, scale * LOG2E,
        *q.stride()[:2], *k.stride()[:3], *v.stride()[:3],
        REPEAT=repeat, ROWS=rows, BLOCK=layout.block, WIDTH=width, PRECISION=_precision(q), **DECODE,
    )  # fmt: skip
    out = torch.empty(batch, q.shape[1], 1, width, dtype=q.dtype, device=q.device)
    merge_kernel[(batch * q.shape[1],)](
        partial, parts, out, DECODE_SPLITS, REPEAT=repeat, SPLITS=next_power_of_2(DECODE_SPLITS), WIDTH=width
    )
    return out


def _room(layout: BlockLayout, q: Tensor, name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Memory that kernels hand to one another; for a new token all layers, and the tokens after it, have the same."""
    if q.shape[2] > 1:
        return torch.empty(shape, dtype=dtype, device=q.device)
    found: Tensor | None = layout.memory.get(name)
    if found is None or found.shape != shape:
        found = layout.memory[name] = torch.empty(shape, dtype=dtype, device=q.device)
    return found


def _precision(values: Tensor) -> str:
    return "ieee" if values.dtype == torch.float32 else "tf32"


def _over(count: int, side: int) -> int:
    return -(-count // side)


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def _interpreted() -> bool:
    """Whether Triton runs its kernels on the CPU, for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"
