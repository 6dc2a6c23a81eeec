"""Whether a model can be reduced by given steps, from its config alone: before any weight is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from texturevlm.vlm import FAMILIES
from texturevlm_lab.attention.implementation import IMPLEMENTATION
from texturevlm_lab.rivals import ReduceStep, check_needs, planned
from texturevlm_lab.rivals.hooks.masks import EXPLICIT
from texturevlm_lab.rivals.hooks.places import PLACES_OF


def check_reducible(function: str, config: Any, steps: Sequence[ReduceStep]) -> None:
    """Raise if a model with this config cannot be reduced so."""
    if not steps:
        return
    family, text = config.model_type, config.get_text_config()
    places = PLACES_OF.get(family)
    if places is None or "sliding_attention" in (getattr(text, "layer_types", None) or ()):
        known = ", ".join(name for name in FAMILIES if name in PLACES_OF)
        raise ValueError(
            f"{function}: reduce must be None for {family}, got {steps[0].method}; it works for {known}; "
            f"for {family} choose fewer tokens with budget"
        )
    implementation = getattr(text, "_attn_implementation", None) or EXPLICIT[0]  # None before a model is made
    tower = getattr(getattr(config, "vision_config", None), "_attn_implementation", None)
    if IMPLEMENTATION in (implementation, tower):
        option = "attention" if implementation == IMPLEMENTATION else "tower_attention"
        raise ValueError(
            f"{function}: reduce must be None for a model that was loaded with {option}, got {steps[0].method}; "
            f"load it without {option}"
        )
    if implementation not in EXPLICIT and not implementation.startswith("flash"):
        wanted = f"{', '.join(EXPLICIT)} or flash_attention_2"
        raise ValueError(
            f"{function}: attn_implementation must be {wanted} for reduce={steps[0].method!r}, got {implementation}"
        )
    check_needs(function, steps, places, family)
    planned(function, steps, text.num_hidden_layers, FAMILIES[family](config).tower_depth)
