"""A new choice of tokens beside the one that is held, and what it is worth.

On a GPU that is some hundred small kernels, which take far longer to be started one by one than to run. So the usual
case, the whole budget given out anew where something is held, is captured in a graph when it first comes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.allocate.value import delivered_scale
from texturevlm.cuda.graph import Replay
from texturevlm.relevance import Relevance
from texturevlm.types import COLUMNS, Allocation, Texture
from texturevlm.video.carry import worth
from texturevlm.video.reuse import settled

MAPS = ("mass", "legible_scale", "ink", "photograph")  # of a Relevance, the last of them perhaps not known
AT_ONCE = 1 << 19  # a graph keeps its memory for good: some 20 MB, where more would be faster by a few launches
Allocate = Callable[[Texture, Relevance, int], Allocation]


@dataclass(frozen=True, eq=False)
class Proposal:
    """A choice that may be taken.

    allocation: with every footprint that nearly is one of those held replaced by it
    origin:     (K,), the slot that each footprint had, −1 for a new one
    scale:      (1, h, w), what it delivers to each cell
    told:       (3,): what it is worth (two numbers, see `worth`), and how many of its footprints are new
    """

    allocation: Allocation
    origin: Tensor
    scale: Tensor
    told: Tensor


def propose(
    allocate: Allocate,
    texture: Texture,
    relevance: Relevance,
    tokens: int,
    budget: int,
    held: Allocation | None,
    *,
    at_once: int | None = None,
) -> Proposal:
    """Give `tokens` of `budget` out anew.

    held:    the footprints that they may settle on
    at_once: as for `delivered_scale`
    """
    chosen = _padded(allocate(texture, relevance, tokens), budget)
    origin = torch.full((budget,), -1, device=texture.device)
    if held is not None:
        chosen, origin = settled(held, chosen)
    scale = delivered_scale(chosen, relevance.grid, at_once=at_once)
    new = ((origin < 0) & chosen.valid[0]).sum()
    return Proposal(chosen, origin, scale, torch.cat([worth(relevance, scale), new[None].float()]))


class CapturedProposal:
    """`propose` of the whole budget, for a texture that stays where it is and an allocator that only starts kernels.

    relevance and held: like those that will come
    reason: why there is no graph, if there is none
    """

    def __init__(self, allocate: Allocate, texture: Texture, relevance: Relevance, held: Allocation) -> None:
        self._maps = [name for name in MAPS if getattr(relevance, name) is not None]

        def work(*parts: Tensor) -> tuple[Tensor, ...]:
            maps: Any = dict(zip(self._maps, parts))
            columns: Any = dict(zip(COLUMNS, parts[len(self._maps) :]))
            known, settle_on = replace(relevance, **maps), replace(held, **columns)
            made = propose(allocate, texture, known, held.budget, held.budget, settle_on, at_once=AT_ONCE)
            return *self._columns(made.allocation), made.origin, made.scale, made.told

        self._replay = Replay(work, self._parts(relevance, held))

    @property
    def reason(self) -> str | None:
        return self._replay.reason

    def __call__(self, relevance: Relevance, held: Allocation) -> Proposal:
        made = [part.clone() for part in self._replay(*self._parts(relevance, held))]
        columns: Any = dict(zip(COLUMNS, made))
        return Proposal(replace(held, **columns), *made[len(COLUMNS) :])

    def _parts(self, relevance: Relevance, held: Allocation) -> list[Tensor]:
        return [*(getattr(relevance, name) for name in self._maps), *self._columns(held)]

    @staticmethod
    def _columns(allocation: Allocation) -> list[Tensor]:
        return [getattr(allocation, name) for name in COLUMNS]


def _padded(allocation: Allocation, budget: int) -> Allocation:
    """With unused slots up to the budget, which repeat the first."""
    more = budget - allocation.budget
    if not more:
        return allocation
    filled = allocation.each(lambda column: torch.cat([column, column[:, :1].expand(-1, more, *column.shape[2:])], 1))
    return replace(filled, valid=functional.pad(allocation.valid, (0, more)))
