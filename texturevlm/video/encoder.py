"""The vision tower on some of a frame's tokens: those that changed. On a GPU as captured graphs of a few sizes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from texturevlm.types import Allocation
from texturevlm.vlm import FixedBudget
from texturevlm.vlm.views import moment_view

TOWER_SIZES = (16, 32, 48, 64, 96, 128)  # tokens; above the last in multiples of it


class ChangedTokens:
    """Encodes tokens of a stream.

    adapter:  of a Qwen model
    captured: whether the tower is captured
    """

    def __init__(self, adapter: Any, *, captured: bool) -> None:
        self.adapter, self.captured = adapter, captured
        self.towers: dict[int, FixedBudget] = {}
        self.allocation: Allocation | None = None

    def hold(self, allocation: Allocation, device: torch.device) -> None:
        """The tokens were chosen. allocation: of one image, on the CPU; device: of the pixels"""
        self.allocation = allocation
        self._centre = allocation.centre.to(device)
        self._step = torch.stack([allocation.ddx[..., 0], allocation.ddy[..., 1]], -1).to(device)

    def __call__(self, pixels: Tensor, slots: list[int]) -> list[Tensor]:
        """(n, D) each: the tokens, then those for DeepStack. The next call overwrites them.

        pixels: (K, 3, P, P), 0 to 1
        slots:  in reading order: the tower keeps it
        """
        assert self.allocation is not None
        if self.captured:
            return self._replayed(pixels, slots, self.allocation.size)
        some = self.allocation.each(lambda column: column[:, slots])
        levels = self.adapter.trained.levels
        view = moment_view(pixels[slots][:, None], some, levels=levels, number=0, seconds=0.0, fps=1.0)
        return [one[0] for one in self.adapter.embed([view])]

    def _replayed(self, pixels: Tensor, slots: list[int], size: tuple[int, int]) -> list[Tensor]:
        count = len(slots)
        wide = next((wide for wide in TOWER_SIZES if wide >= count), -(-count // TOWER_SIZES[-1]) * TOWER_SIZES[-1])
        if wide not in self.towers:
            self.towers[wide] = FixedBudget(self.adapter, wide, masked=True, compiled=False)
        filled = torch.tensor([*slots, *slots[:1] * (wide - count)], device=pixels.device)
        used = torch.arange(wide, device=pixels.device)[None] < count
        centre, step = self._centre[:, filled], self._step[:, filled]
        found = self.towers[wide].encode_tokens(pixels[filled][None], centre, step, used, [size])
        return [one[0, :count] for one in found.embeds]
