"""`texturevlm bench attention`: hierarchical attention beside dense attention, in time and in error.

The shapes are those of Qwen3-VL-4B: 32 heads that share 8 heads of keys, 128 wide, bfloat16. Visual tokens are a grid
in reading order, blocks follow its quadtree, and 64 tokens of text come behind. The time includes the summaries (but at
decode, where they are known) and the choice of blocks. What depends on places alone (the layout) is made once for all
layers and has a row of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from texturevlm_lab.attention.block_layout import BlockLayout
from texturevlm_lab.attention.hierarchical import hierarchical_attention
from texturevlm_lab.attention.key_value_texture import KeyValueTexture
from texturevlm_lab.attention.quadtree import quadtree_order
from texturevlm_lab.bench.attention_error import error_notes
from texturevlm_lab.bench.attention_page import add_page
from texturevlm_lab.bench.attention_trained import trained_notes
from texturevlm_lab.bench.report import Report, begin

VISUAL_TOKENS = (273, 1024, 4096, 8192, 16384, 32768, 65536)
TEXT_TOKENS = 64
FINE_SHARE = 0.1
PREFILL_BARS = {8192: 1.0, 16384: 1.5, 32768: 1.5, 65536: 2.5}  # how many times as fast as dense
DECODE_BARS = {65536: 2.0}
RELATED = 16384  # tokens at which the relatives are timed


@dataclass(frozen=True, eq=False)
class AttentionCase:
    """Queries, keys and values of one layer, and its layout."""

    q: Tensor
    k: Tensor
    v: Tensor
    visual: Tensor

    @staticmethod
    def of(tokens: int, device: str, *, heads: int = 32, shared: int = 8, width: int = 128) -> AttentionCase:
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        length = tokens + TEXT_TOKENS
        q, k, v = (torch.randn(1, one, length, width, device=device, dtype=dtype) for one in (heads, shared, shared))
        columns = math.isqrt(tokens)
        index = torch.arange(tokens, device=device)
        return AttentionCase(q, k, v, quadtree_order(torch.stack([index // columns, index % columns], -1).double()))

    def layout(self, queries: int | None = None, *, causal: bool = False, neighbours: int | None = 1) -> BlockLayout:
        length = self.k.shape[2]
        return BlockLayout.of(
            1,
            queries or length,
            length,
            visual=self.visual,
            causal=causal,
            neighbours=neighbours,
            device=self.k.device,
        )


def bench_attention(device: str | None = None, *, quick: bool = False) -> Report:
    """Time prefill and decode by hierarchical and by dense attention; `quick` takes two small sizes."""
    report = begin(__name__, "Attention", device, quick)
    add_page(report)
    sizes: dict[str, int] = {"heads": 4, "shared": 2, "width": 16} if quick else {}
    for tokens in (64, 273) if quick else VISUAL_TOKENS:
        case = AttentionCase.of(tokens, report.device, **sizes)
        _prefill(report, case, tokens, causal=False)
        if tokens >= 4096:
            _prefill(report, case, tokens, causal=True)
        _decode(report, case, tokens)
        if tokens == RELATED or quick:
            _relatives(report, case, tokens)
    report.notes += [*error_notes(report.device, quick), *trained_notes(report.device, quick)]
    return report


def _prefill(report: Report, case: AttentionCase, tokens: int, *, causal: bool) -> None:
    work = f"prefill, {tokens} visual tokens" + (", causal" if causal else "")
    layout = case.layout(causal=causal)
    given = case.q, case.k, case.v
    taken = _add(report, work, "SDPA", partial(scaled_dot_product_attention, *given, is_causal=causal, enable_gqa=True))
    factor = None if report.quick or report.device == "cpu" else PREFILL_BARS.get(tokens)
    bar = taken / factor if factor and not causal else None
    _add(report, work, f"hierarchical, {FINE_SHARE:.0%} fine", _attending(*given, layout=layout), bar=bar)
    if tokens == RELATED and not causal:
        report.add(
            "layout, once per prompt", f"{tokens} visual tokens", case.layout, _timer(report, host=True), repeats=5
        )


def _decode(report: Report, case: AttentionCase, tokens: int) -> None:
    work = f"decode, {tokens} visual tokens"
    given = case.q[:, :, -1:].contiguous(), case.k, case.v
    layout = case.layout(1)
    texture = KeyValueTexture.of(case.k, case.v, table=layout.table)
    taken = _add(report, work, "SDPA", partial(scaled_dot_product_attention, *given, enable_gqa=True))
    factor = None if report.quick or report.device == "cpu" else DECODE_BARS.get(tokens)
    calling = _attending(*given, layout=layout, texture=texture)
    _add(report, work, f"hierarchical, {FINE_SHARE:.0%} fine", calling, bar=taken / factor if factor else None)
    if tokens == max(VISUAL_TOKENS):
        share = texture.bytes / sum(one.numel() * one.element_size() for one in (case.k, case.v))
        report.notes.append(f"Summaries of {tokens} tokens take {share:.1%} of the memory of K and V.  ")


def _relatives(report: Report, case: AttentionCase, tokens: int) -> None:
    work, given = f"prefill, {tokens} visual tokens", (case.q, case.k, case.v)
    for kind in ("window", "linear"):
        layout = case.layout(neighbours=None if kind == "linear" else 1)
        _add(report, work, kind, _attending(*given, layout=layout, kind=kind))


def _attending(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    return partial(hierarchical_attention, q, k, v, fine=FINE_SHARE, **options)


def _add(report: Report, work: str, by: str, call: Any, *, bar: float | None = None) -> float:
    with torch.no_grad():
        return report.add(work, by, call, _timer(report), bar=bar, repeats=7)


def _timer(report: Report, *, host: bool = False) -> str:
    return "cpu" if report.device == "cpu" else "one call" if host else "warm"
