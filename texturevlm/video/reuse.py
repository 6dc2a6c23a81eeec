"""What is kept from one frame to the next: footprints that hardly moved, the patches they hold, what was made of them.

A new choice of tokens is laid beside the one that is held: a footprint that nearly is one of the old becomes that old
one, so that tokens do not flicker. Where no changed tile lies in what a kept footprint reads, its patch is what
sampling it again would give, bit for bit. Its embedding is another matter: a vision tower's tokens attend to one
another, so one kept beside others that changed is what the tower would have said about the last frame (`encode.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from texturevlm.types import Allocation

ALIKE = 1 / 16  # of a footprint's side: nearer than this it has not moved
STRETCH = 0.1  # of its steps: more alike than this it is of the same size


@dataclass(frozen=True, eq=False)
class Reuse:
    """What one frame cost. Counts are read when they are asked for, so that nothing waits for them.

    changed:   tiles that changed, of `tiles`
    keyframe:  why everything was done anew: first, cut, interval, refill (a cut's full look, once it can be paid for),
               pointed, failure; "" if it was not
    chosen:    whether tokens were given out anew
    told:      (K,), which patches were sampled (and encoded), on the host if it was told there: see `sampled`
    stale:     (K,), which patches still show an older frame, because there was no budget to refresh them
    used:      (K,), which tokens there are
    """

    tiles: int
    changed: int
    keyframe: str
    chosen: bool
    told: Tensor
    stale: Tensor
    used: Tensor

    @cached_property
    def sampled(self) -> Tensor:
        """(K,), which patches were sampled, where the patches are."""
        return self.told.to(self.used.device)

    @property
    def share(self) -> float:
        """Of the tiles that changed."""
        return self.changed / self.tiles

    @property
    def tokens(self) -> int:
        return int(self.used.sum())

    @property
    def fresh(self) -> int:
        """Tokens that were sampled for this frame."""
        return int((self.sampled & self.used).sum())

    @property
    def kept(self) -> int:
        """Tokens that are the last frame's."""
        return self.tokens - self.fresh


def settled(held: Allocation, fresh: Allocation) -> tuple[Allocation, Tensor]:
    """A new choice, with every footprint that nearly is one of the old replaced by it.

    returns the allocation, in the order of `fresh`, and (K,) the slot that each footprint had; −1 for a new one
    """
    step = torch.stack([fresh.ddx[0].norm(dim=-1), fresh.ddy[0].norm(dim=-1)]).amin(0)[:, None]
    away = (fresh.centre[0][:, None] - held.centre[0]).norm(dim=-1) / (step * fresh.patch)
    axes = [
        (new[0][:, None] - old[0]).norm(dim=-1) / step for new, old in ((fresh.ddx, held.ddx), (fresh.ddy, held.ddy))
    ]
    other = torch.maximum(*axes)
    both = fresh.valid[0][:, None] & held.valid[0]
    cost = torch.where(both & (away <= ALIKE) & (other <= STRETCH), away + other, torch.inf)
    slot = cost.argmin(1)
    back = cost.argmin(0)
    mine = torch.arange(len(slot), device=slot.device)
    same = cost.gather(1, slot[:, None])[:, 0].isfinite() & (back[slot] == mine)

    def kept(name: str) -> Tensor:
        old, new = getattr(held, name)[:, slot], getattr(fresh, name)
        return torch.where(same[:, None], old, new)

    columns: Any = {name: kept(name) for name in ("centre", "ddx", "ddy")}
    return replace(fresh, **columns), torch.where(same, slot, -1)
