"""Where the attention of a model goes when it reads a question: evidence for where its tokens lie.

Fast attention (FlashAttention, SDPA) never stores its weights. They are computed here for one layer, from its own
queries and keys, for the tokens of the question only. The model stops at that layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from texturevlm.ask.messages import conversation_about
from texturevlm.placement import Picture, Placement, TokenConfig, place_together
from texturevlm.placement.placement import BY_EVIDENCE
from texturevlm.types import Allocation, Texture
from texturevlm.vlm import PromptImage, evaluating
from texturevlm.vlm.growing import read_until
from texturevlm.vlm.loops import query_and_key, text_rotary

LONGEST_MAP = 256  # cells along the longer side of what `pointed_at` paints


def question_attention(
    adapter: Any, question: str, textures: Sequence[Texture], allocations: Sequence[Allocation]
) -> list[Tensor]:
    """How much the question attends to each token of each image: the mean over its tokens, in the middle layer's heads.

    textures, allocations: one image each
    returns                (K,) per image, in the slots of the allocation, zero in unused ones; all together sum to 1
    """
    language = adapter.language_of(adapter.model)
    prompt = conversation_about(len(textures), question, adapter.marks)
    inputs = adapter.prepare(prompt, list(textures), list(allocations))
    positions = adapter.positions(inputs)
    ids = inputs["input_ids"][0]
    visual = ids == adapter.model.config.image_token_id
    asking = slice(int(visual.nonzero()[-1]) + 1, len(ids))
    found: list[Tensor] = []
    normed = adapter.normed_heads

    def look(attention: Any, hidden: Tensor) -> None:
        found.append(_weights(attention, hidden, text_rotary(language, hidden, positions), asking, normed))

    with torch.no_grad():
        read_until(language.layers[len(language.layers) // 2], look, lambda: adapter.model(**inputs, use_cache=False))
    return _by_slot(adapter, found[0][visual], textures, allocations)


def pointed_at(attention: Sequence[Tensor], allocations: Sequence[Allocation]) -> list[Tensor]:
    """Maps (1, h, w) of where to look again, one per image; all together sum to 1.

    Sharp attention is used as it is. The flatter it is, the more each token counts by its part of the entropy, so that
    all candidates get a second look.
    """
    together = torch.cat(list(attention)).double()
    together = together / together.sum().clamp(min=1e-30)
    parts = torch.special.entr(together)
    entropy, even = parts.sum(), math.log(max(2, int((together > 0).sum())))
    undecided = (entropy / even).clamp(0, 1)
    worth = (1 - undecided) * together + undecided * parts / entropy.clamp(min=1e-30)
    split = worth.split([len(own) for own in attention])
    return [_painted(own, allocation) for own, allocation in zip(split, allocations)]


def _weights(attention: Any, hidden: Tensor, rotary: tuple[Tensor, Tensor], asking: slice, normed: bool) -> Tensor:
    """(L,): the attention of some tokens to all, by the mean over them and over the heads."""
    query, key = (heads[0].float() for heads in query_and_key(attention, hidden, *rotary, normed))
    key = key.repeat_interleave(query.shape[0] // key.shape[0], 0)
    scores: Tensor = query[:, asking] @ key.mT * attention.scaling
    later = torch.ones_like(scores[0], dtype=torch.bool).triu(asking.start + 1)
    return scores.masked_fill(later, -math.inf).softmax(-1).mean((0, 1))


def _by_slot(
    adapter: Any, weights: Tensor, textures: Sequence[Texture], allocations: Sequence[Allocation]
) -> list[Tensor]:
    found, taken = [], 0
    for texture, allocation in zip(textures, allocations):
        ((view,),) = adapter.groups(PromptImage(texture, allocation))
        own = weights[taken : taken + len(view)]
        found.append(weights.new_zeros(allocation.budget).index_put((view.slot.to(weights.device),), own))
        taken += adapter.length(len(view))
    total = torch.stack([own.sum() for own in found]).sum().clamp(min=1e-30)
    return [own / total for own in found]


def _painted(worth: Tensor, allocation: Allocation) -> Tensor:
    """(1, h, w): the value of each token spread over its footprint."""
    height, width = allocation.size
    cell = max(1.0, max(height, width) / LONGEST_MAP)
    rows, columns = math.ceil(height / cell), math.ceil(width / cell)
    painted = torch.zeros(rows, columns, dtype=torch.float64)
    boxes, worth = (allocation.boxes[0].double() / cell).cpu(), worth.cpu()
    for slot in allocation.valid[0].nonzero()[:, 0].tolist():
        x0, y0, x1, y1 = boxes[slot].tolist()
        left, top = min(max(round(x0), 0), columns - 1), min(max(round(y0), 0), rows - 1)
        part = painted[top : max(round(y1), top + 1), left : max(round(x1), left + 1)]
        part += worth[slot] / part.numel()
    return painted.float()[None].to(allocation.centre.device)


COARSE_VIEW = 64  # tokens of the view that relevance "model" is made from
FIRST_LOOK = 0.25  # share of the budget for the overview of several looks
FINEST = 1.001  # pixels per sample: an overview that is nowhere coarser needs no second look


def place_by_model(adapter: Any, pictures: Sequence[Picture], question: str, how: TokenConfig) -> list[Placement]:
    """Tokens where the model's attention over COARSE_VIEW tokens goes; these are not kept."""
    seen = overview(pictures, max(len(pictures), COARSE_VIEW), how)
    pointed = attended(adapter, question, seen)
    return place_together(pictures, question, replace(how, relevance=BY_EVIDENCE), evidence=pointed)


def place_in_two_looks(adapter: Any, pictures: Sequence[Picture], question: str, how: TokenConfig) -> list[Placement]:
    """An overview, and the rest of the budget where the model's attention to it goes."""
    first = overview(pictures, max(len(pictures), round(how.budget * FIRST_LOOK)), how)
    coarsest = max(float(2 ** seen.upright.level[seen.upright.valid].max()) for seen in first)
    if coarsest <= FINEST or how.budget - sum(seen.tokens for seen in first) < len(pictures):
        return first
    pointed = attended(adapter, question, first)
    more = place_together(pictures, question, replace(how, relevance=BY_EVIDENCE), evidence=pointed, after=first)
    return [closer.after(seen) for seen, closer in zip(first, more)] or first


def overview(pictures: Sequence[Picture], tokens: int, how: TokenConfig) -> list[Placement]:
    """All pictures at one scale each, in so many tokens."""
    return place_together(pictures, "", replace(how, budget=tokens, allocator="fit", relevance="none", options={}))


def attended(adapter: Any, question: str, seen: Sequence[Placement]) -> list[Tensor]:
    """Maps (1, h, w) of where the model looks in an overview; all together sum to 1.

    adapter: of a hooked model, with its processor
    """
    allocations = [placement.allocation for placement in seen]
    with adapter.lock, evaluating(adapter.model):
        textures = [placement.picture.texture for placement in seen]
        attention = question_attention(adapter, question, textures, allocations)
    return pointed_at(attention, allocations)
