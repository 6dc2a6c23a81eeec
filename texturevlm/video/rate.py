"""A token budget over time: a bucket that fills at a steady rate and pays for each token that is sampled.

A still scene spends nothing, so the bucket fills up; changes are paid token by token; the budget of one frame is
reserved for a cut. Over any stretch of time at most the content of the bucket plus the inflow is spent: a hard cap.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from texturevlm.check import check_count


class Rate:
    """Tokens per second.

    per_second: the highest average
    reserve:    tokens that only a cut may spend: the budget of one frame
    burst:      the capacity of the bucket; by default twice the reserve
    saved:      the content of the bucket
    """

    def __init__(self, per_second: float, reserve: int, *, burst: int | None = None) -> None:
        if not 0 < per_second < math.inf:
            raise ValueError(f"Rate: per_second must be above 0 and finite, got {per_second!r}")
        self.per_second = float(per_second)
        self.reserve = check_count("Rate", "reserve", reserve, 1)
        self.burst = 2 * reserve if burst is None else check_count("Rate", "burst", burst, reserve)
        self.saved = float(self.burst)

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.saved = min(float(self.burst), self.saved + self.per_second * max(0.0, seconds))

    def affordable(self, *, cut: bool) -> int:
        """Tokens that may be spent now; a cut may spend the reserve."""
        return max(0, math.floor(self.saved if cut else self.saved - self.reserve))

    def pay(self, need: Tensor, new: Tensor, score: Tensor, *, cut: bool) -> Tensor:
        """Spend tokens on those in need: new ones first, then by score. All are (K,); returns which were paid for."""
        most = min(self.affordable(cut=cut), int(need.sum()))
        urgency = score + 2 * new.to(score) * (score.abs().amax() + 1)
        best = urgency.where(need, -torch.inf).argsort(descending=True, stable=True)[:most]
        paid = torch.zeros_like(need)
        paid[best] = True
        self.saved -= most
        return paid
