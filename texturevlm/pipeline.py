"""From an image and a question to an allocation of tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from texturevlm.allocate import ALLOCATORS
from texturevlm.check import check_choice, check_count
from texturevlm.defaults import ALLOCATOR, BUDGET, PATCH, RELEVANCE
from texturevlm.relevance import Balance, Prepared, Relevance, Scorer, find_relevance
from texturevlm.relevance.prepared import BALANCE
from texturevlm.scout import Question
from texturevlm.types import Allocation, Texture

Allocator = Callable[..., Allocation]


def choose_tokens(
    texture: Texture,
    question: str | Question = "",
    *,
    budget: int = BUDGET,
    patch: int = PATCH,
    allocator: str | Allocator = ALLOCATOR,
    relevance: str | Scorer | Prepared | Relevance = RELEVANCE,
    balance: Balance = BALANCE,
    **options: Any,
) -> Allocation:
    """Decide where a budget of tokens goes.

    texture:   one image, or a batch of one size (one question for all of it)
    question:  any text; "" for none; or what `scout.encode` made of one, for relevance "scout"
    allocator: a name of `texturevlm.allocate.ALLOCATORS`, or a function like those
    relevance: auto or a name of `texturevlm.relevance.SCORERS`; a scorer, such as AttentionScorer(map); what `prepare`
               made of the texture, so that several questions share the work; or a Relevance, used as it is
    options:   the allocator's own
    returns    an Allocation of `budget` slots
    """
    check_count("choose_tokens", "budget", budget, 1)
    check_count("choose_tokens", "patch", patch, 1)
    if isinstance(allocator, str):
        check_choice("choose_tokens", "allocator", allocator, tuple(ALLOCATORS))
        allocator = ALLOCATORS[allocator]
    if not isinstance(relevance, Relevance):
        relevance = find_relevance(texture, question, patch=patch, relevance=relevance, balance=balance)
    return allocator(texture, relevance, budget=budget, patch=patch, **options)
