"""PACE: downsample where little is lost, before the tower; then attention in the tower and in the language model.

Published, as far as we know it: images are downsampled adaptively before the tower; then tokens are pruned by the
attention of the tower and of the language model's second layer.
Ours: squares of 2 × 2, 4 × 4 … tokens of the model's grid become one token that shows the same area more coarsely,
those first that lose least energy by it. What is then too many is dropped, least energy first. All three stages keep
the same share.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.reduce.context import Context
from texturevlm.reduce.reduction import DROPPED, Reduction

SQUARE_LEVELS = 5  # squares of at most 32 × 32 tokens


@dataclass(frozen=True, eq=False)
class TokenSquares:
    """Squares of one level: (G,) each.

    loss:     of energy, never less than that of a part
    children: parts that there are
    member:   (N,), the square of each token; −1: none
    """

    loss: Tensor
    children: Tensor
    member: Tensor


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
    order = loss.argsort(
        stable=True
    )  # a square never comes before its parts: its loss is not less, and it stands later
    taken = torch.zeros_like(loss, dtype=torch.bool)
    taken[order] = saved[order].cumsum(0) <= excess
    return list(taken.split([len(one.loss) for one in levels]))


def squares(context: Context, pixels: Tensor) -> list[TokenSquares]:
    """Levels from 2 × 2 on, as long as any square has two parts."""
    place = context.position
    on_grid = ((place - place.round()).abs() < 1e-3).all(-1).nonzero()[:, 0]
    cells = torch.cat([context.image[:, None].to(place), place], -1)[on_grid].round().long()
    values, found = pixels[on_grid], []
    part = torch.arange(len(on_grid), device=pixels.device)  # per token, its part of the level before
    least = values.new_zeros(len(on_grid))
    token = torch.full((len(context),), -1, device=pixels.device)
    token[on_grid] = part
    for _ in range(SQUARE_LEVELS):
        quarter = cells[:, 2:] % 2
        upper = torch.cat([cells[:, :2], cells[:, 2:].div(2, rounding_mode="floor")], -1)
        cells, member = upper.unique(dim=0, return_inverse=True)
        if len(cells) == len(quarter):
            break
        ones = torch.ones(len(member), device=pixels.device)
        children = ones.new_zeros(len(cells)).index_add(0, member, ones)
        whole, values = _side_by_side(values, member, quarter, len(cells))
        loss = whole.square().mean((1, 2, 3)) - values.square().mean((1, 2, 3))
        least = loss.scatter_reduce(0, member, least, "amax")
        part = member[part]
        found.append(TokenSquares(least, children.long(), torch.where(token >= 0, part[token.clamp(min=0)], -1)))
    return found


def shown_pixels(context: Context, reduction: Reduction) -> tuple[Tensor, Tensor, Tensor]:
    """What the tokens that stay show: pixels (M, C, S, S), first row and column (M, 2), and how many cells wide (M,).

    Cells of a square whose token is not a member look like the mean of the others.
    """
    kept, live = reduction.kept, reduction.into != DROPPED
    place, slot = context.position[live, 1:].round().long(), reduction.into[live]
    low = place.new_full((len(kept), 2), torch.iinfo(torch.long).max)
    low = low.scatter_reduce(0, slot[:, None].expand_as(place), place, "amin")
    offset = place - low[slot]
    wide = torch.ones_like(kept).scatter_reduce(0, slot, offset.amax(-1) + 1, "amax")
    pixels = context.need("pixels")[kept].clone()
    first = context.position[kept, 1:].clone()
    members = context.need("pixels")[live]
    for factor in wide.unique().tolist():
        if factor == 1:
            continue
        groups = (wide == factor).nonzero()[:, 0]
        own = torch.isin(slot, groups)
        number = torch.searchsorted(groups, slot[own])
        pixels[groups] = _side_by_side(members[own], number, offset[own], len(groups), factor)[1].to(pixels.dtype)
        first[groups] = low[groups].to(first)
    return pixels, first, wide


def _side_by_side(values: Tensor, member: Tensor, offset: Tensor, count: int, factor: int = 2) -> tuple[Tensor, Tensor]:
    """Squares of factor × factor parts (n, C, S, S): whole, and shrunk to one part (G, C, S, S).

    member, offset: (n,) and (n, 2), the square of each part and its row and column there
    """
    values = values.float()
    mean = values.new_zeros(count, *values.shape[1:]).index_add(0, member, values)
    mean /= torch.bincount(member, minlength=count).view(-1, 1, 1, 1)
    whole = mean[:, :, None, :, None].repeat(1, 1, factor, 1, factor, 1)
    whole[member, :, offset[:, 0], :, offset[:, 1]] = values
    whole = whole.flatten(4, 5).flatten(2, 3)
    return whole, functional.avg_pool2d(whole, factor)
