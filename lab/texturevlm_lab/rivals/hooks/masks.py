"""Attention masks for keys some of which are padding and some of which stand for several tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

EXPLICIT = ("sdpa", "eager")  # implementations that take a mask of numbers


@dataclass(frozen=True, eq=False)
class Keys:
    """The prompt's keys of one layer.

    live: (B, L), which are attended to
    size: (B, L), how many tokens each stands for: attention gets + log(size)
    whole, single: whether all are attended to; whether all are of size 1. Known once, so that decoding does not wait
    """

    live: Tensor
    size: Tensor
    whole: bool
    single: bool

    @staticmethod
    def of(live: Tensor, size: Tensor) -> Keys:
        return Keys(live, size, bool(live.all()), bool((size == 1).all()))

    def mask(self, queries: int, later: int, dtype: torch.dtype, implementation: str) -> Tensor | None:
        """What an attention function of transformers takes for the last `queries` of L + later tokens."""
        flash = implementation.startswith("flash")
        if self.whole and self.single and (flash or (implementation == "sdpa" and (queries == 1 or not later))):
            return None  # causal by itself
        batch, length = self.live.shape
        live = torch.cat([self.live, self.live.new_ones(batch, later)], 1)
        if flash:
            if not self.single:
                raise ValueError(
                    f"reduce: merged tokens attend with + log(size), which attn_implementation must be able to add: "
                    f"{' or '.join(EXPLICIT)}, got {implementation}"
                )
            return live
        row = torch.arange(length + later - queries, length + later, device=live.device)[:, None]
        column = torch.arange(length + later, device=live.device)
        seen = ((column <= row) & live[:, None]) | (column == row)  # padding attends to itself
        if implementation == "sdpa" and self.single:
            return seen.unsqueeze(1)
        size = torch.cat([self.size, self.size.new_ones(batch, later)], 1)
        bias = size.log()[:, None].expand(-1, queries, -1).masked_fill(~seen, torch.finfo(dtype).min)
        return bias.to(dtype).unsqueeze(1)
