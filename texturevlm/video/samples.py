"""The patches of a stream's tokens: which of them show the frame that is held, and which still show an older one.

A patch is sampled again if its footprint is new, if it reads a tile that changed, or if it is stale; with a rate, only
as many as can be paid for, and the others stay stale until there is budget for them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from texturevlm.sampling import sample
from texturevlm.types import Allocation, Texture
from texturevlm.video.budget import Rate


class Samples:
    """pixels: (1, K, 3, P, P), at one address for the life of the stream; stale: (K,), those of an older frame."""

    def __init__(self, budget: int, patch: int, device: torch.device) -> None:
        self.pixels = torch.zeros(1, budget, 3, patch, patch, device=device)
        self.stale = torch.zeros(budget, dtype=torch.bool, device=device)

    def forsake(self) -> None:
        """None of them shows what is to be seen now."""
        self.stale = torch.ones_like(self.stale)

    def rearrange(self, origin: Tensor) -> None:
        """The tokens are given out anew; origin: (K,), the slot that each had, −1 for a new one."""
        slots = origin.clamp(min=0)
        self.pixels.copy_(self.pixels[:, slots])
        self.stale = self.stale[slots]

    def renew(
        self,
        texture: Texture,
        allocation: Allocation,
        changed: Tensor | None,
        new: Tensor,
        *,
        rate: Rate | None,
        cut: bool,
    ) -> Tensor:
        """Sample what must be, as far as it can be paid for; which those were, (K,).

        changed: (K,), whose footprint reads something that changed; None: all are to be sampled
        new:     (K,), which footprints are new
        cut:     whether the reserve for a cut may be spent
        """
        need = torch.ones_like(self.stale) if changed is None else new | self.stale | changed
        paid = need = need & allocation.valid[0]
        if rate is not None:
            paid = rate.pay(need, new, allocation.score[0], cut=cut)
        self.stale = need & ~paid
        if self.pixels.is_cuda:  # all of them: nothing is counted, nothing waits
            self.pixels.copy_(torch.where(paid[:, None, None, None], sample(texture, allocation).pixels, self.pixels))
        elif len(some := paid.nonzero()[:, 0]):
            self.pixels[:, some] = sample(texture, allocation.each(lambda column: column[:, some])).pixels
        return paid
