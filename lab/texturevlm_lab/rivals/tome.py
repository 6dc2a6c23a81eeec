"""ToMe (Bolya and others, 2023): merge pairs of similar tokens.

Published: in raster order, tokens are split alternately into A and B. Each A is matched to its most similar B, by the
cosine of head-mean keys; the r best pairs are merged to their size-weighted mean. This is done in each block of the
tower, and attention gets + log(size).
Ours: seven places in the tower merge, with the keys of the block before, and each keeps the same share. Where that is
less than a half, rounds follow one another; the keys of merged tokens are merged like the tokens. A token is the square
of patches that the model's merger turns into one; patches merge with those at the same place in the other square.
"""

from __future__ import annotations

import torch
from torch import Tensor

from texturevlm_lab.rivals.context import Context, unit
from texturevlm_lab.rivals.method import Method, ReduceStage
from texturevlm_lab.rivals.reduction import Reduction, everything
from texturevlm_lab.rivals.select import nearest


def merge_pairs(context: Context, keep: int) -> Reduction:
    """Merge until `keep` tokens are left. Needs keys."""
    keys, size = context.need("keys").float().mean(0), context.size.float()
    rank = torch.empty_like(context.raster)
    rank[context.raster] = torch.arange(len(rank), device=rank.device)
    done = everything(len(context), keys.device)
    while (count := len(done.kept)) > keep:
        step = _round(unit(keys), rank[done.kept].argsort(), min(count - keep, count // 2))
        keys, size = step.mean(keys, size), step.sizes(size)
        done = done.then(step)
    return done


def _round(directions: Tensor, order: Tensor, pairs: int) -> Reduction:
    """Merge the most similar pairs; B keeps its place.

    directions: (N, d)
    order:      (N,), the tokens in raster order
    """
    first, second = order[0::2], order[1::2]
    likeness, partner = nearest(directions[first], directions[second])
    merged = likeness.argsort(descending=True, stable=True)[:pairs]
    goes = torch.arange(len(directions), device=order.device)
    goes[first[merged]] = second[partner[merged]]
    stay = torch.ones_like(goes, dtype=torch.bool)
    stay[first[merged]] = False
    return Reduction.merging(stay.nonzero()[:, 0], goes)


TOME = Method(tuple(ReduceStage(merge_pairs, "tower", ("keys",), block / 8) for block in range(1, 8)))
