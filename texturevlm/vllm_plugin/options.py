"""How the images of a request become tokens: what its `mm_processor_kwargs` say, else what the checkpoint says."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from texturevlm.allocate import ALLOCATORS
from texturevlm.ask.config import FILE, SAVED, for_answers, read_settings
from texturevlm.channels import Checkpoint
from texturevlm.check import check_choice, check_count
from texturevlm.defaults import ALLOCATOR, BUDGET, RELEVANCE, TURN
from texturevlm.frame import check_turn
from texturevlm.relevance import client_scorers

# vLLM counts rotary positions of a tower up to 8,192, and two of them stand for a token of a row.
LIMIT = 4096
MOST = "texture_budget"  # of the model's config: the most tokens per image, set by --hf-overrides
NAMES = ("question", *SAVED)  # options of a request that are not the model's own


def settings_of(config: Any) -> dict[str, Any]:
    """Budget, allocator, relevance and turn of a request that names none: those of the checkpoint's texturevlm.json.

    config: of the model; transformers keeps in it the name by which it was loaded
    """
    usual = {"budget": BUDGET, "allocator": ALLOCATOR, "relevance": RELEVANCE, "turn": TURN}
    return {**usual, **_saved_settings(getattr(config, "name_or_path", ""))}


@lru_cache(maxsize=8)
def _saved_settings(model: str) -> dict[str, Any]:
    if not model:
        return {}
    settings, _ = read_settings(Checkpoint.locate("texturevlm", model, files=("config.json", FILE)))
    return for_answers(settings)


def most_tokens(config: Any) -> int:
    """The most tokens of an image, which is also the budget of a request that names none."""
    most = getattr(config, MOST, None)
    return check_count("texturevlm", MOST, settings_of(config)["budget"] if most is None else most, 1, LIMIT)


def chosen_options(given: Mapping[str, Any], config: Any) -> dict[str, Any]:
    """The question of a request and the options of a TextureProcessor, checked.

    given:  as the request names them
    config: of the model, whose own settings stand for what is not named
    """
    most = most_tokens(config)
    question, usual = given.get("question", ""), {**settings_of(config), "budget": most}
    if not isinstance(question, str):
        raise TypeError(f"texturevlm: question must be a text, got {type(question).__name__}")
    known = {"allocator": ALLOCATORS.clients, "relevance": client_scorers()}
    for name, names in known.items():
        if name in given:
            check_choice("texturevlm", name, given[name], names)
    named = {name: given[name] for name in SAVED if name in given}
    check_count("texturevlm", "budget", named.get("budget", most), 1, most)
    check_turn("texturevlm", named.get("turn", TURN))
    return {"question": question, **usual, **named}


def other_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """What is left for the model's own processor, which would load itself anew for every question."""
    return {name: value for name, value in given.items() if name not in NAMES}
