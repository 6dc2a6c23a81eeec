"""Encoded tokens that are kept: what a vision tower made of a footprint that neither changed nor moved.

Exact, always:   a frame in which nothing changed; and the earlier moments of a Qwen3-VL clip, since its tower attends
                 within one moment only (`clip.py`).
Approximate:     keeping some tokens of a frame while others are encoded anew. Every layer of the tower lets a token see
                 all others, so a kept one is what the tower said beside the old ones, and one encoded among few does
                 not see those that were left out. `context` unchanged tokens go along to be seen. What it costs is
                 measured by `python -m texturevlm.video.measure`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from texturevlm.check import check_choice
from texturevlm.types import Allocation, Texture
from texturevlm.vlm import Tokens

Encode = Callable[[Texture, Allocation], Tokens]
KEEP = ("exact", "approximate")
WHOLE = 0.5  # of the tokens changed: encoding all of them costs little more than these and their context


class Encoded:
    """The tokens of one stream.

    encode:  a texture and an allocation to Tokens, in the allocation's slots: `adapt(model).encode`
    keep:    exact: all are encoded again when any changed; approximate: those that changed
    context: how many unchanged tokens are encoded along with those that changed, as a multiple of them
    whole:   the share of changed tokens from which all are encoded
    encoded: how many tokens went through the tower for the last frame
    """

    def __init__(self, encode: Encode, *, keep: str = "exact", context: float = 1.0) -> None:
        self.encode = encode
        self.keep = check_choice("Stream", "keep", keep, KEEP)
        if not context >= 0:
            raise ValueError(f"Stream: context must be at least 0, got {context!r}")
        self.context, self.whole, self.encoded = context, WHOLE, 0
        self.tokens: Tokens | None = None

    @torch.no_grad()
    def update(self, texture: Texture, allocation: Allocation, sampled: Tensor, origin: Tensor) -> Tokens:
        """The tokens of the frame that is held.

        sampled: (K,), which footprints changed or are new
        origin:  (K,), the slot that the others had
        """
        wanted = (sampled & allocation.valid[0]).nonzero()[:, 0]
        used = int(allocation.valid.sum())
        if self.tokens is not None and len(wanted) == 0:
            self.encoded, self.tokens = 0, _reordered(self.tokens, allocation, origin)
        elif self.tokens is None or self.keep == "exact" or len(wanted) > self.whole * used:
            self.encoded, self.tokens = used, self.encode(texture, allocation)
        else:
            some = torch.cat([wanted, self._beside(allocation, wanted)])
            made = self.encode(texture, allocation.each(lambda column: column[:, some]))
            kept = _reordered(self.tokens, allocation, origin)
            for old, new in zip((kept.embeds, *kept.deepstack), (made.embeds, *made.deepstack)):
                old[:, wanted] = new[:, : len(wanted)]
            self.encoded, self.tokens = len(some), kept
        return self.tokens

    def _beside(self, allocation: Allocation, wanted: Tensor) -> Tensor:
        """The unchanged tokens nearest to those that changed."""
        other = allocation.valid[0].clone()
        other[wanted] = False
        others = other.nonzero()[:, 0]
        count = min(len(others), round(self.context * len(wanted)))
        centre = allocation.centre[0]
        away = torch.cdist(centre[others], centre[wanted]).amin(1) if count else centre.new_zeros(0)
        return others[away.argsort(stable=True)[:count]] if count else others[:0]


def _reordered(tokens: Tokens, allocation: Allocation, origin: Tensor) -> Tokens:
    """Tokens in the slots of a new allocation; those without an origin hold what stood in the first slot."""
    slot = origin.clamp(min=0)
    boxes = allocation.boxes
    return replace(
        tokens,
        embeds=tokens.embeds[:, slot],
        position=allocation.centre.to(tokens.embeds.device),
        size=(boxes[..., 2:] - boxes[..., :2]).to(tokens.embeds.device),
        weight=allocation.valid.to(tokens.embeds),
        deepstack=tuple(one[:, slot] for one in tokens.deepstack),
    )
