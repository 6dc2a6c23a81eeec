"""Which blocks a group of queries reads token by token: those that get most attention by their summaries."""

from __future__ import annotations

import torch
from torch import Tensor

from texturevlm_lab.attention.block_layout import BlockLayout
from texturevlm_lab.attention.key_value_texture import KeyValueLevel, wide


def choose_blocks(query: Tensor, level: KeyValueLevel, layout: BlockLayout, *, fine: float, scale: float) -> Tensor:
    """The blocks that each group of queries reads, for each head of the keys.

    query:   (B, H, Q, D)
    level:   of the visual blocks
    fine:    share of the blocks that a group may choose from, rounded up
    returns  (B, heads of the keys, G, C), the numbers of the blocks, -1 for none
    """
    batch, groups = layout.queries.shape[:2]
    most = layout.most(fine)
    heads = level.key.shape[1]
    if most == 0:
        return torch.full((batch, heads, groups, 0), -1, dtype=torch.int32, device=query.device)
    whole = layout.marks[0][:, 0, :, : layout.visual]
    mass = block_mass(query, level, layout, whole, scale)
    allowed = layout.allowed(fine)[:, None, :, None]
    value, found = mass.topk(most, dim=-1)
    rank = torch.arange(most, device=query.device)
    return torch.where((rank < allowed) & (value >= 0), found, -1).int()


def block_mass(query: Tensor, level: KeyValueLevel, layout: BlockLayout, whole: Tensor, scale: float) -> Tensor:
    """(B, heads of the keys, G, V): the attention that blocks get by their means; -1 where a block is no candidate."""
    asking = mean_queries(query, layout).unflatten(1, (level.key.shape[1], -1))
    size = level.size[:, None, None, None]
    score = torch.einsum("bkrgd,bknd->bkrgn", asking, wide(level.key)) * scale + size
    hidden = ~whole[:, None]
    share = score.masked_fill(hidden[:, :, None], -1e30).softmax(-1)
    return share.sum(2).masked_fill(hidden, -1.0)


def mean_queries(query: Tensor, layout: BlockLayout) -> Tensor:
    """(B, H, G, D): the mean of the queries of each group."""
    if query.shape[2] == 1:
        return wide(query)
    index = layout.queries.flatten(1)
    there = (index >= 0)[:, None, :, None]
    place = index.clamp(min=0).long()[:, None, :, None].expand(-1, query.shape[1], -1, query.shape[3])
    total = (wide(query).gather(2, place) * there).unflatten(2, layout.queries.shape[1:]).sum(3)
    found: Tensor = total / there.unflatten(2, layout.queries.shape[1:]).sum(3).clamp(min=1)
    return found
