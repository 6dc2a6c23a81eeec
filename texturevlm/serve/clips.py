"""`POST /api/clip`: a whole video under one budget: what changes from moment to moment, and which tokens each gets.

The tokens of all moments come in one atlas, so that a browser plays the video without asking again.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from fastapi import APIRouter
from starlette.requests import Request
from torch import Tensor

from texturevlm.rebuilding import median_grey
from texturevlm.relevance import SCORERS, Scorer, find_scorer
from texturevlm.serve.atlas import ATLAS_COLUMNS, GUTTER, atlas_of, data_url
from texturevlm.serve.images import state_of
from texturevlm.serve.lanes import Stop
from texturevlm.serve.plans import QUICK, PlanRequest, columns_of
from texturevlm.serve.uploads import Video
from texturevlm.types import Texture
from texturevlm.video import Moment, MomentTokens, changed_tiles, choose_clip

router = APIRouter()


@router.post("/api/clip")
async def clip(request: Request, body: PlanRequest) -> dict[str, Any]:
    """Per moment its time, the share of it that changed, and its tokens when the whole video is asked about."""
    body.check()
    state = state_of(request)
    upload = state.uploads.of_kind(body.id, Video)
    found: dict[str, Any] = await state.looking.run(
        request, lambda stop: clip_of(upload, body, state.settings.device, stop)
    )
    return found


class KeptScorer:
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


def clip_of(upload: Video, how: PlanRequest, device: torch.device, stop: Stop) -> dict[str, Any]:
    """What `POST /api/clip` answers."""
    options: Any = {"budget": how.budget, "patch": how.patch, "allocator": how.allocator, "device": device}
    # As `choose_clip` has it, `auto` is the scout: OCR takes seconds per moment.
    name = how.scorer if how.scorer in SCORERS.clients else QUICK if how.question.strip() else "none"
    options["relevance"] = KeptScorer(find_scorer("clip", name, how.question), upload.readings, stop)
    shown = {one.time: one for one in choose_clip(upload.moments, how.question, **options)}
    stop.check()
    first, moments = 0, []
    for moment, changed in zip(upload.moments, changes(upload.moments)):
        one = shown.get(moment.time)
        used = 0 if one is None else int(one.allocation.valid.sum())
        tokens = None if one is None else columns_of(one.allocation)
        moments.append(
            {
                "time": round(moment.time, 3),
                "changed": round(changed, 4),
                "used": used,
                "first": first,
                "tokens": tokens,
            }
        )
        first += used
    height, width = upload.moments[0].frames.shape[2:]
    atlas = atlas_of(torch.cat([_pixels(one) for one in shown.values()]))
    return {
        "id": how.id,
        "size": [height, width],
        "patch": how.patch,
        "budget": how.budget,
        "used": first,
        "full": -(-height // how.patch) * -(-width // how.patch) * len(upload.moments),
        "grey": round(float(median_grey(Texture((upload.moments[0].frames[:1].float() / 255,)))) * 255),
        "scorer": next(iter(shown.values())).relevance.scorer,
        "moments": moments,
        "atlas": {"url": data_url(atlas), "columns": ATLAS_COLUMNS, "gutter": GUTTER},
    }


def changes(moments: list[Moment]) -> list[float]:
    """The share of each moment that differs from the one before; of the first all."""
    return [1.0, *(float(changed_tiles(now.means, last.means[-1]).float().mean()) for last, now in pairwise(moments))]


def _pixels(one: MomentTokens) -> Tensor:
    """(K, 3, P, P) bytes: the used tokens, of the moment's first frame."""
    used = one.allocation.valid[0]
    return (one.pixels[used, 0].clamp(0, 1) * 255).round().byte().cpu()
