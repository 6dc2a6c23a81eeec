"""HoloV (Zou and others, 2025): a budget per crop, so that no part of the image is forgotten.

Published: 16 crops, runs of tokens in raster order. A token's score is its attention plus the scaled variance of its
cosines to the other tokens of the crop. A crop's budget is proportional to its score; inside, the highest stay.
Ours: the variance is scaled so that its mean is that of the attention; a crop's score is the mean of its tokens'.
"""

from __future__ import annotations

import torch
from torch import Tensor

from texturevlm_lab.rivals.context import Context
from texturevlm_lab.rivals.method import Method, ReduceStage
from texturevlm_lab.rivals.reduction import Reduction
from texturevlm_lab.rivals.select import shared_out, top

RUNS = 16


def by_crop(context: Context, keep: int) -> Reduction:
    """Share the budget over runs of tokens, then keep the highest scores in each. Needs received."""
    crops = context.raster.tensor_split(min(RUNS, len(context)))
    attention = context.need("received").float()
    variance = torch.zeros_like(attention)
    for crop in crops:
        variance[crop] = _variance(context.directions[crop])
    scores = attention + variance * attention.mean() / variance.mean().clamp(min=1e-12)
    weights = torch.stack([scores[crop].mean() for crop in crops])
    budgets = shared_out(weights, torch.tensor([len(crop) for crop in crops]), keep)
    chosen = [crop[top(scores[crop], budget)] for crop, budget in zip(crops, budgets)]
    return Reduction.keeping(torch.cat(chosen), len(context))


def _variance(directions: Tensor) -> Tensor:
    """(n,): of the cosines of each token to the others of its crop."""
    count = len(directions)
    if count < 3:
        return directions.new_zeros(count)
    cosine = directions @ directions.mT
    apart = cosine[~torch.eye(count, dtype=torch.bool, device=cosine.device)].view(count, count - 1)
    return apart.var(-1, correction=0)


HOLOV = Method((ReduceStage(by_crop, needs=("received",)),))
