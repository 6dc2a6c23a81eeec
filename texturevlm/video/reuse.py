"""Patches and encoded tokens that are kept from frame to frame, and a rate that limits how many are sampled.

A patch is sampled again if its footprint is new, if it reads a changed tile, or if it is stale; with a rate, only as
many as the rate pays for, and the others stay stale. A kept patch equals a newly sampled one, bit for bit.

A kept embedding does not, since the tokens of a vision tower attend to one another. Exact: a frame in which nothing
changed keeps all tokens, any other is encoded as a whole. Approximate: only tokens that changed are encoded, with some
unchanged ones beside them to attend to (docs/removed.md has the error).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from texturevlm.check import check_count
from texturevlm.cuda.graph import can_capture
from texturevlm.sampling import sample
from texturevlm.types import Allocation, Texture
from texturevlm.vlm import Tokens

Encode = Callable[[Texture, Allocation], Tokens]
KEEP = ("exact", "approximate")
ENCODE_ALL = 0.5  # share of changed tokens from which encoding all of them costs little more


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
        if can_capture(self.pixels.device):  # sample all of them: nothing is counted on the host
            self.pixels.copy_(torch.where(paid[:, None, None, None], sample(texture, allocation).pixels, self.pixels))
        elif len(some := paid.nonzero()[:, 0]):
            self.pixels[:, some] = sample(texture, allocation.each(lambda column: column[:, some])).pixels
        return paid


class HeldTokens:
    """The encoded tokens of a stream; `encoded`: how many the last frame encoded.

    encode:  texture and allocation → Tokens, in the allocation's slots: `adapt(model).encode`
    keep:    exact: all are encoded again when any changed; approximate: those that changed
    context: unchanged tokens encoded along, per changed token
    """

    def __init__(self, encode: Encode, keep: str, context: float) -> None:
        self.encode, self.keep, self.context = encode, keep, context
        self.encode_all, self.encoded = ENCODE_ALL, 0
        self.tokens: Tokens | None = None

    @torch.no_grad()
    def update(self, texture: Texture, allocation: Allocation, sampled: Tensor, origin: Tensor) -> None:
        """Encode the held frame. sampled: (K,), the footprints that changed or are new; origin: the others' slots."""
        wanted = (sampled & allocation.valid[0]).nonzero()[:, 0]
        used = int(allocation.valid.sum())
        if self.tokens is not None and len(wanted) == 0:
            self.encoded, self.tokens = 0, _reordered(self.tokens, allocation, origin)
        elif self.tokens is None or self.keep == "exact" or len(wanted) > self.encode_all * used:
            self.encoded, self.tokens = used, self.encode(texture, allocation)
        else:
            some = torch.cat([wanted, self._context(allocation, wanted)])
            made = self.encode(texture, allocation.each(lambda column: column[:, some]))
            kept = _reordered(self.tokens, allocation, origin)
            for old, new in zip((kept.embeds, *kept.deepstack), (made.embeds, *made.deepstack)):
                old[:, wanted] = new[:, : len(wanted)]
            self.encoded, self.tokens = len(some), kept

    def _context(self, allocation: Allocation, wanted: Tensor) -> Tensor:
        """The slots of the unchanged tokens nearest to those that changed."""
        others = allocation.valid[0].index_fill(0, wanted, False).nonzero()[:, 0]
        count = min(len(others), round(self.context * len(wanted)))
        if not count:
            return others[:0]
        centre = allocation.centre[0]
        return others[torch.cdist(centre[others], centre[wanted]).amin(1).argsort(stable=True)[:count]]


def _reordered(tokens: Tokens, allocation: Allocation, origin: Tensor) -> Tokens:
    """Tokens in the slots of a new allocation; those without an origin hold the content of the first slot."""
    slot, boxes = origin.clamp(min=0), allocation.boxes
    return replace(
        tokens,
        embeds=tokens.embeds[:, slot],
        position=allocation.centre.to(tokens.embeds.device),
        size=(boxes[..., 2:] - boxes[..., :2]).to(tokens.embeds.device),
        weight=allocation.valid.to(tokens.embeds),
        deepstack=tuple(one[:, slot] for one in tokens.deepstack),
    )
