"""Where the tokens of a stream stand in a model's prompt: worked out once per choice of tokens, not per frame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from texturevlm.types import Allocation
from texturevlm.vlm.views import moment_view


@dataclass(frozen=True, eq=False)
class ChoiceLayout:
    """The used slots of one choice.

    reading: slot → its number in reading order
    places:  slot → (row, column), in tokens of the model's grid
    ranks:   slot → key of the reading order, the same for a footprint in every choice
    boxes:   slot → the area that it shows, xyxy in pixels
    """

    reading: dict[int, int]
    places: dict[int, tuple[float, float]]
    ranks: dict[int, tuple[float, float, float]]
    boxes: dict[int, tuple[float, ...]]

    @staticmethod
    def of(adapter: Any, allocation: Allocation) -> ChoiceLayout:
        """adapter: of a Qwen model; allocation: of one image, on the CPU"""
        levels = adapter.trained.levels
        pixels = torch.zeros(allocation.budget, 1, 3, 1, 1)
        view = moment_view(pixels, allocation, levels=levels, number=0, seconds=0.0, fps=1.0)
        order = view.slot.tolist()
        coarse = torch.zeros(allocation.budget) if levels == "joint" else -allocation.level[0].round()
        keys = torch.cat([coarse[:, None], allocation.centre[0].flip(-1)], 1).tolist()
        boxes = allocation.boxes[0].tolist()
        return ChoiceLayout(
            {slot: number for number, slot in enumerate(order)},
            {slot: (row, column) for slot, (row, column) in zip(order, adapter.places(view).token.tolist())},
            {slot: (keys[slot][0], keys[slot][1], keys[slot][2]) for slot in order},
            {slot: tuple(boxes[slot]) for slot in order},
        )
