"""How a model attends, and whether it can."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from texturevlm.check import check_choice, check_count
from texturevlm.vlm import FAMILIES
from texturevlm.vlm.families.qwen import QwenAdapter
from texturevlm_lab.attention.hierarchical import ATTENTION_KINDS, check_fine
from texturevlm_lab.attention.key_value_texture import check_block

DENSE = "dense"
LANGUAGE, TOWER = "attention", "tower_attention"  # options of `load_vlm`: of the language model, of the vision tower


@dataclass(frozen=True)
class AttentionOptions:
    """How a language model or a tower attends. All but the last are as in `hierarchical_attention`.

    share: layers that share one choice of blocks: the first of them chooses
    """

    block: int = 64
    fine: float = 0.1
    group: int = 64
    neighbours: int = 1
    kind: str = ATTENTION_KINDS[0]
    rank: int = 4
    share: int = 1

    @staticmethod
    def of(function: str, given: Any, argument: str = LANGUAGE) -> AttentionOptions | None:
        """From what `load_vlm` takes: None or "dense", a kind of `hierarchical_attention`, or a dict of options."""
        if given is None or given == DENSE:
            return None
        if not isinstance(given, Mapping):
            return AttentionOptions(kind=check_choice(function, argument, given, (DENSE, *ATTENTION_KINDS)))
        for name in given:
            check_choice(function, f"option of {argument}", name, [one.name for one in fields(AttentionOptions)])
        return AttentionOptions(**given).check(function)

    def check(self, function: str) -> AttentionOptions:
        check_block(function, self.block)
        for name, least in (("group", 1), ("neighbours", 0), ("share", 1)):
            check_count(function, name, getattr(self, name), least)
        check_count(function, "rank", self.rank, 1, self.block if self.kind == "latent" else None)
        check_fine(function, self.fine)
        check_choice(function, "kind", self.kind, ATTENTION_KINDS)
        return self


def check_attention(function: str, config: Any) -> None:
    """Raise if the language model of a model with this config cannot attend hierarchically."""
    if "sliding_attention" in (getattr(config.get_text_config(), "layer_types", None) or ()):
        known = ", ".join(name for name in FAMILIES if name != config.model_type)
        raise ValueError(
            f"{function}: attention must be dense for {config.model_type}, whose layers attend in windows, "
            f"got hierarchical; it works for {known}"
        )


def check_tower_attention(function: str, config: Any) -> None:
    """Raise if the vision tower of a model with this config cannot attend hierarchically."""
    known = [name for name, adapter in FAMILIES.items() if issubclass(adapter, QwenAdapter)]
    if config.model_type not in known:
        raise ValueError(
            f"{function}: {TOWER} must be dense for {config.model_type}, whose tower reads a few hundred patches at a "
            f"time; it works for {', '.join(known)}"
        )
