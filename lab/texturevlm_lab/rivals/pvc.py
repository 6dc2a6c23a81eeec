"""Progressive encoding, after PVC: each pass over an image adds what the passes before it do not explain.

Published: a trained model encodes a tile progressively, as if it were a video that stands still, in 64 tokens.
Ours, without training, in the middle of the tower: the first pass takes evenly spaced tokens, in the first frame of
each video; each later pass those that are least alike any token so far. The rest is merged into the most similar one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from texturevlm_lab.rivals.context import Context
from texturevlm_lab.rivals.method import Method, ReduceStage
from texturevlm_lab.rivals.reduction import Reduction
from texturevlm_lab.rivals.select import nearest, others, strided

PASSES = 4


def progressive(context: Context, keep: int) -> Reduction:
    """Choose in passes and merge the rest."""
    early = _first_frames(context)
    chosen = strided(early, min(max(1, keep // PASSES), len(early)))
    for left in range(PASSES - 1, 0, -1):
        explained = nearest(context.directions, context.directions[chosen])[0]
        explained[chosen] = 2  # above any cosine
        chosen = torch.cat([chosen, context.best(-explained, (keep - len(chosen)) // left)])
    goes = torch.empty_like(context.raster)
    goes[chosen] = chosen
    rest = others(chosen, len(context))
    ordered = context.raster[torch.isin(context.raster, chosen)]  # so that ties do not depend on the prompt's order
    goes[rest] = ordered[nearest(context.directions[rest], context.directions[ordered])[1]]
    return Reduction.merging(chosen, goes)


def _first_frames(context: Context) -> Tensor:
    """The tokens of the first moment of each image or video, in raster order."""
    first = torch.full((int(context.image.max()) + 1,), float("inf"), device=context.position.device)
    first = first.scatter_reduce(0, context.image, context.position[:, 0].float(), "amin")
    early = context.position[:, 0] == first[context.image]
    return context.raster[early[context.raster]]


PVC = Method((ReduceStage(progressive, "tower", depth=1 / 2),))
