"""The vision tower on some of a frame's tokens: those that changed. On a GPU as captured graphs of a few sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from texturevlm.types import Allocation, Patches
from texturevlm.vlm import FixedBudget
from texturevlm.vlm.views import moment_view, order_of_reading

TOWER_SIZES = (16, 32, 48, 64, 96, 128)  # tokens; above the last in multiples of it


class ChangedTokens:
    """Encodes tokens of a stream.

    adapter:  of a Qwen model
    captured: whether the tower is captured
    """

    def __init__(self, adapter: Any, *, captured: bool) -> None:
        self.adapter, self.captured = adapter, captured
        self.towers: dict[int, FixedBudget] = {}

    def __call__(self, pixels: Tensor, allocation: Allocation, slots: list[int]) -> list[Tensor]:
        """(n, D) each, in the order of `slots`: the tokens, then those for DeepStack.

        pixels:     (K, 3, P, P), 0 to 1
        allocation: of one image, on the CPU
        """
        some = allocation.each(lambda column: column[:, slots])
        own = pixels[torch.tensor(slots, device=pixels.device)]
        if self.captured:
            return self._replayed(own, some)
        levels = self.adapter.trained.levels
        view = moment_view(own[:, None], some, levels=levels, number=0, seconds=0.0, fps=1.0)
        embeds = self.adapter.embed([view])
        back = view.slot.argsort()
        return [one[0][back.to(one[0].device)] for one in embeds]

    def _replayed(self, pixels: Tensor, allocation: Allocation) -> list[Tensor]:
        count = len(pixels)
        size = next((size for size in TOWER_SIZES if size >= count), -(-count // TOWER_SIZES[-1]) * TOWER_SIZES[-1])
        if size not in self.towers:
            self.towers[size] = FixedBudget(self.adapter, size, masked=True, compiled=False)
        order = order_of_reading(allocation, self.adapter.trained.levels)  # the tower keeps tokens that come in order
        filled = torch.cat([order, order[:1].expand(size - count)])
        wide = replace(allocation.each(lambda column: column[:, filled]), valid=torch.arange(size)[None] < count)
        patches = Patches(pixels[filled.to(pixels.device)][None], wide.to(pixels.device))
        back = order.argsort().to(pixels.device)
        return [one[0, back] for one in self.towers[size].encode_patches(patches).embeds]
