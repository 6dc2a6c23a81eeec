"""VisionZip (Yang and others, 2024): dominant tokens, and contextual ones into which the rest is merged.

Published: dominant tokens have the highest attention from the class token, or the highest mean attention received
where there is none. Of the rest, evenly spaced tokens are targets, and every other one is averaged into the target with
the most similar key. Of 64 tokens 54 are dominant.
Ours: merged tokens attend with + log(size) in the language model, and keep the position of their target.
"""

from __future__ import annotations

import torch

from texturevlm_lab.rivals.context import Context
from texturevlm_lab.rivals.method import Method, ReduceStage
from texturevlm_lab.rivals.reduction import Reduction
from texturevlm_lab.rivals.select import nearest, others, strided, top

CONTEXTUAL = 10 / 64  # share of the budget


def dominant_and_contextual(context: Context, keep: int) -> Reduction:
    """Keep the dominant tokens and merge the others. Needs keys and received."""
    targets = min(keep - 1, max(1, round(keep * CONTEXTUAL)))
    dominant = top(context.need("received"), keep - targets)
    if not targets:
        return Reduction.keeping(dominant, len(context))
    is_dominant = torch.zeros(len(context), dtype=torch.bool, device=dominant.device)
    is_dominant[dominant] = True
    rest = context.raster[~is_dominant[context.raster]]
    return merged_into(context, torch.cat([dominant, strided(rest, targets)]), strided(rest, targets))


def merged_into(context: Context, chosen: torch.Tensor, targets: torch.Tensor) -> Reduction:
    """Keep the chosen tokens and average every other one into the target with the most similar key.

    targets: some of the chosen
    """
    goes = torch.empty_like(context.raster)
    goes[chosen] = chosen
    rest, keys = others(chosen, len(context)), context.key_directions
    goes[rest] = targets[nearest(keys[rest], keys[targets])[1]]
    return Reduction.merging(chosen, goes)


VISIONZIP = Method((ReduceStage(dominant_and_contextual, needs=("keys", "received")),))
