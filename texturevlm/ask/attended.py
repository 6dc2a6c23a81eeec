"""Evidence from the model that is asked: where its attention goes when it reads the question over an overview."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from texturevlm.ask.attention import pointed_at, question_attention
from texturevlm.ask.evaluating import evaluating
from texturevlm.placement import Picture, Placement, TokenConfig, place_together
from texturevlm.placement.placement import BY_EVIDENCE

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
