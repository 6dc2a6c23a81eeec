"""The options that say how tokens are chosen, checked before slow work begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from texturevlm.allocate import ALLOCATORS
from texturevlm.check import check_choice, check_count
from texturevlm.defaults import FINE_PAGES, MOST_FINE_PAGES, TURN
from texturevlm.pipeline import Allocator
from texturevlm.relevance.named import check_relevance
from texturevlm.turned import check_turn
from texturevlm.vlm import FAMILIES, ModelHook
from texturevlm.vlm.hook import check_hooks, hooks_of

# Beside these, embedding:MODEL,PCA.
RELEVANCES = ("auto", "words", "scout", "prior", "channels", "attention", "model", "none")
PATCHES = {  # an option of image processors → of vision configs
    "patch_size": "patch_size",
    "merge_size": "spatial_merge_size",
    "temporal_patch_size": "temporal_patch_size",
}
TOKENS = ("chosen", "weighted")  # and what a hook makes of them
LOOKS = (1, 2, "auto")


def for_hooks(tokens: str) -> Mapping[str, str]:
    """The option `tokens` as an option of hooks, if it names no built-in kind of tokens."""
    return {} if tokens in TOKENS else {"tokens": tokens}


def check_options(
    function: str,
    budget: int | tuple[int, int],
    allocator: str | Allocator,
    relevance: str | Sequence[str],
    tokens: str = TOKENS[0],
    turn: float | str = TURN,
) -> None:
    """Check options before a model is loaded or changed."""
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
        check_relevance(function, name, RELEVANCES)
    hooks_of(function, for_hooks(tokens))
    check_turn(function, turn)


@dataclass(frozen=True)
class Choosing:
    """How the tokens of a question are chosen; the fields are options of `ask`, but for tokens.

    budget: tokens that are chosen
    hooks:  what changes the model, as it was loaded or for this question
    levels, coordinates: as for an adapter's `prepare`; None: those of the checkpoint
    fine_pages: of a document
    """

    budget: int
    allocator: str | Allocator
    relevance: str
    looks: int | str
    tokens: str
    hooks: tuple[ModelHook, ...] = ()
    levels: str | None = None
    coordinates: str | None = None
    turn: float | str = TURN
    fine_pages: int = FINE_PAGES

    @property
    def of_tokens(self) -> Choosing:
        """Without what decides only how the chosen tokens are read."""
        return replace(self, levels=None, coordinates=None)

    def check(self, config: Any) -> Choosing:
        """Raise if a model with this config cannot be asked so."""
        budget = check_count("ask", "budget", self.budget, 1)
        check_options("ask", budget, self.allocator, self.relevance, self.tokens, self.turn)
        check_relevance("ask", self.relevance, RELEVANCES)  # one: several are for training
        check_looks("ask", self.looks, self.relevance, self.tokens)
        check_family_looks("ask", self.looks, config, self.relevance)
        if self.looks == "auto" and (hook := next((one for one in self.hooks if not one.grows), None)):
            raise ValueError(f"ask: looks must be 1 or 2 with {hook.name}, got 'auto'")
        check_context("ask", self.budget, config)
        check_hooks("ask", config, self.hooks)
        check_count("ask", "fine_pages", self.fine_pages, 1, MOST_FINE_PAGES)
        return self


def usual_relevance(looks: int | str, relevance: str) -> str:
    """By what tokens are chosen unless the caller says so. relevance: the model's own, which two looks may not take"""
    return "auto" if looks == 2 and relevance != "attention" else relevance


def check_looks(function: str, looks: int | str, relevance: str, tokens: str = TOKENS[0]) -> None:
    """Whether this relevance and these tokens allow so many looks."""
    if looks not in LOOKS or isinstance(looks, bool):
        raise ValueError(f"{function}: looks must be 1, 2 or 'auto', got {looks!r}")
    check_relevance(function, relevance, RELEVANCES)
    if looks == 2:
        check_choice(function, "tokens with looks=2", tokens, TOKENS[:1])
        check_choice(function, "relevance with looks=2", relevance, ("auto", "attention"))
    elif looks == "auto":
        check_choice(function, "tokens with looks='auto'", tokens, TOKENS[:1])
    if looks != 2 and relevance == "attention":
        raise ValueError(
            f"{function}: relevance 'attention' is the model's own, which takes looks=2, got looks={looks}"
        )
    if relevance == "model":
        check_choice(function, "tokens with relevance='model'", tokens, TOKENS[:1])
        if looks != 1:
            raise ValueError(f"{function}: relevance 'model' takes looks=1, got looks={looks!r}")


def check_family_looks(function: str, looks: int | str, config: Any, relevance: str = "auto") -> None:
    """Whether a model with this config can be asked in so many looks, and its attention be read for this relevance."""
    family = config.model_type
    if looks == "auto" and not FAMILIES[family][0].grows:
        raise ValueError(f"{function}: looks must be 1 or 2 for {family}, got 'auto' (see docs/models.md)")
    if FAMILIES[family][0].two_looks:
        return
    if looks == 2:
        raise ValueError(f"{function}: looks must be 1 for {family}, got 2 (see docs/models.md)")
    if relevance == "model":
        raise ValueError(f"{function}: relevance must not be 'model' for {family}, whose attention cannot be read here")


def check_context(function: str, budget: int | tuple[int, int], config: Any) -> None:
    """Whether the context of a model holds the budget."""
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
    # Gemma 3 calls either of them its image token, depending on the version of transformers.
    pairs = {"image token": (getattr(processor, "image_token_id", None), [adapter.mark_id, token])}
    for name, of_model in PATCHES.items():
        pairs[name] = (getattr(processor.image_processor, name, None), [getattr(config.vision_config, of_model, None)])
    for name, (got, wanted) in pairs.items():
        if isinstance(got, int) and isinstance(wanted[0], int) and got not in wanted:
            raise ValueError(
                f"{function}: processor must belong to the model, whose {name} is {wanted[0]}, "
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
