"""HiRED (Arif and others, 2024): a budget per tile by shallow attention, tokens inside a tile by deep attention.

Published: for models that cut an image into tiles. A tile's budget is proportional to the class token's attention to
that part of the whole-image view, in the first layer; inside, the highest attention of the class token in layer 22.
Ours: an image is one run of tokens, so a tile is a quarter of it. Deep is the tower's last layer that attends to the
whole image, shallow the first. Where there is no class token, attention is the mean over all patches.
"""

from __future__ import annotations

import torch
from torch import Tensor

from texturevlm_lab.rivals.context import Context
from texturevlm_lab.rivals.method import Method, ReduceStage
from texturevlm_lab.rivals.reduction import Reduction
from texturevlm_lab.rivals.select import shared_out, top


def by_tile(context: Context, keep: int) -> Reduction:
    """Share the budget over quarters, then keep the highest attention in each. Needs received and shallow."""
    tile = tiles(context)
    groups = tile.unique()
    members = [(tile == one).nonzero()[:, 0] for one in groups]
    weights = torch.stack([context.need("shallow")[own].sum() for own in members])
    budgets = shared_out(weights, torch.tensor([len(own) for own in members]), keep)
    received = context.need("received")
    chosen = [own[top(received[own], budget)] for own, budget in zip(members, budgets)]
    return Reduction.keeping(torch.cat(chosen), len(context))


def tiles(context: Context) -> Tensor:
    """(N,): the quarter of its image that each token lies in, counted over all images."""
    place = context.position[:, 1:]
    quarter = torch.zeros_like(context.image)
    for one in context.image.unique():
        own = context.image == one
        middle = (place[own].amin(0) + place[own].amax(0)) / 2
        below = (place[own] > middle).long()
        quarter[own] = 2 * below[:, 0] + below[:, 1]
    return 4 * context.image + quarter


HIRED = Method((ReduceStage(by_tile, needs=("received", "shallow")),))
