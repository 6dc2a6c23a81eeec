"""Where a stream's tokens are, and when they are given out anew.

Hysteresis: a choice is held while it is worth, on the relevance as it is now, nearly what it was worth when it was
made: at least 1 − hold of its expected value, and what matters seen no more than 5 · hold levels coarser. A new one is
taken only if it is better than the old, and its footprints snap to old ones that they nearly equal. So tokens do not
flicker; after a cut all of them are free to jump.
"""

from __future__ import annotations

from torch import Tensor

from texturevlm.relevance import Relevance
from texturevlm.types import Allocation, Texture
from texturevlm.video.carry import Carry
from texturevlm.video.propose import Allocate, CapturedProposal, Proposal, propose

GAIN = 0.01  # a new choice is taken if it is worth so much more than the old,
FINER = 0.1  # or shows what matters so many levels finer
LEVELS = 5.0  # what `hold` is multiplied with, for levels


class Choice:
    """The allocation of one stream.

    allocate:   texture, relevance, budget → Allocation
    captured:   it only starts kernels, and the texture stays where it is: graphs are made of it
    refused:    what it was worth when a new one was made and found no better
    allocation: that is held; `scale` (1, h, w) is what it delivers to each cell
    worth:      of it when it was chosen, see `Carry.worth`
    """

    def __init__(self, allocate: Allocate, budget: int, hold: float, *, captured: bool = False) -> None:
        self.allocate, self.budget, self.hold, self.captured = allocate, budget, hold, captured
        self.allocation: Allocation | None = None
        self.scale: Tensor | None = None
        self.worth = (0.0, 0.0)
        self.refused: tuple[float, float] | None = None
        self._graphs: dict[tuple[str, bool], CapturedProposal] = {}

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
        made = self._proposed(texture, carry.relevance, tokens, None if free else self.allocation)
        value, level, new = made.told.tolist()
        if now is not None and not free:
            too_many = most is not None and new > most
            better = value >= (1 + GAIN) * now[0] or level <= now[1] - FINER
            if too_many or not (force or better):
                self.refused = now  # nothing better is to be had: not asked again before it is worth less still
                return None
        self.allocation, self.scale, self.worth, self.refused = made.allocation, made.scale, (value, level), None
        return made.origin

    def prepare(self, texture: Texture, relevance: Relevance) -> None:
        """Make the graph that the next choice with relevance like this will need, which takes a while."""
        if self.captured and self.allocation is not None:
            self._graph(texture, relevance, self.allocation)

    def _proposed(self, texture: Texture, relevance: Relevance, tokens: int, held: Allocation | None) -> Proposal:
        if not self.captured or held is None or tokens < self.budget:
            return propose(self.allocate, texture, relevance, tokens, self.budget, held)
        return self._graph(texture, relevance, held)(relevance, held)

    def _graph(self, texture: Texture, relevance: Relevance, held: Allocation) -> CapturedProposal:
        key = relevance.scorer, relevance.photograph is None  # what an allocator may go by on the host
        if key not in self._graphs:
            self._graphs[key] = CapturedProposal(self.allocate, texture, relevance, held)
        return self._graphs[key]

    def lost(self, now: tuple[float, float]) -> bool:
        """Whether the held choice is worth too little by now."""
        if now[0] >= (1 - self.hold) * self.worth[0] and now[1] <= self.worth[1] + LEVELS * self.hold:
            return False
        last = self.refused
        return last is None or now[0] < (1 - GAIN) * last[0] or now[1] > last[1] + FINER
