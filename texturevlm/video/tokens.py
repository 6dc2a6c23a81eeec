"""The tokens that a stream holds: where they are, when they are chosen again, and which patches are sampled again.

Hysteresis: a choice is held while its value on the present relevance is nearly what it was when it was made. A new one
is taken only if it is better, and its footprints snap to held ones that they nearly equal. So tokens do not flicker.
On a GPU a choice is some hundred small kernels, which take longer to launch than to run: the usual case, the whole
budget chosen again beside held tokens, is captured in a graph.

A patch is sampled again if its footprint is new, if it reads a changed tile, or if it is stale; with a rate, only as
many as the rate pays for, and the others stay stale. A kept patch equals a newly sampled one, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.allocate.value import delivered_scale
from texturevlm.check import check_count
from texturevlm.cuda import Replay
from texturevlm.relevance import Relevance, legibility
from texturevlm.sampling import sample
from texturevlm.types import COLUMNS, Allocation, Texture

GAIN = 0.01  # a new choice is taken if its expected legibility is this much larger,
FINER = 0.1  # or if it shows relevant content this many levels finer
HOLD_LEVELS = 5.0  # `hold` times this is the tolerance in levels
SAME_PLACE = 1 / 16  # of a footprint's side: a smaller distance is no movement
SAME_SIZE = 0.1  # of a footprint's step: a smaller difference is no change of size
RELEVANCE_MAPS = ("mass", "legible_scale", "ink", "photograph")  # of a Relevance; the last may be None
CAPTURE_CHUNK = 1 << 19  # `at_once` of delivered_scale: a graph keeps its memory, here some 20 MB
Allocate = Callable[[Texture, Relevance, int], Allocation]
TokenValue = tuple[float, float]  # expected legibility; level at which relevant content is shown


def token_value(relevance: Relevance, scale: Tensor) -> Tensor:
    """The value of tokens that deliver `scale` (1, h, w), in pixels per sample.

    returns (2,): the expected legibility, 0 to 1, and the mean level, log2 of pixels per sample, weighted by relevance;
            where everything is legible at any level, only the latter tells choices apart
    """
    level = scale.clamp(max=float(max(relevance.size))).log2()
    value = relevance.mass * legibility(relevance.legible_scale, scale)
    return torch.stack([value.sum(), (relevance.mass * level).sum()])


class Proposal(NamedTuple):
    """A choice that may be taken."""

    allocation: Allocation  # every footprint that nearly equals a held one is replaced by it
    origin: Tensor  # (K,), the slot that each footprint had, −1 for a new one
    scale: Tensor  # (1, h, w), pixels per sample that it delivers to each cell
    summary: Tensor  # (3,): its `token_value`, and the number of new footprints


def snap(held: Allocation, fresh: Allocation) -> tuple[Allocation, Tensor]:
    """A new choice, with every footprint that nearly equals a held one replaced by it.

    returns the allocation, in the order of `fresh`, and (K,) the slot that each footprint had, −1 for a new one
    """
    step = torch.stack([fresh.ddx[0].norm(dim=-1), fresh.ddy[0].norm(dim=-1)]).amin(0)[:, None]
    away = (fresh.centre[0][:, None] - held.centre[0]).norm(dim=-1) / (step * fresh.patch)
    pairs = ((fresh.ddx, held.ddx), (fresh.ddy, held.ddy))
    other = torch.maximum(*[(new[0][:, None] - old[0]).norm(dim=-1) / step for new, old in pairs])
    both = fresh.valid[0][:, None] & held.valid[0]
    cost = torch.where(both & (away <= SAME_PLACE) & (other <= SAME_SIZE), away + other, torch.inf)
    slot, back = cost.argmin(1), cost.argmin(0)
    mine = torch.arange(len(slot), device=slot.device)
    same = cost.gather(1, slot[:, None])[:, 0].isfinite() & (back[slot] == mine)
    centre, ddx, ddy = (
        torch.where(same[:, None], old[:, slot], new)
        for new, old in ((fresh.centre, held.centre), (fresh.ddx, held.ddx), (fresh.ddy, held.ddy))
    )
    return replace(fresh, centre=centre, ddx=ddx, ddy=ddy), torch.where(same, slot, -1)


class TokenChoice:
    """The tokens that a stream holds.

    captured:   `allocate` only launches kernels and the texture stays at its address: choices are captured in graphs
    allocation: the held choice; `scale` (1, h, w): pixels per sample that it delivers to each cell
    value:      of the held choice when it was made; refused: when a new choice was last found no better
    """

    def __init__(self, allocate: Allocate, budget: int, hold: float, *, captured: bool = False) -> None:
        self.allocate, self.budget, self.hold, self.captured = allocate, budget, hold, captured
        self.allocation: Allocation | None = None
        self.scale: Tensor | None = None
        self.value: TokenValue = (0.0, 0.0)
        self.refused: TokenValue | None = None
        self.graphs: dict[tuple[str, bool], Replay] = {}

    def choose(
        self, texture: Texture, relevance: Relevance, tokens: int, most: int | None, *, force: bool, free: bool
    ) -> Tensor | None:
        """Choose tokens again, if the held choice has lost its value.

        tokens: how many, of the budget
        force:  also where the held choice still has its value
        free:   regardless of where the tokens were
        most:   how many may move; None: all
        returns (K,), the slot that each footprint had, −1 for a new one; None where the held choice stays
        """
        now: TokenValue | None = None
        if self.scale is not None:
            now = tuple(token_value(relevance, self.scale).tolist())
            if not force and not self.lost(now):
                return None
        held = None if free else self.allocation
        if self.captured and held is not None and tokens == self.budget:
            made = self._replay(texture, relevance, held)
        else:
            made = self._propose(texture, relevance, tokens, held)
        value, level, new = made.summary.tolist()
        if now is not None and not free:
            too_many = most is not None and new > most
            better = value >= (1 + GAIN) * now[0] or level <= now[1] - FINER
            if too_many or not (force or better):
                self.refused = now  # do not try again before the held choice has lost more
                return None
        self.allocation, self.scale, self.value, self.refused = made.allocation, made.scale, (value, level), None
        return made.origin

    def lost(self, now: TokenValue) -> bool:
        """Whether the held choice has lost too much of its value."""
        if now[0] >= (1 - self.hold) * self.value[0] and now[1] <= self.value[1] + HOLD_LEVELS * self.hold:
            return False
        last = self.refused
        return last is None or now[0] < (1 - GAIN) * last[0] or now[1] > last[1] + FINER

    def prepare(self, texture: Texture, relevance: Relevance) -> None:
        """Make the graph that the next choice with such relevance will need, which takes a while."""
        if self.captured and self.allocation is not None:
            self._graph(texture, relevance, self.allocation)

    def _propose(
        self, texture: Texture, relevance: Relevance, tokens: int, held: Allocation | None, at_once: int | None = None
    ) -> Proposal:
        """Choose `tokens` of the budget. held: those that they may snap to; at_once: as for `delivered_scale`."""
        chosen = self.allocate(texture, relevance, tokens)
        if more := self.budget - chosen.budget:  # unused slots repeat the first
            wide = chosen.each(lambda column: torch.cat([column, column[:, :1].expand(-1, more, *column.shape[2:])], 1))
            chosen = replace(wide, valid=functional.pad(chosen.valid, (0, more)))
        origin = torch.full((self.budget,), -1, device=texture.device)
        if held is not None:
            chosen, origin = snap(held, chosen)
        scale = delivered_scale(chosen, relevance.grid, at_once=at_once)
        new = ((origin < 0) & chosen.valid[0]).sum()
        return Proposal(chosen, origin, scale, torch.cat([token_value(relevance, scale), new[None].float()]))

    def _replay(self, texture: Texture, relevance: Relevance, held: Allocation) -> Proposal:
        """`_propose` for the whole budget, by a graph."""
        made = [part.clone() for part in self._graph(texture, relevance, held)(*_inputs(relevance, held))]
        columns: Any = dict(zip(COLUMNS, made))
        return Proposal(replace(held, **columns), *made[len(COLUMNS) :])

    def _graph(self, texture: Texture, relevance: Relevance, held: Allocation) -> Replay:
        """The graph for relevance and held tokens like these; the texture stays at its address."""
        key = relevance.scorer, relevance.photograph is None  # what an allocator may depend on, on the host
        if key not in self.graphs:
            names = _maps(relevance)

            def work(*parts: Tensor) -> tuple[Tensor, ...]:
                maps: Any = dict(zip(names, parts))
                columns: Any = dict(zip(COLUMNS, parts[len(names) :]))
                known, snap_to = replace(relevance, **maps), replace(held, **columns)
                made = self._propose(texture, known, self.budget, snap_to, CAPTURE_CHUNK)
                return *(getattr(made.allocation, name) for name in COLUMNS), *made[1:]

            self.graphs[key] = Replay(work, _inputs(relevance, held))
        return self.graphs[key]


def _maps(relevance: Relevance) -> list[str]:
    return [name for name in RELEVANCE_MAPS if getattr(relevance, name) is not None]


def _inputs(relevance: Relevance, held: Allocation) -> list[Tensor]:
    """The tensors of both, in the order that a graph takes them."""
    return [*(getattr(relevance, name) for name in _maps(relevance)), *(getattr(held, name) for name in COLUMNS)]


class Rate:
    """Tokens per second: a bucket that fills at a steady rate and pays for each token that is sampled; a hard cap.

    per_second: the highest average
    reserve:    tokens that only a cut may spend: the budget of one frame
    burst:      the capacity of the bucket; saved: its content
    """

    def __init__(self, per_second: float, reserve: int) -> None:
        if not 0 < per_second < math.inf:
            raise ValueError(f"Rate: per_second must be above 0 and finite, got {per_second!r}")
        self.per_second = float(per_second)
        self.reserve = check_count("Rate", "reserve", reserve, 1)
        self.burst, self.saved = 2 * reserve, 2.0 * reserve

    def wait(self, seconds: float) -> None:
        """Fill the bucket for the time that passed."""
        self.saved = min(float(self.burst), self.saved + self.per_second * max(0.0, seconds))

    def affordable(self, *, cut: bool) -> int:
        """Tokens that may be spent now; a cut may spend the reserve."""
        return max(0, math.floor(self.saved if cut else self.saved - self.reserve))

    def pay(self, need: Tensor, new: Tensor, score: Tensor, *, cut: bool) -> Tensor:
        """Spend tokens on those in need: new ones first, then by score. All are (K,); returns which were paid for."""
        most = min(self.affordable(cut=cut), int(need.sum()))
        urgency = score + 2 * new.to(score) * (score.abs().amax() + 1)
        best = urgency.where(need, -torch.inf).argsort(descending=True, stable=True)[:most]
        self.saved -= most
        return torch.zeros_like(need).index_fill_(0, best, True)


class HeldPatches:
    """pixels: (1, K, 3, P, P), at a fixed address; stale: (K,), which of them show an older frame; rate: if limited."""

    def __init__(self, budget: int, patch: int, device: torch.device, rate: Rate | None) -> None:
        self.rate = rate
        self.pixels = torch.zeros(1, budget, 3, patch, patch, device=device)
        self.stale = torch.zeros(budget, dtype=torch.bool, device=device)

    def invalidate(self) -> None:
        """All patches show an older frame."""
        self.stale = torch.ones_like(self.stale)

    def rearrange(self, origin: Tensor) -> None:
        """Tokens were chosen again; origin: (K,), the slot that each had, −1 for a new one."""
        slots = origin.clamp(min=0)
        self.pixels.copy_(self.pixels[:, slots])
        self.stale = self.stale[slots]

    def refresh(
        self, texture: Texture, allocation: Allocation, changed: Tensor | None, new: Tensor, *, cut: bool
    ) -> Tensor:
        """Sample the patches that need it, as far as the rate pays; returns which those were, (K,).

        changed, new: (K,), which footprints read a changed tile (None: all), and which are new; cut: as for `Rate.pay`
        """
        need = torch.ones_like(self.stale) if changed is None else new | self.stale | changed
        paid = need = need & allocation.valid[0]
        if self.rate is not None:
            paid = self.rate.pay(need, new, allocation.score[0], cut=cut)
        self.stale = need & ~paid
        if self.pixels.is_cuda:  # sample all of them: nothing is counted on the host
            self.pixels.copy_(torch.where(paid[:, None, None, None], sample(texture, allocation).pixels, self.pixels))
        elif len(some := paid.nonzero()[:, 0]):
            self.pixels[:, some] = sample(texture, allocation.each(lambda column: column[:, some])).pixels
        return paid
