"""The result of a reduction: which tokens stay, and into which of them the others are merged."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

DROPPED = -1


@dataclass(frozen=True, eq=False)
class Reduction:
    """M of N tokens.

    kept: (M,), the tokens that stay, in ascending order; each keeps its place and its position
    into: (N,), the slot (0 to M − 1) of `kept` that a token is merged into; DROPPED: none. It is a merge matrix (M, N)
          with at most one entry per column
    """

    kept: Tensor
    into: Tensor

    @staticmethod
    def keeping(chosen: Tensor, count: int) -> Reduction:
        """Keep the chosen ones (M,) of so many tokens and drop the others."""
        goes = chosen.new_full((count,), DROPPED)
        goes[chosen] = chosen
        return Reduction.merging(chosen, goes)

    @staticmethod
    def merging(chosen: Tensor, goes: Tensor) -> Reduction:
        """Keep the chosen ones (M,); token n is merged into token goes[n] (N,), one of them, or DROPPED."""
        kept = chosen.sort().values
        slot = goes.new_full((len(goes) + 1,), DROPPED)  # the last entry serves DROPPED
        slot[kept] = torch.arange(len(kept), device=goes.device)
        return Reduction(kept, slot[goes])

    @property
    def merges(self) -> bool:
        """Whether any token is merged into another one."""
        return int((self.into != DROPPED).sum()) > len(self.kept)

    def sizes(self, size: Tensor) -> Tensor:
        """(N,) → (M,): how many tokens each one stands for."""
        live = self.into != DROPPED
        return size.new_zeros(len(self.kept)).index_add(0, self.into[live], size[live])

    def mean(self, values: Tensor, size: Tensor) -> Tensor:
        """(N, ...) → (M, ...): the mean of what is merged, weighted by size (N,); a token alone is not rounded."""
        if not self.merges:
            return values[self.kept]
        live = self.into != DROPPED
        column = size.float().view(-1, *[1] * (values.dim() - 1))
        total = values.new_zeros(len(self.kept), *values.shape[1:], dtype=torch.float32)
        total = total.index_add(0, self.into[live], (values.float() * column)[live])
        mean = total / self.sizes(size.float()).view(-1, *[1] * (values.dim() - 1))
        alone = torch.bincount(self.into[live], minlength=len(self.kept)) == 1
        return torch.where(alone.view(column[self.kept].shape), values[self.kept], mean.to(values.dtype))

    def then(self, other: Reduction) -> Reduction:
        """Both, one after the other."""
        step = torch.cat([other.into, other.into.new_full((1,), DROPPED)])
        return Reduction(self.kept[other.kept], step[self.into])


def everything(count: int, device: torch.device) -> Reduction:
    """Nothing is reduced."""
    every = torch.arange(count, device=device)
    return Reduction(every, every)
