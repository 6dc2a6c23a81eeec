"""Qwen2.5-VL: tokens of 28 × 28 pixels (four patches), most layers attending within windows of 112 pixels.

A token belongs to the window that holds its centre. There is no position table and no DeepStack; a video is one run of
tokens whose third position is time.
"""

from collections.abc import Collection

import torch
from torch import Tensor

from texturevlm.vlm.adapter import CLIP
from texturevlm.vlm.families.qwen import QwenAdapter
from texturevlm.vlm.views import View


class Qwen2_5_VL(QwenAdapter):
    normalisation = CLIP

    def tower_arguments(self, patch: Tensor, extent: Tensor, begins: Tensor) -> dict[str, Tensor]:
        """Add the order of the windows, and where each ends."""
        per_token = self.merge**2
        segment = begins.view(-1, per_token)[:, 0].cumsum(0)
        window = torch.cat([segment[:, None], self.windows(patch.view(-1, per_token, 2))], -1)
        order = torch.arange(len(segment), device=patch.device)
        for key in window.flip(-1).unbind(-1):
            order = order[key[order].argsort(stable=True)]
        changes = (window[order][1:] != window[order][:-1]).any(-1).nonzero()[:, 0] + 1
        ends = torch.cat([changes.new_zeros(1), changes, changes.new_full((1,), len(order))])
        return super().tower_arguments(patch, extent, begins) | {
            "window_index": order,
            "cu_window_seqlens": (ends * per_token).int(),
        }

    @property
    def whole_blocks(self) -> Collection[int]:
        blocks: Collection[int] = self.tower.fullatt_block_indexes
        return blocks

    def windows(self, patch: Tensor) -> Tensor:
        """(..., M², 2) rows and columns of a token's patches → (..., 2), the row and column of its window."""
        across: int = self.config.vision_config.window_size // self.config.vision_config.patch_size  # patches
        return ((patch.mean(-2) + 0.5) / across).floor().long()

    def moment(self, view: View) -> Tensor:
        if not view.video:
            return super().moment(view)
        per_second: float = self.config.vision_config.tokens_per_second
        return (view.times(view.fps) * per_second).floor()
