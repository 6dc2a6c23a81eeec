"""How a model is asked: one value, resolved once from package defaults < checkpoint < what is given, and checked
once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from texturevlm.channels import Checkpoint
from texturevlm.check import check_choice, check_count, check_share
from texturevlm.defaults import BUDGET, FINE_PAGES, MOST_FINE_PAGES, TURN
from texturevlm.placement import TokenConfig
from texturevlm.relevance import check_relevance
from texturevlm.vlm import FAMILIES, ModelHook
from texturevlm.vlm.hook import budgeted, check_hooks, hooks_of

FILE = "texturevlm.json"  # beside a saved processor
SAVED = ("budget", "allocator", "relevance", "turn")  # options that a saved processor keeps
SURE = 0.8  # chance of being right from which the answer to an overview is kept
OWN_RELEVANCES = ("attention", "model")  # that ask the model itself
PATCHES = {  # an option of image processors → of vision configs
    "patch_size": "patch_size",
    "merge_size": "spatial_merge_size",
    "temporal_patch_size": "temporal_patch_size",
}
KINDS = ("chosen", "weighted")  # of tokens, and what a hook makes of them
LOOKS = (1, 2, "auto")


@dataclass(frozen=True)
class AskConfig:
    """How a model is asked. Options of `ask` are the fields of both configs; `tokens` there is `kind` here.

    tokens:     how the tokens of pictures are placed
    kind:       chosen; weighted: the model's own full grid, each token multiplied by its relevance (1 for the most
                relevant one), whatever the budget; or what a hook knows
    looks:      1; 2: an overview first, then the rest of the budget where the attention of the model went; auto: an
                overview of a quarter of the budget, and the rest only if the model is not sure of its answer
    sure:       with looks="auto": the chance of being right from which the first answer is kept
    hooks:      what changes the model while it runs (`vlm.ModelHook`)
    levels, coordinates: as for an adapter's `prepare`; None: those of the checkpoint
    fine_pages: of a document, pages that get tokens of their own, at most, 1 to 20
    """

    tokens: TokenConfig
    kind: str = KINDS[0]
    looks: int | str = LOOKS[0]
    sure: float = SURE
    hooks: tuple[ModelHook, ...] = ()
    levels: str | None = None
    coordinates: str | None = None
    fine_pages: int = FINE_PAGES

    def given(self, function: str, options: Mapping[str, Any], hooks: Sequence[ModelHook] = ()) -> AskConfig:
        """With what a caller gave: None stands for what is here already.

        options: of both configs, and those by which hooks are asked for
        """
        known = {name: value for name, value in options.items() if value is not None}
        own = {name: known.pop(name) for name in OPTIONS if name in known}
        placed = {name: known.pop(name) for name in TOKENS if name in known}
        kind = known.pop("tokens", self.kind)
        for_hooks = known if kind in KINDS else {**known, "tokens": kind}
        looks = own.get("looks", self.looks)
        if looks == 2 and "relevance" not in placed and self.tokens.relevance != "attention":
            placed["relevance"] = "auto"  # whatever the checkpoint says: the second look is the model's own
        found = hooks_of(function, for_hooks, hooks, self.hooks)
        return replace(self, tokens=replace(self.tokens, **placed), kind=kind, hooks=found, **own)

    def for_hooks(self, function: str) -> AskConfig:
        """With as many tokens placed as the hooks need, so that they keep the budget."""
        budget, hooks = budgeted(function, self.hooks, check_count(function, "budget", self.tokens.budget, 1))
        return replace(self, tokens=replace(self.tokens, budget=budget), hooks=hooks)

    def check(self, function: str, config: Any = None) -> AskConfig:
        """Raise for what cannot work, by a model with this config if there is one; the angle is brought into range."""
        if not isinstance(self.tokens.budget, tuple):
            check_count(function, "budget", self.tokens.budget, 1)
        relevance: Any = self.tokens.relevance
        check_relevance(function, relevance, OWN_RELEVANCES)
        scored = self.tokens.given(relevance="auto" if relevance in OWN_RELEVANCES else None)
        tokens = replace(scored.check(function), relevance=relevance)
        check_looks(function, self.looks, relevance, self.kind)
        check_share(function, "sure", self.sure)
        check_count(function, "fine_pages", self.fine_pages, 1, MOST_FINE_PAGES)
        if self.looks == "auto" and (hook := next((hook for hook in self.hooks if not hook.grows), None)):
            raise ValueError(f"{function}: looks must be 1 or 2 with {hook.name}, got 'auto'")
        if config is not None:
            check_family_looks(function, self.looks, config, relevance)
            check_context(function, self.tokens.budget, config)
            check_hooks(function, config, self.hooks)
        return replace(self, tokens=tokens)


TOKENS = tuple(known.name for known in fields(TokenConfig))
OPTIONS = tuple(known.name for known in fields(AskConfig) if known.name not in ("tokens", "kind", "hooks"))


def several(relevance: Any) -> list[Any]:
    """The relevances that a processor was given, of which each prompt draws one."""
    return list(relevance) if isinstance(relevance, (tuple, list)) else [relevance]


def check_drawn(function: str, budget: Any, relevance: Any) -> None:
    """Raise for a budget or a relevance of a processor, which may be several, of which each prompt draws one."""
    budgets = budget if isinstance(budget, (tuple, list)) else (budget, budget)
    for tokens in budgets:
        check_count(function, "budget", tokens, 1)
    if len(budgets) != 2 or budgets[0] > budgets[1]:
        raise ValueError(f"{function}: budget must be a number or a pair (low, high), got {budget!r:.80}")
    if not (names := several(relevance)):
        raise ValueError(f"{function}: relevance must be a name or several names, got none")
    for name in names:
        check_relevance(function, name, OWN_RELEVANCES)


def write_settings(folder: Path, processor: Any) -> None:
    """The settings of a TextureProcessor whose allocator has a name, and the config of its model."""
    table = {name: getattr(processor, name) for name in SAVED}
    table["model"] = processor.config.to_dict()
    (folder / FILE).write_text(json.dumps(table, indent=1, default=str) + "\n")


def read_settings(checkpoint: Checkpoint) -> tuple[dict[str, Any], Any]:
    """The settings and the config of the model; none and None if no TextureProcessor was saved there."""
    from transformers import AutoConfig

    path = checkpoint.file(FILE)
    if path is None:
        return {}, None
    where = f"{checkpoint.function}: {path}"
    try:
        saved = json.loads(path.read_text())
        model = saved.pop("model")
        config = AutoConfig.for_model(model.pop("model_type"), **model)
        saved.setdefault("turn", TURN)  # files of versions that turned nothing
        settings = {name: saved[name] for name in SAVED}
        if isinstance(settings["budget"], list):
            settings["budget"] = tuple(settings["budget"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{where} must be as save_pretrained wrote it, got {error!r:.80}") from error
    try:
        check_drawn(where, settings["budget"], settings["relevance"])
        TokenConfig(allocator=settings["allocator"], turn=settings["turn"]).check(where)
        check_context(where, settings["budget"], config)
    except TypeError as error:
        raise ValueError(str(error)) from error
    return settings, config


def for_answers(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings for training, made single: the usual budget within the range, the first relevance."""
    found = dict(settings)
    if isinstance(found.get("budget"), tuple):
        low, high = found["budget"]
        found["budget"] = min(max(BUDGET, low), high)
    if isinstance(found.get("relevance"), list):
        found["relevance"] = found["relevance"][0]
    return found


def check_looks(function: str, looks: int | str, relevance: str, tokens: str = KINDS[0]) -> None:
    """Whether this relevance and these tokens allow so many looks."""
    if looks not in LOOKS or isinstance(looks, bool):
        raise ValueError(f"{function}: looks must be 1, 2 or 'auto', got {looks!r}")
    check_relevance(function, relevance, OWN_RELEVANCES)
    if looks == 2:
        check_choice(function, "tokens with looks=2", tokens, KINDS[:1])
        check_choice(function, "relevance with looks=2", relevance, ("auto", "attention"))
    elif looks == "auto":
        check_choice(function, "tokens with looks='auto'", tokens, KINDS[:1])
    if looks != 2 and relevance == "attention":
        raise ValueError(
            f"{function}: relevance 'attention' is the model's own, which takes looks=2, got looks={looks}"
        )
    if relevance == "model":
        check_choice(function, "tokens with relevance='model'", tokens, KINDS[:1])
        if looks != 1:
            raise ValueError(f"{function}: relevance 'model' takes looks=1, got looks={looks!r}")


def check_family_looks(function: str, looks: int | str, config: Any, relevance: str = "auto") -> None:
    """Whether a model with this config can be asked in so many looks, and its attention be read for this relevance."""
    family = config.model_type
    if looks == "auto" and not FAMILIES[family].grows:
        raise ValueError(f"{function}: looks must be 1 or 2 for {family}, got 'auto' (see docs/models.md)")
    if FAMILIES[family].two_looks:
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
