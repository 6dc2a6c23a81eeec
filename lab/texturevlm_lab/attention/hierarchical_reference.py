"""Hierarchical attention in PyTorch: one softmax over tokens that are read and summaries of blocks that are not.

It computes every score and leaves out what is not read, so it saves nothing: it is the specification.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm_lab.attention.block_layout import BlockLayout
from texturevlm_lab.attention.key_value_texture import KeyValueLevel, wide

GROUPS_AT_ONCE = 16  # of queries at a time, so that memory stays small


@dataclass(frozen=True, eq=False)
class Summaries:
    """What stands for blocks that are not read: one or more keys and values per block.

    key, value: (B, heads of the keys, V, S, D)
    bias:       (B, V, S), added to the scores; -inf where there is nothing
    """

    key: Tensor
    value: Tensor
    bias: Tensor


def mean_summaries(level: KeyValueLevel) -> Summaries:
    """One mean per block, which counts as many tokens as it stands for."""
    return Summaries(level.key[:, :, :, None], level.value[:, :, :, None], level.size[..., None])


def latent_summaries(key: Tensor, value: Tensor, layout: BlockLayout, rank: int) -> Summaries:
    """Every token of a block, but only its mean and its coordinates along the block's `rank` main directions."""
    index = layout.table.clamp(min=0).long()[:, None, :, None]
    blocks = (layout.visual, layout.block)
    there = (layout.table >= 0).unflatten(1, blocks)

    def low_rank(values: Tensor) -> Tensor:
        rows = wide(values).gather(2, index.expand(-1, values.shape[1], -1, values.shape[3]))
        rows = rows.unflatten(2, blocks) * there[:, None, ..., None]
        mean = rows.sum(3, keepdim=True) / there.sum(-1).clamp(min=1)[:, None, :, None, None]
        centred = (rows - mean) * there[:, None, ..., None]
        main = torch.linalg.eigh((centred @ centred.mT).detach())[1][..., -rank:]  # as wide as a block, not as D
        found: Tensor = mean + main @ (main.mT @ centred)
        return found

    bias = torch.zeros(there.shape, dtype=wide(key).dtype, device=key.device).masked_fill(~there, -math.inf)
    return Summaries(low_rank(key), low_rank(value), bias)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: BlockLayout,
    chosen: Tensor,
    summaries: Summaries | None,
    *,
    scale: float,
    bias: Tensor | None = None,
) -> Tensor:
    """Attention (B, H, Q, E) over what each group reads.

    chosen:    (B, heads of the keys, G, C), blocks that are read, beside those of the state FINE; -1 for none
    summaries: of the other blocks; None: nothing stands for them
    bias:      (B or 1, Q, L), added to the scores of tokens; -inf hides one
    """
    batch, heads = key.shape[:2]
    query, key, value = wide(query), wide(key), wide(value)
    read, instead = readings(layout, chosen)
    of_key = layout.key_blocks[:, None, None].expand(-1, heads, -1, -1)
    out = query.new_zeros(batch, query.shape[1], query.shape[2] + 1, value.shape[3])  # the last row is for no query
    for first in range(0, layout.queries.shape[1], GROUPS_AT_ONCE):
        rows = layout.queries[:, first : first + GROUPS_AT_ONCE]
        index = rows.clamp(min=0).flatten(1).long()
        asking = query.gather(2, index[:, None, :, None].expand(-1, query.shape[1], -1, query.shape[3]))
        asking = asking.unflatten(1, (heads, -1)).unflatten(3, rows.shape[1:])  # B, K, R, g, group, D
        some = read[:, :, first : first + GROUPS_AT_ONCE]
        seen = some.gather(3, of_key.expand(-1, -1, some.shape[2], -1))[:, :, None, :, None]
        score = torch.einsum("bkrgqd,bkld->bkrgql", asking, key) * scale
        if layout.causal:
            offset = layout.length - query.shape[2]
            later = torch.arange(layout.length, device=key.device) > rows[..., None] + offset
            seen = seen & ~later[:, None, None]
        if bias is not None:
            own = wide(bias).expand(batch, -1, -1).gather(1, index[..., None].expand(-1, -1, layout.length))
            score = score + own.unflatten(1, rows.shape[1:])[:, None, None]
        score = score.masked_fill(~seen, -math.inf)
        found = _softmax_values(asking, score, value, summaries, instead[:, :, first : first + GROUPS_AT_ONCE], scale)
        target = torch.where(rows >= 0, rows, query.shape[2]).flatten(1).long()[:, None, :, None]
        found = found.flatten(3, 4).flatten(1, 2)
        out = out.scatter(2, target.expand_as(found), found)
    return out[:, :, :-1]


def attend_one(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: BlockLayout,
    chosen: Tensor,
    summaries: Summaries | None,
    *,
    scale: float,
) -> Tensor:
    """`attend` for one query per sample, by SDPA: a new token runs through many layers, and each call costs the host.

    The heads that share a head of the keys are the rows, so that a mask is one row for all of them.
    """
    (batch, heads), dtype = key.shape[:2], query.dtype
    query, key, value = wide(query), wide(key), wide(value)
    read, instead = readings(layout, chosen)
    seen = read[:, :, 0].gather(2, layout.key_blocks[:, None].expand(-1, heads, -1))
    mask = torch.where(seen, 0.0, -math.inf)
    if summaries is not None:
        key = torch.cat([key, wide(summaries.key).flatten(2, 3)], 2)
        value = torch.cat([value, wide(summaries.value).flatten(2, 3)], 2)
        stands = torch.where(instead[:, :, 0, :, None], summaries.bias[:, None], -math.inf)
        mask = torch.cat([mask, stands.flatten(2).to(mask.dtype)], 2)
    rows = query.view(batch, heads, -1, query.shape[3])
    found = functional.scaled_dot_product_attention(
        rows, key, value, attn_mask=mask[:, :, None].to(query.dtype), scale=scale
    )
    return found.reshape(batch, -1, 1, value.shape[3]).to(dtype)


def readings(layout: BlockLayout, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Which blocks (B, K, G, T + 1) are read, T being that of no key; which of the visual ones a summary stands for."""
    blocks = layout.keys.shape[1]
    whole, fine = layout.marks
    index = torch.where(chosen >= 0, chosen, blocks).long()
    marks = torch.zeros(*chosen.shape[:3], blocks + 1, dtype=torch.bool, device=chosen.device).scatter(3, index, True)
    return (marks & whole) | fine, (~marks & whole)[..., : layout.visual]


def _softmax_values(
    asking: Tensor, score: Tensor, value: Tensor, summaries: Summaries | None, instead: Tensor, scale: float
) -> Tensor:
    """The softmax of the scores, and of those of summaries, times the values: (B, K, R, g, group, E)."""
    length = score.shape[-1]
    if summaries is not None:
        key = wide(summaries.key).flatten(2, 3)
        coarse = (
            torch.einsum("bkrgqd,bkld->bkrgql", asking, key) * scale
            + summaries.bias.flatten(1)[:, None, None, None, None]
        )
        stands = instead.repeat_interleave(summaries.key.shape[3], 3)[:, :, None, :, None]
        score = torch.cat([score, coarse.masked_fill(~stands, -math.inf)], -1)
    nothing = (score == -math.inf).all(-1, keepdim=True)  # padding
    share = score.masked_fill(nothing, 0.0).softmax(-1).masked_fill(nothing, 0.0)
    found = torch.einsum("bkrgql,bkle->bkrgqe", share[..., :length], value)
    if summaries is not None:
        rest = wide(summaries.value).flatten(2, 3)
        found = found + torch.einsum("bkrgql,bkle->bkrgqe", share[..., length:], rest)
    return found
