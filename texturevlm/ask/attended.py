"""Relevance by the model that is asked: where its attention goes when it reads the question over a coarse view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from texturevlm.ask.attention import pointed_at, question_attention
from texturevlm.ask.choose import Chosen, spend
from texturevlm.ask.evaluating import evaluating
from texturevlm.ask.prepared import PreparedImage
from texturevlm.pipeline import MIN_CHANCE, Allocator
from texturevlm.relevance import AttentionScorer, Relevance

COARSE_VIEW = 64  # tokens of the view that relevance "model" is made from


def choose_by_model(
    adapter: Any, images: Sequence[PreparedImage], question: str, *, budget: int, allocator: str | Allocator
) -> list[Chosen]:
    """The tokens of each image, where the model's attention over COARSE_VIEW tokens goes; they are not kept."""
    seen = overview(images, max(len(images), COARSE_VIEW))
    maps, chances = attended(adapter, images, question, seen, budget=budget)
    return spend(images, maps, chances, budget, allocator)


def overview(images: Sequence[PreparedImage], tokens: int) -> list[Chosen]:
    """All images at one scale each, in so many tokens."""
    maps = [image.relevance("", budget=tokens / len(images), relevance="none") for image in images]
    return spend(images, maps, [1.0] * len(maps), tokens, "fit")


def attended(
    adapter: Any, images: Sequence[PreparedImage], question: str, seen: Sequence[Chosen], *, budget: int
) -> tuple[list[Relevance], list[float]]:
    """Relevance by the model's attention to an overview, and the chance that each image is asked about.

    adapter: of a hooked model, with its processor
    budget:  that will be spent by this relevance
    """
    allocations = [one.allocation for one in seen]
    with adapter.lock, evaluating(adapter.model):
        attention = question_attention(adapter, question, [image.texture for image in images], allocations)
    pointed = pointed_at(attention, allocations)
    own = budget / len(images)
    scorers = [AttentionScorer(one) for one in pointed]
    maps = [image.relevance(question, budget=own, relevance=one) for image, one in zip(images, scorers)]
    return maps, [max(MIN_CHANCE, float(one.sum())) for one in pointed]
