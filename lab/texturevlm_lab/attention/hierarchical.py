"""Attention with levels of detail: coarse for every block of tokens, fine where it matters.

Visual keys and values are in blocks along the quadtree of the image. A group of queries reads all text, the blocks near
it, and the blocks that it attends to most by their means. Every other block is one summary, its mean key and value,
with + log n in the softmax. If all blocks are read there is no summary, so it is dense attention.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from texturevlm.check import check_choice, check_count, check_floating, check_shapes
from texturevlm_lab.attention.block_choice import choose_blocks
from texturevlm_lab.attention.block_layout import BlockLayout
from texturevlm_lab.attention.hierarchical_reference import attend, attend_one, latent_summaries, mean_summaries
from texturevlm_lab.attention.hierarchical_triton import attend_triton, no_triton_because
from texturevlm_lab.attention.key_value_texture import KeyValueTexture, block_means, check_block

ATTENTION_KINDS = ("hierarchical", "window", "linear", "latent")
ATTENTION_BACKENDS = ("auto", "reference", "triton")
NAME = "hierarchical_attention"


def hierarchical_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    visual: Tensor | None = None,
    layout: BlockLayout | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    block: int = 64,
    fine: float = 0.1,
    group: int = 64,
    neighbours: int = 1,
    kind: str = "hierarchical",
    rank: int = 4,
    texture: KeyValueTexture | None = None,
    chosen: Tensor | None = None,
    return_chosen: bool = False,
    backend: str = "auto",
) -> Any:
    """Attention of queries (B, H, Q, D) to keys (B, K, L, D) and values (B, K, L, E): (B, H, Q, E).

    As `scaled_dot_product_attention`; H is a multiple of K. Queries are the last Q of the L tokens.

    mask:       (B or 1, 1, Q or 1, L): True where a query sees a key, or numbers that are added to the scores; a block
                with numbers other than 0 is read token by token
    visual:     (B, n) or (n,), the visual keys in the order of `quadtree_order`, -1 for none; the others are text,
                which is always read. By default all are visual, in the order in which they stand
    layout:     in the place of visual, is_causal, block, group and neighbours: made once for all layers
    is_causal:  a query sees the keys up to its own. A block that it sees in part is read token by token
    scale:      of the scores, 1 / √D by default
    block:      keys of a block, a power of two
    fine:       share of the blocks that a group of queries reads, 0 to 1, rounded up; 1 is dense attention
    group:      queries that share a choice of blocks, for all heads of one head of the keys
    neighbours: blocks on either side of a query's own, along the order, that it always reads
    kind:       hierarchical; window: text and neighbours alone; linear: text and summaries alone; latent: as
                hierarchical, but what is not read keeps its `rank` main directions per block, not its mean alone
    texture:    of the visual keys and values, if they are known; of `layout.table`
    chosen:     (B, K, G, C), the blocks to read, if another layer has chosen them
    return_chosen: return (output, chosen)
    backend:    reference; triton: our kernel, on a GPU; auto: the kernel where it can run
    Differentiable, but for the choice of blocks and the main directions of `latent`, which count as constants. On a GPU
    the backward pass goes through the reference.
    """
    _check(q, k, v, block=block, fine=fine, kind=kind, rank=rank if kind == "latent" else None)
    check_choice(NAME, "backend", backend, ATTENTION_BACKENDS)
    scale = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    live = None
    if layout is None:
        if mask is not None and mask.dtype == torch.bool and mask.dim() == 4 and mask.shape[2] == 1:
            live = _bias(mask, q, k)[:, 0].expand(len(q), -1) == 0  # of keys: they leave their blocks
        layout = BlockLayout.of(
            q.shape[0],
            q.shape[2],
            k.shape[2],
            visual=visual,
            live=live,
            causal=is_causal,
            block=block,
            group=group,
            neighbours=None if kind == "linear" else neighbours,
            device=q.device,
        )
    _check_given(layout, texture, chosen, q, k)
    bias = None if mask is None or live is not None else _bias(mask, q, k)
    if bias is not None:
        layout = layout.masked(bias)
    out, chosen = attend_laid_out(
        q,
        k,
        v,
        layout,
        scale=scale,
        fine=fine,
        kind=kind,
        rank=rank,
        texture=texture,
        chosen=chosen,
        bias=bias,
        backend=backend,
    )
    return (out, chosen) if return_chosen else out


def attend_laid_out(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: BlockLayout,
    *,
    scale: float,
    fine: float,
    kind: str,
    rank: int = 4,
    texture: KeyValueTexture | None = None,
    chosen: Tensor | None = None,
    bias: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """The output, and the blocks that were chosen: `hierarchical_attention` for arguments that were checked before.

    bias: (B or 1, Q, L), numbers that are added to the scores; the layout is masked by it
    """
    share = fine if kind in ("hierarchical", "latent") else 0.0
    level = None if texture is None else texture.finest
    if backend != "reference":
        reason = no_triton_because(q, k, v, layout, kind, bias is not None)
        if reason is None:
            return attend_triton(
                q, k, v, layout, fine=share, scale=scale, summaries=kind != "window", level=level, chosen=chosen
            )
        if backend == "triton":
            raise ValueError(f"{NAME}: backend 'triton' cannot run here: {reason}")
    level = block_means(k, v, layout.table, layout.block) if level is None else level
    if chosen is None:
        chosen = choose_blocks(q.detach(), level, layout, fine=share, scale=scale)
    summaries = None
    if kind == "latent":
        summaries = latent_summaries(k, v, layout, rank)
    elif kind != "window":
        summaries = mean_summaries(level)
    if q.shape[2] == 1 and bias is None:
        return attend_one(q, k, v, layout, chosen, summaries, scale=scale), chosen
    return attend(q, k, v, layout, chosen, summaries, scale=scale, bias=bias).to(q.dtype), chosen


def check_fine(function: str, fine: float) -> float:
    """A number from 0 to 1."""
    if isinstance(fine, bool) or not isinstance(fine, (int, float)):
        raise TypeError(f"{function}: fine must be a number, got {fine!r}")
    if not 0 <= fine <= 1:
        raise ValueError(f"{function}: fine must be between 0 and 1, got {fine!r}")
    return fine


def _check(q: Tensor, k: Tensor, v: Tensor, *, block: int, fine: float, kind: str, rank: int | None) -> None:
    function = NAME
    check_shapes(function, q=(q, "B H Q D"), k=(k, "B K L D"), v=(v, "B K L E"))
    check_floating(function, q=q, k=k, v=v)
    if q.shape[1] % k.shape[1]:
        raise ValueError(f"{function}: q must have a multiple of the {k.shape[1]} heads of k, got {q.shape[1]}")
    if q.shape[2] > k.shape[2]:
        raise ValueError(f"{function}: q must be the last of the {k.shape[2]} tokens of k, got {q.shape[2]}")
    check_fine(function, fine)
    check_choice(function, "kind", kind, ATTENTION_KINDS)
    check_block(function, block)
    if rank is not None:
        check_count(function, "rank", rank, 1, block)


def _check_given(
    layout: BlockLayout, texture: KeyValueTexture | None, chosen: Tensor | None, q: Tensor, k: Tensor
) -> None:
    """A kernel would read invalid memory for what was made for other tensors."""
    groups, group = layout.queries.shape[1:]
    if layout.length != k.shape[2] or len(layout.keys) != len(q) or groups != -(-q.shape[2] // group):
        got = f"{layout.length} keys, {len(layout.keys)} samples and {groups} groups of {group} queries"
        wanted = f"{k.shape[2]} keys, {len(q)} samples and {q.shape[2]} queries"
        raise ValueError(f"{NAME}: layout must be for {wanted}, got one for {got}")
    if layout.keys.device != q.device:
        raise ValueError(f"{NAME}: layout must be on {q.device} like q, got {layout.keys.device}")
    batch, heads, _, width = k.shape
    if chosen is not None:
        check_shapes(NAME, q=(q, "B H Q D"), chosen=(chosen, f"{batch} {heads} {groups} C"))
    if texture is not None:
        wanted = f"{batch} {heads} {layout.visual} {width}"
        check_shapes(NAME, q=(q, "B H Q D"), texture=(texture.finest.key, wanted))


def _bias(mask: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """(B or 1, Q, L): what a mask adds to the scores."""
    batch, queries, keys = q.shape[0], q.shape[2], k.shape[2]
    wanted = f"{NAME}: mask must be ({batch} or 1, 1, {queries} or 1, {keys})"
    if mask.dtype != torch.bool:
        check_floating(NAME, mask=mask)  # 0 and 1 as whole numbers would be added to the scores
    if mask.dim() != 4 or mask.shape[0] not in (1, batch) or mask.shape[1] != 1 or mask.shape[2] not in (1, queries):
        raise ValueError(f"{wanted}, got {tuple(mask.shape)}")
    if mask.shape[3] != keys:
        raise ValueError(f"{wanted}, got {tuple(mask.shape)}")
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, -math.inf)
    return mask[:, 0].expand(-1, queries, -1)
