"""DivPrune (Alvar and others, 2025): the most diverse tokens, whatever the question.

Published: farthest-point selection on 1 − cosine of the embeddings behind the projector. The first token is the one
farthest from its nearest neighbour; each further one is farthest from those chosen.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from texturevlm_lab.rivals.context import Context
from texturevlm_lab.rivals.method import Method, ReduceStage
from texturevlm_lab.rivals.reduction import Reduction
from texturevlm_lab.rivals.select import SIMILARITIES_AT_ONCE


def farthest_points(context: Context, keep: int) -> Reduction:
    """Choose tokens that are far from one another."""
    directions = context.directions
    chosen = [_loneliest(directions)]
    distance = torch.full((len(context),), math.inf, device=directions.device)
    while len(chosen) < keep:
        last = chosen[-1]
        distance = torch.minimum(distance, 1 - directions @ directions[last])
        distance[last] = -math.inf  # a copy of a chosen token is still another token
        chosen.append(distance.argmax())
    return Reduction.keeping(torch.stack(chosen), len(context))


def _loneliest(directions: Tensor) -> Tensor:
    """The token whose nearest neighbour is farthest away."""
    likeness = []
    for first in range(0, len(directions), SIMILARITIES_AT_ONCE):
        rows = directions[first : first + SIMILARITIES_AT_ONCE] @ directions.mT
        rows.diagonal(first).fill_(-math.inf)
        likeness.append(rows.amax(-1))
    return torch.cat(likeness).argmin()


DIVPRUNE = Method((ReduceStage(farthest_points),))
