"""Several frames of a stream as one video input of a Qwen model: a full look, then tokens of what changed.

A Qwen model reads a video in moments of `moments` frames (two), each with its time; in the vision tower of Qwen3-VL the
tokens of one moment attend only to one another. So a clip can have as many tokens of each moment as it likes, placed
where they belong, and the embeddings of the moments before stay exactly what they were when another is added. The first
moment shows everything; each later one only the footprints that a changed tile lies in, best first, until the budget of
the clip is spent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from texturevlm.check import check_count
from texturevlm.types import Allocation, Texture
from texturevlm.video.frames import taken
from texturevlm.video.stream import Stream

FIRST = 0.5  # of the budget, at most, for the first moment where there are more


def clip(frames: Iterable[Any], stream: Stream, *, budget: int, moments: int = 2) -> tuple[Texture, Allocation]:
    """Frames, evenly spaced in time, as `prepare` of a Qwen adapter takes a video.

    frames:  anything that `stream.step` takes; all are kept, so a minute at two frames a second is 120 of them
    stream:  a new one, whose budget is the most tokens of one moment
    budget:  tokens of the whole clip
    moments: frames that a token of this model shows; the last frame is repeated to fill them
    returns  a Texture with an image a frame, and an Allocation for one sample, whose `source` is the first frame of the
             moment that a token belongs to. Give `prepare` the frames a second as `fps`
    """
    check_count("clip", "budget", budget, 1)
    check_count("clip", "moments", moments, 1)
    images: list[Tensor] = []
    shown: list[Allocation] = []
    worth: list[Tensor] = []
    changed = torch.zeros(0)
    for index, frame in enumerate(frames):
        step = stream.step(frame)
        images.append(taken(frame, stream.size, stream.device).clone())
        own = step.reuse.sampled & step.allocation.valid[0]
        changed = own.clone() if index % moments == 0 or step.reuse.chosen else changed | own
        if index % moments == moments - 1:
            _moment(step.allocation, changed, index - moments + 1, shown, worth)
    if not images:
        raise ValueError("clip: frames must hold at least one, got none")
    if rest := len(images) % moments:
        _moment(step.allocation, changed, len(images) - rest, shown, worth)
        images += [images[-1]] * (moments - rest)
    chosen = _within(shown, worth, budget)
    return Texture((torch.cat(images),)).mipmapped(), chosen


def _moment(allocation: Allocation, changed: Tensor, first: int, shown: list[Allocation], worth: list[Tensor]) -> None:
    """The tokens of one moment: those that changed; all of the first."""
    slots = (allocation.valid[0] if not shown else changed).nonzero()[:, 0]
    some = allocation.each(lambda column: column[:, slots].clone())
    shown.append(replace(some, source=torch.full_like(some.source, first)))
    worth.append(allocation.score[0, slots])


def _within(shown: list[Allocation], worth: list[Tensor], budget: int) -> Allocation:
    """The best tokens of all moments that the budget allows; the first moment is served first, up to its share."""
    later = sum(one.budget for one in shown[1:])
    head = min(shown[0].budget, max(budget - later, round(budget * FIRST), 1))
    first = worth[0].argsort(descending=True, stable=True)[:head]
    keep = [first]
    if later:
        limit = torch.cat(worth[1:]).sort(descending=True).values[: max(0, budget - head)]
        least = limit[-1] if len(limit) else torch.inf
        left = budget - head
        for score in worth[1:]:
            slots = (score >= least).nonzero()[:, 0][:left]
            keep.append(slots)
            left -= len(slots)
    columns: Any = {
        name: torch.cat([getattr(one, name)[:, slots] for one, slots in zip(shown, keep)], 1)
        for name in ("centre", "ddx", "ddy", "score", "valid", "source")
    }
    return replace(shown[0], **columns)
