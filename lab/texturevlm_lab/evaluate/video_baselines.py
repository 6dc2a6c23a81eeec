"""Other ways to spend a budget on a video, as moments like those of `choose_clip`.

uniform: frames evenly spread over the video, each resized to an equal share of the tokens.
few:     likewise, with few frames and many tokens each.
many:    likewise, with as many frames and as few tokens each as possible.
static:  many frames; what changed least against the frame before is dropped (as EVS does), down to the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from texturevlm.allocate import ALLOCATORS
from texturevlm.ask import AskConfig, VideoSession
from texturevlm.frame import Frame
from texturevlm.placement import Picture, Placement
from texturevlm.relevance import find_relevance
from texturevlm.sampling import sample
from texturevlm.types import Texture
from texturevlm.video import FrameSource, Moment, MomentTokens

MANY_TOKENS, USUAL_TOKENS, FEW_TOKENS = 128, 32, 8  # of a moment
KEPT_SHARE = 0.5  # of the tokens that `static` begins with


def spread_moments(source: FrameSource, count: int, together: int) -> list[Moment]:
    """So many moments, evenly spread from the first to the last; the source is read twice."""
    total = -(-sum(1 for _ in source) // together)
    count = min(count, total)
    wanted = {round(index * (total - 1) / max(1, count - 1)) for index in range(count)}
    found: list[Moment] = []
    frames: list[Tensor] = []
    begun = 0.0
    for index, (image, time) in enumerate(source):
        number, place = divmod(index, together)
        if number not in wanted:
            continue
        if place == 0:
            frames, begun = [], time
            found.append(Moment.of([image], begun, together))
        frames.append(image)
        found[-1] = Moment.of(frames, begun, together)
    return found


def uniform(moments: Sequence[Moment], budget: int, patch: int, device: torch.device) -> list[MomentTokens]:
    """Every moment resized to an equal share."""
    share = max(1, budget // len(moments))
    found = []
    for moment in moments[:budget]:
        texture = Texture((moment.frames.to(device).float() / 255,)).mipmapped()
        first = Texture(tuple(level[:1] for level in texture.levels))
        known = find_relevance(first, patch=patch, relevance="none")
        allocation = ALLOCATORS["resize"](first, known, budget=share, patch=patch)
        read = sample(texture, allocation.each(partial(_repeated, count=texture.batch)))
        found.append(MomentTokens(moment.time, allocation, known, read.pixels.transpose(0, 1).contiguous()))
    return found


def static_dropped(moments: Sequence[Moment], budget: int, patch: int, device: torch.device) -> list[MomentTokens]:
    """Without the tokens that changed least against the same place of the moment before."""
    whole = uniform(moments, round(budget / KEPT_SHARE), patch, device)
    change = [torch.full((len(whole[0].pixels),), torch.inf)]
    change += [(two.pixels - one.pixels).abs().mean((1, 2, 3, 4)).cpu() for one, two in pairwise(whole)]
    used = torch.cat([one.allocation.valid[0].cpu() for one in whole])
    order = torch.cat(change).where(used, -1.0).argsort(descending=True, stable=True)[:budget]
    kept = torch.zeros(len(used), dtype=torch.bool).index_fill_(0, order, True) & used
    found = []
    for one, own in zip(whole, kept.split([len(one.pixels) for one in whole])):
        if slots := own.nonzero()[:, 0].tolist():
            some = one.allocation.each(partial(_some, slots=slots))
            found.append(MomentTokens(one.time, some, one.relevance, one.pixels[slots]))
    return found


def _some(column: Tensor, slots: list[int]) -> Tensor:
    return column[:, slots]


def _repeated(column: Tensor, count: int) -> Tensor:
    return column.expand(count, *column.shape[1:])


# name → tokens of a moment, and what makes the moments
VIDEO_BASELINES: dict[str, tuple[int, Callable[..., list[MomentTokens]]]] = {
    "uniform": (USUAL_TOKENS, uniform),
    "few": (MANY_TOKENS, uniform),
    "many": (FEW_TOKENS, uniform),
    "static": (FEW_TOKENS, static_dropped),
}


class BaselineSession(VideoSession):
    """A video that is shown by one of VIDEO_BASELINES."""

    def __init__(self, name: str, *args: Any) -> None:
        self.name = name
        super().__init__(*args)

    def keep(self, source: FrameSource, together: int) -> None:
        self.source, self.together = source, together
        self.seconds = 0.0

    def placements(self, question: str, how: AskConfig, attention: Any = None) -> list[Placement]:
        """attention: to an earlier look; a baseline has one look and gets none"""
        (tokens, choose), budget, side = VIDEO_BASELINES[self.name], how.tokens.budget, self.model.adapter.side
        self.moments = spread_moments(self.source, max(1, budget // tokens), self.together)
        self.shown = choose(self.moments, budget, side, self.model.device)
        size = self.moments[0].frames.shape[2], self.moments[0].frames.shape[3]
        pictures = {
            moment.time: Picture.of_frame(moment.frames[:1], moment.frames[:1], Frame(size, size), side)
            for moment in self.moments
        }
        return [Placement(pictures[shown.time], shown.allocation, shown.relevance) for shown in self.shown]
