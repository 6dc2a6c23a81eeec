"""A budget over time: so many tokens a second, saved up while nothing happens, spent where something does.

A bucket that fills at a steady rate. A still camera spends nothing and the bucket is full; what changes is paid for
token by token; a last part of it, one full look, is kept for a cut. Over any stretch of time no more is spent than the
bucket held and what flowed in meanwhile: that is the hard cap.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from texturevlm.check import check_count


class Rate:
    """Tokens a second.

    per_second: how many, on average, at most
    look:       tokens of a full look; the reserve for a cut
    burst:      the most that is saved up; by default two full looks
    saved:      what there is now
    """

    def __init__(self, per_second: float, look: int, *, burst: int | None = None) -> None:
        if not 0 < per_second < math.inf:
            raise ValueError(f"Rate: per_second must be above 0 and finite, got {per_second!r}")
        self.per_second = float(per_second)
        self.look = check_count("Rate", "look", look, 1)
        self.burst = 2 * look if burst is None else check_count("Rate", "burst", burst, look)
        self.saved = float(self.burst)

    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.saved = min(float(self.burst), self.saved + self.per_second * max(0.0, seconds))

    def affordable(self, *, cut: bool) -> int:
        """Tokens that may be spent now; a cut may touch the reserve."""
        return max(0, math.floor(self.saved if cut else self.saved - self.look))

    def pay(self, need: Tensor, new: Tensor, score: Tensor, *, cut: bool) -> Tensor:
        """(K,): which of the tokens that need it can be paid for, new ones first, then the best; they are paid for."""
        most = min(self.affordable(cut=cut), int(need.sum()))
        urgency = score + 2 * new.to(score) * (score.abs().amax() + 1)
        best = urgency.where(need, -torch.inf).argsort(descending=True, stable=True)[:most]
        paid = torch.zeros_like(need)
        paid[best] = True
        self.saved -= most
        return paid
