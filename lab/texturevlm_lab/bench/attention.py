"""`texturevlm bench attention`: hierarchical attention beside dense attention, in time and in error.

The shapes are those of Qwen3-VL-4B: 32 heads that share 8 heads of keys, 128 wide, bfloat16. Visual tokens are a grid
in reading order, blocks follow its quadtree, and 64 tokens of text come behind. The time includes the summaries (but at
decode, where they are known) and the choice of blocks. What depends on places alone (the layout) is made once for all
layers and has a row of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from texturevlm_lab.attention.block_layout import BlockLayout
from texturevlm_lab.attention.hierarchical import hierarchical_attention
from texturevlm_lab.attention.key_value_texture import KeyValueTexture
from texturevlm_lab.attention.quadtree import quadtree_order
from texturevlm_lab.bench.attention_error import error_notes, trained_notes
from texturevlm_lab.bench.attention_page import add_page
from texturevlm_lab.bench.report import Report

TITLE = "Attention"
VISUAL_TOKENS = (273, 1024, 4096, 8192, 16384, 32768, 65536)
TEXT_TOKENS = 64
FINE_SHARE = 0.1
HIERARCHICAL = f"hierarchical, {FINE_SHARE:.0%} fine"
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
        how: Any = {"visual": self.visual, "causal": causal, "neighbours": neighbours, "device": self.k.device}
        length = self.k.shape[2]
        return BlockLayout.of(1, queries or length, length, **how)


def bench(report: Report) -> None:
    """Time prefill and decode by hierarchical and by dense attention; a quick run takes two small sizes."""
    add_page(report)
    sizes: dict[str, int] = {"heads": 4, "shared": 2, "width": 16} if report.quick else {}
    with torch.no_grad():
        for tokens in (64, 273) if report.quick else VISUAL_TOKENS:
            case = AttentionCase.of(tokens, report.device, **sizes)
            _prefill(report, case, tokens, causal=False)
            if tokens >= 4096:
                _prefill(report, case, tokens, causal=True)
            _decode(report, case, tokens)
            if tokens == RELATED or report.quick:
                _relatives(report, case, tokens)
    report.notes += [*error_notes(report.device, report.quick), *trained_notes(report.device, report.quick)]


def _prefill(report: Report, case: AttentionCase, tokens: int, *, causal: bool) -> None:
    work = f"prefill, {tokens} visual tokens" + (", causal" if causal else "")
    layout = case.layout(causal=causal)
    dense = partial(scaled_dot_product_attention, case.q, case.k, case.v, is_causal=causal, enable_gqa=True)
    taken = report.add(work, "SDPA", dense, repeats=7)
    calling, bars = _attending(case, layout=layout), {} if causal else PREFILL_BARS
    report.add(work, HIERARCHICAL, calling, bar=_bar(report, taken, bars.get(tokens)), repeats=7)
    if tokens == RELATED and not causal:
        how = "cpu" if report.device == "cpu" else "one call"
        report.add("layout, once per prompt", f"{tokens} visual tokens", case.layout, how, repeats=5)


def _decode(report: Report, case: AttentionCase, tokens: int) -> None:
    work = f"decode, {tokens} visual tokens"
    last = replace(case, q=case.q[:, :, -1:].contiguous())
    layout = case.layout(1)
    texture = KeyValueTexture.of(case.k, case.v, table=layout.table)
    dense = partial(scaled_dot_product_attention, last.q, case.k, case.v, enable_gqa=True)
    taken = report.add(work, "SDPA", dense, repeats=7)
    calling = _attending(last, layout=layout, texture=texture)
    report.add(work, HIERARCHICAL, calling, bar=_bar(report, taken, DECODE_BARS.get(tokens)), repeats=7)
    if tokens == max(VISUAL_TOKENS):
        share = texture.bytes / sum(part.numel() * part.element_size() for part in (case.k, case.v))
        report.notes.append(f"Summaries of {tokens} tokens take {share:.1%} of the memory of K and V.  ")


def _relatives(report: Report, case: AttentionCase, tokens: int) -> None:
    for kind in ("window", "linear"):
        layout = case.layout(neighbours=None if kind == "linear" else 1)
        calling = _attending(case, layout=layout, kind=kind)
        report.add(f"prefill, {tokens} visual tokens", kind, calling, repeats=7)


def _attending(case: AttentionCase, **options: Any) -> Any:
    return partial(hierarchical_attention, case.q, case.k, case.v, fine=FINE_SHARE, **options)


def _bar(report: Report, taken: float, factor: float | None) -> float | None:
    return taken / factor if factor and not report.quick and report.device == "cuda" else None
