"""Several frames of a stream as one video input of a Qwen model: the first moment, then what changed.

A Qwen model reads a video in moments of `moments` frames (two), each with its time; in the vision tower of Qwen3-VL the
tokens of one moment attend only to one another. So a moment may have any tokens, and adding one leaves the embeddings
of earlier moments exactly as they were. The first moment shows everything; each later one only the footprints that read
a changed tile, best first, until the budget of the clip is spent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from texturevlm.check import check_count
from texturevlm.types import COLUMNS, Allocation, Texture
from texturevlm.video.sources import as_frame
from texturevlm.video.stream import VideoStream

FIRST_SHARE = 0.5  # of the budget, at most, for the first moment where there are more


def clip(frames: Iterable[Any], stream: VideoStream, *, budget: int, moments: int = 2) -> tuple[Texture, Allocation]:
    """Frames, evenly spaced in time, as `prepare` of a Qwen adapter takes a video.

    frames:  anything that `stream.step` takes; all are kept, so a minute at two frames per second is 120 of them
    stream:  a new one, whose budget is the largest number of tokens of one moment
    budget:  tokens of the whole clip
    moments: frames per token of this model; the last frame is repeated to fill them
    returns  a Texture with one image per frame, and an Allocation for one sample, whose `source` is the first frame of
             a token's moment. Pass the frames per second to `prepare` as `fps`
    """
    check_count("clip", "budget", budget, 1)
    check_count("clip", "moments", moments, 1)
    images: list[Tensor] = []
    shown: list[Allocation] = []
    changed = torch.zeros(0)
    for index, frame in enumerate(frames):
        step = stream.step(frame)
        images.append(as_frame(frame, stream.size, stream.device).clone())
        own = step.reuse.sampled & step.allocation.valid[0]
        changed = own.clone() if index % moments == 0 or step.reuse.chosen else changed | own
        if index % moments == moments - 1:
            shown.append(_moment(step.allocation, changed, index - moments + 1, first=not shown))
    if not images:
        raise ValueError("clip: frames must hold at least one, got none")
    if rest := len(images) % moments:
        shown.append(_moment(step.allocation, changed, len(images) - rest, first=not shown))
        images += [images[-1]] * (moments - rest)
    return Texture((torch.cat(images),)).mipmapped(), _within_budget(shown, budget)


def _moment(allocation: Allocation, changed: Tensor, frame: int, *, first: bool) -> Allocation:
    """The tokens of the moment that begins at `frame`: those that changed; all of the first moment."""
    slots = (allocation.valid[0] if first else changed).nonzero()[:, 0]
    some = allocation.each(lambda column: column[:, slots].clone())
    return replace(some, source=torch.full_like(some.source, frame))


def _within_budget(shown: list[Allocation], budget: int) -> Allocation:
    """The best tokens of all moments that the budget allows; the first moment is served first, up to its share."""
    scores = [one.score[0] for one in shown]
    later = sum(one.budget for one in shown[1:])
    head = min(shown[0].budget, max(budget - later, round(budget * FIRST_SHARE), 1))
    keep = [scores[0].argsort(descending=True, stable=True)[:head]]
    if later:
        left = budget - head
        limit = torch.cat(scores[1:]).sort(descending=True).values[: max(0, left)]
        least = limit[-1] if len(limit) else torch.inf
        for score in scores[1:]:
            slots = (score >= least).nonzero()[:, 0][:left]
            keep.append(slots)
            left -= len(slots)
    columns: Any = {
        name: torch.cat([getattr(one, name)[:, slots] for one, slots in zip(shown, keep)], 1) for name in COLUMNS
    }
    return replace(shown[0], **columns)
