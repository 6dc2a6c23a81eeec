"""DyRate: while an answer is decoded, how many visual tokens stay follows from the attention distribution.

Published: a trained predictor gives the rate from the attention distribution; there is no code.
Ours, without training: as many tokens stay as the new token's attention is spread over, the exponential of its entropy
over the visual tokens, and never fewer than the budget. Those with the highest attention stay; keys and values of the
others leave the cache of every layer.
Ours, trained: a small network predicts from nine numbers of the sorted distribution which share of the tokens is
needed; `texturevlm train` fits it (`train/rate_task.py`).
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor, nn

from texturevlm_lab.rivals.context import Context
from texturevlm_lab.rivals.fastv import last_token_attention
from texturevlm_lab.rivals.method import DecodeRate, Method, ReduceStage

TOP_SHARES = (0.01, 0.02, 0.05, 0.1, 0.25, 0.5)  # of the tokens, whose attention is counted together
STATISTICS = 3 + len(TOP_SHARES)
HEAD_WIDTH = 16


def attention_spread(context: Context, keep: int) -> int:
    """How many tokens the last token's attention is spread over, at least `keep`. Needs asked."""
    entropy = _entropy(_distribution(context))
    return min(len(context), max(keep, round(float(entropy.exp()))))


def statistics(context: Context) -> Tensor:
    """(STATISTICS,) of the last token's attention, whatever the order of the tokens, on the CPU. Needs asked."""
    share = _distribution(context).sort(descending=True).values.cpu()
    count = len(share)
    sums = share.cumsum(0)
    tops = [float(sums[max(1, math.ceil(part * count)) - 1]) for part in TOP_SHARES]
    return torch.tensor(
        [float(_entropy(share)) / max(math.log(count), 1e-6), float(share[0]), math.log(count) / 10, *tops]
    )


class RateHead(nn.Module):
    """Statistics (..., STATISTICS) → the share of the tokens that is needed (...)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(STATISTICS, HEAD_WIDTH), nn.Linear(HEAD_WIDTH, 1)

    def forward(self, given: Tensor) -> Tensor:
        found: Tensor = self.last(nn.functional.gelu(self.first(given)))[..., 0].sigmoid()
        return found


def trained_rate(path: Path | str) -> DecodeRate:
    """The rate of a trained head, from its file of weights."""
    from texturevlm.scout.scout import load_module

    head = load_module(RateHead(), path).eval().requires_grad_(False)

    def rate(context: Context, keep: int) -> int:
        share = float(head(statistics(context)))
        return min(len(context), max(keep, math.ceil(share * len(context))))

    return rate


def _distribution(context: Context) -> Tensor:
    asked = context.need("asked")[-1].double()
    return asked / asked.sum().clamp(min=1e-30)


def _entropy(share: Tensor) -> Tensor:
    return -(share * share.clamp(min=1e-30).log()).sum()


DYRATE = Method((ReduceStage(last_token_attention, "decode", ("asked",), 1 / 2, attention_spread),))
