"""Where a stream's tokens are, and when they are given out anew.

Hysteresis: a choice is held while it is worth, on the relevance as it is now, nearly what it was worth when it was
made: at least 1 − hold of its expected value, and what matters seen no more than 5 · hold levels coarser. A new one is
taken only if it is better than the old, and its footprints snap to old ones that they nearly equal. So tokens do not
flicker; after a cut all of them are free to jump.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.allocate.value import delivered_scale
from texturevlm.relevance import Relevance
from texturevlm.types import Allocation, Texture
from texturevlm.video.carry import Carry
from texturevlm.video.reuse import settled

GAIN = 0.01  # a new choice is taken if it is worth so much more than the old,
FINER = 0.1  # or shows what matters so many levels finer
LEVELS = 5.0  # what `hold` is multiplied with, for levels


class Choice:
    """The allocation of one stream.

    allocate:   texture, relevance, budget → Allocation
    refused:    what it was worth when a new one was made and found no better
    allocation: that is held; `scale` (1, h, w) is what it delivers to each cell
    worth:      of it when it was chosen, see `Carry.worth`
    """

    def __init__(self, allocate: Callable[[Texture, Relevance, int], Allocation], budget: int, hold: float) -> None:
        self.allocate, self.budget, self.hold = allocate, budget, hold
        self.allocation: Allocation | None = None
        self.scale: Tensor | None = None
        self.worth = (0.0, 0.0)
        self.refused: tuple[float, float] | None = None

    def choose(
        self,
        texture: Texture,
        carry: Carry,
        *,
        tokens: int,
        force: bool = False,
        free: bool = False,
        most: int | None = None,
    ) -> Tensor | None:
        """Give tokens out anew, if that is due.

        tokens: how many, of the budget
        force:  also where the held choice is still worth enough
        free:   without regard to where they were
        most:   how many may move; None: all
        returns (K,), the slot that each footprint had, −1 for a new one; None where the held choice stays
        """
        assert carry.relevance is not None
        now = None if self.scale is None else carry.worth(self.scale)
        if now is not None and not force and not self.lost(now):
            return None
        chosen = _padded(self.allocate(texture, carry.relevance, tokens), self.budget)
        origin = torch.full((self.budget,), -1, device=texture.device)
        if self.allocation is not None and not free:
            chosen, origin = settled(self.allocation, chosen)
        scale = delivered_scale(chosen, carry.relevance.grid)
        worth = carry.worth(scale)
        if now is not None and not free:
            too_many = most is not None and int(((origin < 0) & chosen.valid[0]).sum()) > most
            better = worth[0] >= (1 + GAIN) * now[0] or worth[1] <= now[1] - FINER
            if too_many or not (force or better):
                self.refused = now  # nothing better is to be had: not asked again before it is worth less still
                return None
        self.allocation, self.scale, self.worth, self.refused = chosen, scale, worth, None
        return origin

    def lost(self, now: tuple[float, float]) -> bool:
        """Whether the held choice is worth too little by now."""
        if now[0] >= (1 - self.hold) * self.worth[0] and now[1] <= self.worth[1] + LEVELS * self.hold:
            return False
        last = self.refused
        return last is None or now[0] < (1 - GAIN) * last[0] or now[1] > last[1] + FINER


def _padded(allocation: Allocation, budget: int) -> Allocation:
    """With unused slots up to the budget, which repeat the first."""
    more = budget - allocation.budget
    if not more:
        return allocation
    filled = allocation.each(lambda column: torch.cat([column, column[:, :1].expand(-1, more, *column.shape[2:])], 1))
    return replace(filled, valid=functional.pad(allocation.valid, (0, more)))
