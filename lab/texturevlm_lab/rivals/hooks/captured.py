"""Captured models whose visual tokens are reduced behind the projector.

The tower is captured for the tokens that are sampled, the prefill for those that stay; the method runs between the two
graphs. That works for methods that drop tokens by what is known there: their features, places and the question. Others
look into the tower or into the language model, or merge tokens, which then weigh more in its attention.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from texturevlm.types import Allocation, Texture
from texturevlm.vlm import CapturedPrefill
from texturevlm.vlm.captured import TowerOutput
from texturevlm_lab.rivals import METHODS, Context, Planned, ReduceStep, planned, stage_budget
from texturevlm_lab.rivals.hooks.sequence import Sequence

KNOWN = {"question"}  # fields of a Context between the two graphs, besides those that are always there


def no_captured_reduction_because(steps: List[ReduceStep]) -> str | None:
    """Why steps do not fit between the graphs; None if they do."""
    for step in steps:
        method = METHODS[step.method]
        if method.acts != {"projector"} or not method.needs <= KNOWN:
            return f"tokens that {step.method} reduces are not captured; those of {', '.join(_captured())} are"
    return None


def _captured() -> list[str]:
    return [name for name, method in METHODS.items() if method.acts == {"projector"} and method.needs <= KNOWN]


class ReducedBudget:
    """As CapturedPrefill, for one prompt of one image.

    budget: tokens that are sampled
    steps:  that `no_captured_reduction_because` has no reason against
    """

    def __init__(self, adapter: Any, budget: int, steps: List[ReduceStep], **options: Any) -> None:
        self.adapter, self.budget, self.steps = adapter, budget, tuple(steps)
        self.plan = planned("ReducedBudget", steps, len(adapter.language_of(adapter.model).layers), adapter.tower_depth)
        kept = budget
        for one in self.plan:
            kept = _kept(one, kept)
        self.wide = CapturedPrefill(adapter, budget, masked=True, **options)
        self.narrow = CapturedPrefill(adapter, kept, masked=True, **options)

    @property
    def reasons(self) -> list[str]:
        """As of CapturedPrefill, of both parts."""
        return sorted({*self.wide.reasons, *self.narrow.reasons})

    @property
    def stale(self) -> bool:
        """As of CapturedPrefill."""
        return self.wide.stale

    def generate(self, prompts: Any, texture: Texture, allocation: Allocation, **options: Any) -> Any:
        """As of CapturedPrefill."""
        seen = self.wide.encode_readable(texture, allocation, options)
        ids = self.narrow.spelled("generate", prompts, texture, allocation)
        return self.narrow.answer(ids, self.reduced(seen, ids[0]), **options)

    def reduced(self, seen: TowerOutput, ids: List[int]) -> TowerOutput:
        """What is left of the output of the tower for a prompt, in the slots of `narrow`."""
        count = int(seen.used.sum())  # unused slots are the last
        features, place = seen.embeds[0][0, :count], seen.place[0, :count]
        ones = torch.ones(count, device=place.device)
        kept = torch.arange(count, device=place.device)
        question = self._question(ids) if any(one.stage.needs for one in self.plan) else None
        for one in self.plan:
            context = Context(
                features=features[kept],
                position=torch.cat([torch.zeros_like(place[kept, :1]), place[kept]], 1),
                size=ones[kept],
                weight=ones[kept],
                image=torch.zeros_like(kept),
                question=question,
            )
            kept = kept[one.stage(context, _kept(one, len(kept))).kept]
        slots = torch.zeros(self.narrow.budget, dtype=torch.int64, device=kept.device)
        slots[: len(kept)] = kept
        used = torch.arange(len(slots), device=kept.device) < len(kept)
        embeds = tuple(one[:, slots] for one in seen.embeds)
        return replace(seen, place=seen.place[:, slots], used=used[None], embeds=embeds)

    def _question(self, ids: List[int]) -> Tensor:
        """(T, D): the embeddings of the question's words."""
        table = torch.tensor([ids], device=self.narrow.device)
        hidden: Tensor = self.adapter.model.get_input_embeddings()(table)
        visual, special = (
            torch.isin(table, torch.tensor(marks, device=table.device))
            for marks in (self.adapter.visual_ids, getattr(self.adapter.tokenizer, "all_special_ids", []))
        )
        one = Sequence.of(hidden, hidden[..., :0], torch.ones_like(visual), visual, special, ())
        return hidden[0, one.wording(0)]


def _kept(one: Planned, count: int) -> int:
    return stage_budget(count, min(one.step.target(count), count), one.left)
