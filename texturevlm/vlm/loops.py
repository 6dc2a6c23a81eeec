"""Qwen's vision tower and language model as plain loops over their own submodules, with static shapes.

transformers' forward reads lengths back to the host (`cu_seqlens.tolist()`, boolean masks), which a CUDA graph cannot.
With a fixed budget every length is known, so these loops do the same arithmetic on tensors (B, K, ...) and read nothing
back. Tests compare their output with transformers' own forward, which serves training and unusual inputs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

VisionStep = Callable[[Any, Tensor, Tensor, Tensor, Tensor | None], Tensor]
TextStep = Callable[[Any, Tensor, Tensor, Tensor, Tensor | None, bool], tuple[Tensor, Tensor, Tensor]]


def vision_step(block: Any, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
    """One block of a Qwen vision tower: hidden (B, N, D), cos and sin (B, 1, N, d), mask (B, 1, 1 or N, N), added."""
    batch, count, _ = hidden.shape
    attention = block.attn
    projected = attention.qkv(block.norm1(hidden)).view(batch, count, 3, attention.num_heads, -1)
    both, value = projected.permute(2, 0, 3, 1, 4).split([2, 1])
    query, key = rotated(both.float(), cos, sin).to(both.dtype)  # together: half the kernels
    value = value[0]
    found = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=attention.scaling)
    hidden = hidden + attention.proj(found.transpose(1, 2).reshape(batch, count, -1))
    mixed: Tensor = block.mlp(block.norm2(hidden))
    return hidden + mixed


def text_step(
    layer: Any, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, normed: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer of a Qwen language model: hidden (B, L, D) → hidden, and its keys and values (B, heads, L, d).

    normed: `normed_heads` of the adapter
    """
    batch, length, _ = hidden.shape
    attention = layer.self_attn
    given = layer.input_layernorm(hidden)
    query, key = query_and_key(attention, given, cos, sin, normed)
    value = attention.v_proj(given).view(batch, length, -1, attention.head_dim).transpose(1, 2)
    found = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, scale=attention.scaling, enable_gqa=True
    )
    hidden = hidden + attention.o_proj(found.transpose(1, 2).reshape(batch, length, -1))
    return hidden + layer.mlp(layer.post_attention_layernorm(hidden)), key, value


def query_and_key(attention: Any, given: Tensor, cos: Tensor, sin: Tensor, normed: bool) -> tuple[Tensor, Tensor]:
    """Rotated queries and keys (B, heads, L, d) of one layer of a language model, for its input (B, L, D)."""
    query, key = unrotated_heads(attention, given, normed)
    return rotated(query, cos, sin), rotated(key, cos, sin)


def unrotated_heads(attention: Any, given: Tensor, normed: bool, *, fused: bool = False) -> tuple[Tensor, Tensor]:
    """The same before they are rotated. fused: normalise by `fused_norm`"""
    shape = (*given.shape[:2], -1, attention.head_dim)
    query, key = attention.q_proj(given).view(shape), attention.k_proj(given).view(shape)
    if normed and fused:
        query, key = fused_norm(attention.q_norm, query), fused_norm(attention.k_norm, key)
    elif normed:
        query, key = attention.q_norm(query), attention.k_norm(key)
    return query.transpose(1, 2), key.transpose(1, 2)


def fused_norm(norm: Any, hidden: Tensor) -> Tensor:
    """A layer's own RMSNorm as one kernel; transformers' takes seven."""
    return functional.rms_norm(hidden, norm.weight.shape, norm.weight, norm.variance_epsilon)


def rotated(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """States (…, d) turned by a rotary embedding: cos and sin of the same width."""
    first, second = states.chunk(2, -1)
    return states * cos + torch.cat([-second, first], -1) * sin


def tower_loop(
    adapter: Any,
    rows: Tensor,
    patch: Tensor,
    extent: Tensor,
    *,
    used: Tensor | None = None,
    segments: Tensor | None = None,
    windows: Tensor | None = None,
    causal: bool = False,
    step: VisionStep = vision_step,
) -> tuple[Tensor, ...]:
    """The vision tower on B images of K tokens, M² patches each (N = K · M²).

    adapter:       a QwenAdapter, bound
    rows:          (B, N, 3 · T · p · p), normalised pixels
    patch, extent: (B, N, 2), positions, and the grid that they count on
    used:          (B, N), which patches are attended to; None: all
    segments:      (B, N), patches of one segment attend to one another; None: all do
    causal:        patches attend to segments of a lower number, too
    windows:       (B, N, 2), the window of each patch, for a tower whose layers attend within windows
    returns        the tokens (B, K, D), then those for DeepStack
    """
    batch, count, _ = rows.shape
    tower = adapter.tower
    weight = tower.patch_embed.proj.weight
    hidden = functional.linear(rows.to(weight.dtype), weight.flatten(1), tower.patch_embed.proj.bias)
    learned = adapter.learned_positions(patch.flatten(0, 1), extent.flatten(0, 1))
    if learned is not None:
        hidden = hidden + learned.view_as(hidden).to(hidden.dtype)
    cos, sin = (part.view(batch, 1, count, -1) for part in tower_rotary(tower, hidden, patch.flatten(0, 1)))
    everywhere = None if used is None else used[:, None, None, :]
    if segments is not None:
        everywhere = _same_group(segments[..., None], used, causal=causal)
    inside = everywhere
    if windows is not None:
        within = windows if segments is None else torch.cat([windows, segments[..., None].to(windows)], -1)
        inside = _same_group(within, used)
    everywhere, inside = (None if mask is None else _added(mask, hidden.dtype) for mask in (everywhere, inside))
    whole, mergers = adapter.whole_blocks, adapter.deepstack_mergers
    further = []
    for index, block in enumerate(tower.blocks):
        hidden = step(block, hidden, cos, sin, everywhere if index in whole else inside)
        if index in mergers:
            further.append(mergers[index](hidden.flatten(0, 1)))
    found = [tower.merger(hidden.flatten(0, 1)), *further]
    return tuple(tokens.view(batch, -1, tokens.shape[-1]) for tokens in found)


def tower_rotary(tower: Any, hidden: Tensor, patch: Tensor) -> tuple[Tensor, Tensor]:
    """The tower's own rotary embedding, float32, for patches (N, 2)."""
    module = tower.rotary_pos_emb
    if len(inspect.signature(module.forward).parameters) == 2:
        cos, sin = module(hidden, patch)
    else:  # before 5.15 it gives the angles
        angles = module(patch)
        both = torch.cat([angles, angles], -1)
        cos, sin = both.cos(), both.sin()
    return cos.float(), sin.float()


def _same_group(group: Tensor, used: Tensor | None, *, causal: bool = False) -> Tensor:
    """(B, 1, N, N): patches of one group (B, N, n) attend to each other, and each attends to itself.

    causal: also to groups of a lower number
    """
    ours, theirs = group[:, :, None], group[:, None]
    same = (ours >= theirs if causal else ours == theirs).all(-1)
    if used is not None:
        same = (same & used[:, None]) | torch.eye(group.shape[1], dtype=torch.bool, device=group.device)
    return same.unsqueeze(1)


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to scores under a mask: once for all blocks, where attention would make it for each."""
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, -torch.inf)


def prefill_loop(
    adapter: Any,
    ids: Tensor,
    position: Tensor,
    where: Tensor,
    last: Tensor,
    visual: Tensor,
    *deepstack: Tensor,
    live: Tensor | None = None,
    step: TextStep = text_step,
) -> tuple[Tensor, ...]:
    """The language model on a prompt of B samples, padded on the right, where causal attention needs no mask.

    adapter:   a QwenAdapter, bound
    ids:       (B, L)
    position:  (3, B, L), time, row and column
    where:     (B, K), positions of the visual tokens in the prompt
    last:      (B,), position of the last id before the padding
    visual:    (B, K, D), output of the vision tower; deepstack likewise
    live:      (B, L), which ids are attended to; None: all
    returns    logits of the next token (B, V), then keys and values of each layer, (B, heads, L, d)
    """
    language = adapter.language_of(adapter.model)
    hidden = language.embed_tokens(ids)
    spread = where[..., None].expand(-1, -1, hidden.shape[-1])
    hidden = hidden.scatter(1, spread, visual.to(hidden.dtype))
    cos, sin = text_rotary(language, hidden, position)
    mask = None
    if live is not None:
        length = ids.shape[1]
        before = torch.ones(length, length, dtype=torch.bool, device=ids.device).tril()
        itself = torch.eye(length, dtype=torch.bool, device=ids.device)
        mask = ((before & live[:, None]) | itself).unsqueeze(1)
    caches: list[Tensor] = []
    normed = adapter.normed_heads
    for index, layer in enumerate(language.layers):
        hidden, key, value = step(layer, hidden, cos, sin, mask, normed)
        caches += [key, value]
        if index < len(deepstack):
            hidden = hidden.scatter_add(1, spread, deepstack[index].to(hidden.dtype))
    end = hidden.gather(1, last[:, None, None].expand(-1, 1, hidden.shape[-1]))
    return adapter.model.lm_head(language.norm(end))[:, 0], *caches


def text_rotary(language: Any, hidden: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
    """The language model's own rotary embedding, (B, 1, L, d)."""
    found = language.rotary_emb(hidden, position)
    if found[0].dim() == 4:  # Qwen2.5-VL before 5.15 leaves the three axes apart
        sections: Sequence[int] = list(language.config.rope_parameters["mrope_section"]) * 2
        found = [
            torch.cat([part[axis % 3] for axis, part in enumerate(angles.split(sections, -1))], -1) for angles in found
        ]
    cos, sin = found
    return cos.unsqueeze(1), sin.unsqueeze(1)
