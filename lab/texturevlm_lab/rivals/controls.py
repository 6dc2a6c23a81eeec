"""Controls: random tokens, and every n-th token. Several published methods are not better than these."""

from __future__ import annotations

import torch

from texturevlm_lab.rivals.context import Context
from texturevlm_lab.rivals.method import Method, ReduceStage
from texturevlm_lab.rivals.reduction import Reduction
from texturevlm_lab.rivals.select import strided, top

SEED = 0


def random(context: Context, keep: int) -> Reduction:
    """Keep tokens by chance, the same ones for the same places."""
    noise = torch.rand(len(context), generator=torch.Generator().manual_seed(SEED)).to(context.features.device)
    scores = torch.empty_like(noise)
    scores[context.raster] = noise
    return Reduction.keeping(top(scores, keep), len(context))


def stride(context: Context, keep: int) -> Reduction:
    """Keep evenly spaced tokens in raster order."""
    return Reduction.keeping(strided(context.raster, keep), len(context))


RANDOM, STRIDE = Method((ReduceStage(random),)), Method((ReduceStage(stride),))
