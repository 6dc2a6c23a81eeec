"""What a request may say about its tokens, in `mm_processor_kwargs`: question, budget, allocator, relevance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from texturevlm.allocate import ALLOCATORS
from texturevlm.check import check_choice, check_count
from texturevlm.defaults import ALLOCATOR, BUDGET, RELEVANCE
from texturevlm.relevance import client_scorers

# vLLM counts rotary positions of a tower up to 8,192, and two of them stand for a token of a row.
LIMIT = 4096
MOST = "texture_budget"  # of the model's config: the most tokens per image, set by --hf-overrides
NAMES = ("question", "budget", "allocator", "relevance")


def most_tokens(config: Any) -> int:
    """The most tokens of an image, which is also the budget of a request that names none."""
    return check_count("texturevlm", MOST, getattr(config, MOST, BUDGET), 1, LIMIT)


def chosen_options(given: Mapping[str, Any], most: int) -> dict[str, Any]:
    """Question, budget, allocator and relevance of a request, checked; defaults where it names none."""
    question = given.get("question", "")
    if not isinstance(question, str):
        raise TypeError(f"texturevlm: question must be a text, got {type(question).__name__}")
    return {
        "question": question,
        "budget": check_count("texturevlm", "budget", given.get("budget", most), 1, most),
        "allocator": check_choice("texturevlm", "allocator", given.get("allocator", ALLOCATOR), ALLOCATORS.clients),
        "relevance": check_choice("texturevlm", "relevance", given.get("relevance", RELEVANCE), client_scorers()),
    }


def other_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """What is left for the model's own processor, which would load itself anew for every question."""
    return {name: value for name, value in given.items() if name not in NAMES}
