"""The options that say how tokens are chosen, checked before slow work begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from texturevlm.allocate import ALLOCATORS
from texturevlm.check import check_choice, check_count
from texturevlm.defaults import BUDGET
from texturevlm.pipeline import Allocator
from texturevlm.vlm.trained import trained_as

RELEVANCES = ("auto", "words", "scout", "attention", "none")  # `choose_tokens` has more, which take more arguments
PATCHES = {  # an option of image processors → of vision configs
    "patch_size": "patch_size",
    "merge_size": "spatial_merge_size",
    "temporal_patch_size": "temporal_patch_size",
}
TOKENS = ("chosen", "weighted")


def check_options(
    function: str,
    budget: int | tuple[int, int] | None,
    allocator: str | Allocator,
    relevance: str | Sequence[str],
    tokens: str = TOKENS[0],
) -> None:
    """Check options before a model is loaded or changed. A budget of None is left to the checkpoint."""
    budget = BUDGET if budget is None else budget
    budgets = budget if isinstance(budget, (tuple, list)) else (budget, budget)
    for one in budgets:
        check_count(function, "budget", one, 1)
    if len(budgets) != 2 or budgets[0] > budgets[1]:
        raise ValueError(f"{function}: budget must be a number or a pair (low, high), got {budget!r}")
    if isinstance(allocator, str):
        check_choice(function, "allocator", allocator, ALLOCATORS)
    elif not callable(allocator):
        raise TypeError(f"{function}: allocator must be a name or a function, got {allocator!r:.60}")
    names: Sequence[Any] = relevance if isinstance(relevance, (tuple, list)) else [relevance]
    if not names:
        raise ValueError(f"{function}: relevance must be a name or several names, got none")
    for name in names:
        check_choice(function, "relevance", name, RELEVANCES)
    check_choice(function, "tokens", tokens, TOKENS)


def check_looks(looks: int, relevance: str, tokens: str = TOKENS[0]) -> None:
    """Whether this relevance and these tokens allow so many looks."""
    if looks not in (1, 2):
        raise ValueError(f"ask: looks must be 1 or 2, got {looks!r}")
    check_choice("ask", "relevance", relevance, RELEVANCES)
    if looks == 2:
        check_choice("ask", "tokens with looks=2", tokens, TOKENS[:1])
        check_choice("ask", "relevance with looks=2", relevance, ("auto", "attention"))
    elif relevance == "attention":
        raise ValueError("ask: relevance 'attention' is the model's own, which takes looks=2, got looks=1")


def default_budget(config: Any) -> int:
    """What a checkpoint asks for, or the package's default."""
    return trained_as(config).budget or BUDGET


def check_context(function: str, budget: int | tuple[int, int] | None, config: Any) -> None:
    """Whether the context of a model holds the budget."""
    budget = default_budget(config) if budget is None else budget
    most = budget[1] if isinstance(budget, (tuple, list)) else budget
    longest = getattr(config.get_text_config(), "max_position_embeddings", None)
    if longest is not None and most >= longest:
        raise ValueError(f"{function}: budget must leave room in the model's context of {longest} tokens, got {most}")


def check_belongs(function: str, processor: Any, config: Any, adapter: Any) -> None:
    """Whether a processor is that of a model: both know the same image token and cut the same patches.

    adapter: of both
    """
    known, token = len(processor.tokenizer), config.image_token_id
    if known <= max(adapter.visual_ids):
        raise ValueError(
            f"{function}: processor must belong to the model, whose image token is {token}, "
            f"got a tokenizer of {known} tokens"
        )
    pairs = {"image token": (getattr(processor, "image_token_id", None), adapter.mark_id)}
    for name, of_model in PATCHES.items():
        pairs[name] = (getattr(processor.image_processor, name, None), getattr(config.vision_config, of_model, None))
    for name, (got, wanted) in pairs.items():
        if isinstance(got, int) and isinstance(wanted, int) and got != wanted:
            raise ValueError(
                f"{function}: processor must belong to the model, whose {name} is {wanted}, "
                f"got {type(processor).__name__} with {got}"
            )
    try:
        adapter.grid_for((64, 64))
        adapter.statistics(torch.device("cpu"))
    except (AttributeError, KeyError, TypeError) as error:
        images = type(processor.image_processor).__name__
        raise ValueError(
            f"{function}: processor must belong to the model, a {config.model_type}, got one with {images}"
        ) from error
