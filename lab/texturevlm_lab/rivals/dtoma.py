"""A reduction of videos in three stages, after DToMA: frames by what is new, frames by the question, then tokens.

Published: a manipulation of tokens in three stages that takes 70% of them away; we saw no code.
Ours, all of it. Behind the projector each frame gets a share of the budget by how much it differs from the frame
before, and keeps what is least like the same place before. After a quarter of the layers frames share the budget by the
question's attention. After three fifths the tokens that the last token attends to stay, whatever their frame.
"""

from __future__ import annotations

import torch
from torch import Tensor

from texturevlm_lab.rivals.context import Context
from texturevlm_lab.rivals.fastv import attended_after
from texturevlm_lab.rivals.method import Method, ReduceStage
from texturevlm_lab.rivals.prunevid import predecessors
from texturevlm_lab.rivals.reduction import Reduction
from texturevlm_lab.rivals.select import shared_out, top

FLOOR = 0.25  # share of a frame's weight that it has although nothing is new in it


def by_novelty(context: Context, keep: int) -> Reduction:
    """Frames share the budget by what is new in them."""
    news = novelty(context)
    return _per_frame(context, news, news + FLOOR, keep)


def by_asked_frames(context: Context, keep: int) -> Reduction:
    """Frames share the budget by the attention of the question. Needs asked."""
    asked = context.need("asked").mean(0)
    return _per_frame(context, asked, asked, keep)


def novelty(context: Context) -> Tensor:
    """(N,): 1 − cosine to the token at the same place one frame earlier; 2 where there is none."""
    every = torch.zeros(len(context), dtype=torch.long, device=context.features.device)
    return 1 - predecessors(context, every)[1]


def frames_of(context: Context) -> Tensor:
    """(N,): the frame of each token, counted over all images and videos."""
    frame = torch.stack([context.image.to(context.position), context.position[:, 0]], -1)
    member: Tensor = frame.unique(dim=0, return_inverse=True)[1]
    return member


def _per_frame(context: Context, scores: Tensor, weights: Tensor, keep: int) -> Reduction:
    """The highest scores of each frame, frames sharing the budget in proportion to the sums of the weights."""
    member, raster = frames_of(context), context.raster
    own = [raster[member[raster] == one] for one in range(int(member.max()) + 1)]
    shares = torch.stack([weights[one].sum() for one in own])
    budgets = shared_out(shares, torch.tensor([len(one) for one in own]), keep)
    chosen = [one[top(scores[one], budget)] for one, budget in zip(own, budgets)]
    return Reduction.keeping(torch.cat(chosen), len(context))


DTOMA = Method((ReduceStage(by_novelty), ReduceStage(by_asked_frames, "llm", ("asked",), 1 / 4), attended_after(3 / 5)))
