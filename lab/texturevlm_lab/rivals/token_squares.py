"""Squares of tokens that one token shows more coarsely: what each square loses by it, and the pixels that it shows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm_lab.rivals.context import Context
from texturevlm_lab.rivals.reduction import DROPPED, Reduction

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
