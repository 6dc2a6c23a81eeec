"""A whole video under one budget: what changes from moment to moment, and which tokens each gets.

The tokens of all moments come in one atlas, so that a browser plays the video without asking again.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch

from texturevlm.placement import TokenConfig
from texturevlm.rebuilding import median_grey
from texturevlm.relevance import Scorer, find_scorer
from texturevlm.serve.drawing import atlas
from texturevlm.serve.lanes import Stop
from texturevlm.serve.plans import PlanRequest, columns_of
from texturevlm.serve.uploads import Video
from texturevlm.types import Texture
from texturevlm.video import Moment, changed_tiles, choose_clip, upright_moments


class MomentScorer:
    """A scorer that remembers what it read of each moment of a video, and ends when nobody waits.

    kept: by the scorer's name and the pixels, which are made anew for every question
    """

    def __init__(self, scorer: Scorer, kept: dict[tuple[str, int], Any], stop: Stop) -> None:
        self.scorer, self.kept, self.stop = scorer, kept, stop

    def __getattr__(self, name: str) -> Any:
        return getattr(self.scorer, name)  # what a scorer says of itself

    def prepare(self, texture: Texture) -> Any:
        self.stop.check()
        key = self.scorer.name, hash(texture.levels[0].cpu().numpy().tobytes())
        if key not in self.kept:
            self.kept[key] = self.scorer.prepare(texture)
        return self.kept[key]


def clip_of(upload: Video, asked: PlanRequest, how: TokenConfig, device: torch.device, stop: Stop) -> dict[str, Any]:
    """What `POST /api/clip` answers: positions in the video as it was given, and pixels as the model gets them."""
    upright, frame = upright_moments(upload.moments, how.turn)
    # As `choose_clip` has it, `auto` is the scout, and without a question nothing.
    automatic = "scout" if asked.question.strip() else "none"
    scorer = find_scorer("clip", automatic if how.relevance == "auto" else how.relevance, asked.question)
    own = replace(how, relevance=MomentScorer(scorer, upload.readings, stop))
    shown = {moment.time: moment for moment in choose_clip(upright, asked.question, own, device=device)}
    stop.check()
    first, moments = 0, []
    for moment, changed in zip(upload.moments, changes(upright)):
        told: dict[str, Any] = {"time": round(moment.time, 3), "changed": round(changed, 4), "first": first}
        given = frame.footprints(shown[moment.time].allocation) if moment.time in shown else None
        used = 0 if given is None else int(given.valid.sum())
        moments.append({**told, "used": used, "tokens": None if given is None else columns_of(given)})
        first += used
    height, width = upload.moments[0].frames.shape[2:]
    return {
        "id": asked.id,
        "size": [height, width],
        "patch": how.patch,
        "budget": how.budget,
        "used": first,
        "full": -(-height // how.patch) * -(-width // how.patch) * len(upload.moments),
        "grey": round(float(median_grey(Texture((upload.moments[0].frames[:1].float() / 255,)))) * 255),
        "scorer": next(iter(shown.values())).relevance.scorer,
        "how": repr(how),
        "moments": moments,
        "atlas": atlas(torch.cat([moment.pixels[moment.allocation.valid[0], 0] for moment in shown.values()])),
    }


def changes(moments: list[Moment]) -> list[float]:
    """The share of each moment that differs from the one before; of the first all."""
    return [1.0, *(float(changed_tiles(now.means, last.means[-1]).float().mean()) for last, now in pairwise(moments))]
