"""Embeddings of a stream's tokens that are kept from frame to frame, as `studies.video` measures them.

A kept patch equals a newly sampled one; a kept embedding does not, since the tokens of a vision tower attend to one
another. Exact: a frame in which nothing changed keeps all embeddings, any other is encoded as a whole. Approximate:
only tokens that changed are encoded, with some unchanged ones beside them to attend to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from texturevlm.types import Allocation, Texture
from texturevlm.video import Step
from texturevlm.vlm import Tokens

ENCODE_ALL = 0.5  # share of changed tokens from which encoding all of them costs little more


class KeptEmbeddings:
    """The encoded tokens of a stream; `encoded`: how many the last frame encoded.

    encode:     texture and allocation → Tokens, in the allocation's slots: `adapt(model).encode`
    context:    unchanged tokens encoded along, per changed token; None: all are encoded again when any changed
    encode_all: share of changed tokens above which all are encoded
    """

    def __init__(
        self, encode: Callable[[Texture, Allocation], Tokens], context: float | None, encode_all: float = ENCODE_ALL
    ) -> None:
        self.encode, self.context, self.encode_all, self.encoded = encode, context, encode_all, 0
        self.tokens: Tokens | None = None
        self.allocation: Allocation | None = None

    @torch.no_grad()
    def update(self, step: Step) -> Tokens:
        """The embeddings of the frame of a step; call it with every step of a stream."""
        texture, allocation = step.texture, step.allocation
        wanted = (step.reuse.sampled & allocation.valid[0]).nonzero()[:, 0]
        used, last, context = int(allocation.valid.sum()), self.tokens, self.context
        if last is None or self.allocation is None:
            tokens, self.encoded = self.encode(texture, allocation), used
        elif len(wanted) == 0:
            tokens, self.encoded = _reordered(last, self.allocation, allocation), 0
        elif context is None or len(wanted) > self.encode_all * used:
            tokens, self.encoded = self.encode(texture, allocation), used
        else:
            some = torch.cat([wanted, _neighbours(allocation, wanted, context)])
            made = self.encode(texture, allocation.each(lambda column: column[:, some]))
            tokens, self.encoded = _reordered(last, self.allocation, allocation), len(some)
            for old, new in zip((tokens.embeds, *tokens.deepstack), (made.embeds, *made.deepstack)):
                old[:, wanted] = new[:, : len(wanted)]
        self.tokens, self.allocation = tokens, allocation
        return tokens


def _neighbours(allocation: Allocation, wanted: Tensor, context: float) -> Tensor:
    """The slots of the unchanged tokens nearest to those that changed."""
    others = allocation.valid[0].index_fill(0, wanted, False).nonzero()[:, 0]
    count = min(len(others), round(context * len(wanted)))
    if not count:
        return others[:0]
    centre = allocation.centre[0]
    return others[torch.cdist(centre[others], centre[wanted]).amin(1).argsort(stable=True)[:count]]


def _reordered(tokens: Tokens, before: Allocation, after: Allocation) -> Tokens:
    """Tokens in the slots of a new choice, which holds kept footprints as they were; others have any slot's content."""
    new, old = (torch.cat([one.centre[0], one.ddx[0], one.ddy[0]], -1) for one in (after, before))
    slot = ((new[:, None] == old).all(-1) & before.valid[0]).float().argmax(1)
    boxes = after.boxes
    return replace(
        tokens,
        embeds=tokens.embeds[:, slot],
        position=after.centre.to(tokens.embeds.device),
        size=(boxes[..., 2:] - boxes[..., :2]).to(tokens.embeds.device),
        weight=after.valid.to(tokens.embeds),
        deepstack=tuple(layer[:, slot] for layer in tokens.deepstack),
    )
