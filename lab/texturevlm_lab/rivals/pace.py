"""PACE: downsample where little is lost, before the tower; then attention in the tower and in the language model.

Published, as far as we know it: images are downsampled adaptively before the tower; then tokens are pruned by the
attention of the tower and of the language model's second layer.
Ours: squares of 2 × 2, 4 × 4 … tokens of the model's grid become one token that shows the same area more coarsely,
those first that lose least energy by it. What is then too many is dropped, least energy first. All three stages keep
the same share.
"""

from __future__ import annotations

import torch
from torch import Tensor

from texturevlm_lab.rivals.context import Context
from texturevlm_lab.rivals.fastv import attended_after
from texturevlm_lab.rivals.method import Method, ReduceStage
from texturevlm_lab.rivals.reduction import DROPPED, Reduction
from texturevlm_lab.rivals.token_squares import TokenSquares, squares


def downsampled(context: Context, keep: int) -> Reduction:
    """Merge squares of tokens; who applies it shrinks their pixels. Needs pixels."""
    pixels = context.need("pixels").float()
    levels = squares(context, pixels)
    goes = torch.arange(len(context), device=pixels.device)
    rank = torch.empty_like(goes)
    rank[context.raster] = goes
    if levels:
        merged = _cheapest(levels, len(context) - keep)
        for level, chosen in zip(levels, merged):  # from fine to coarse: the last one that holds a token counts
            inside = (level.member >= 0) & chosen[level.member.clamp(min=0)]
            first = torch.full_like(level.loss, len(context), dtype=torch.long)
            first = first.scatter_reduce(0, level.member[inside], rank[inside], "amin")
            goes[inside] = context.raster[first[level.member[inside]]]
    merged_away = goes != torch.arange(len(context), device=goes.device)
    energy = pixels.var((1, 2, 3), correction=0)
    stay = context.best(energy.masked_fill(merged_away, -1), keep)
    left = torch.zeros(len(context), dtype=torch.bool, device=goes.device)
    left[stay] = True
    return Reduction.merging(stay, torch.where(left[goes], goes, DROPPED))


def attended(context: Context, keep: int) -> Reduction:
    """Keep what is attended to in the tower. Needs received."""
    return Reduction.keeping(context.best(context.need("received"), keep), len(context))


def _cheapest(levels: list[TokenSquares], excess: int) -> list[Tensor]:
    """Per level (G,): which squares become one token, so that at most so many tokens leave by it."""
    loss, saved = torch.cat([one.loss for one in levels]), torch.cat([one.children - 1 for one in levels])
    order = loss.argsort(stable=True)  # a square never comes before its parts: it loses no less, and stands later
    taken = torch.zeros_like(loss, dtype=torch.bool)
    taken[order] = saved[order].cumsum(0) <= excess
    return list(taken.split([len(one.loss) for one in levels]))


PACE = Method(
    (
        ReduceStage(downsampled, "pixels", ("pixels",)),
        ReduceStage(attended, needs=("received",)),
        attended_after(2 / 32),
    )
)
