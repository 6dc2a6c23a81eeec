"""Qwen3-VL: tokens of 32 × 32 pixels (four patches), a learned position table beside the rotary one, DeepStack.

The table is read between its entries, so that fractional positions work. DeepStack and the merger act on the four
patches of a token and need nothing. A video is a row of moments, each with its time in words before it.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from texturevlm.vlm.adapter import CENTRED
from texturevlm.vlm.families.qwen import QwenAdapter
from texturevlm.vlm.places import bilinear_taps
from texturevlm.vlm.prompts import PromptImage
from texturevlm.vlm.views import LEVELS, View


class Qwen3VL(QwenAdapter):
    normalisation = CENTRED
    levels = LEVELS

    def tower_arguments(self, patch: Tensor, extent: Tensor, begins: Tensor) -> dict[str, Tensor]:
        """Add the taps into the position table, under the names of the installed transformers."""
        from transformers import vision_utils

        indices, weights = bilinear_taps(patch, extent, self.tower.num_grid_per_side)
        if hasattr(vision_utils, "get_vision_interpolation_indices_and_weights"):
            taps = {"interp_indices": indices, "interp_weights": weights}
        else:  # before 5.15
            taps = {"bilinear_indices": indices.T, "bilinear_weights": weights.T}
        return super().tower_arguments(patch, extent, begins) | taps

    @property
    def deepstack_mergers(self) -> dict[int, Any]:
        return dict(zip(self.tower.deepstack_visual_indexes, self.tower.deepstack_merger_list))

    def learned_positions(self, patch: Tensor, extent: Tensor) -> Tensor:
        indices, weights = bilinear_taps(patch, extent, self.tower.num_grid_per_side)
        table: Tensor = self.tower.pos_embed(indices)
        return (table * weights[..., None]).sum(1)

    def video_views(self, picture: PromptImage, levels: str) -> list[View]:
        """One view per moment: each has its own place in the prompt."""
        (whole,) = super().video_views(picture, levels)
        return [whole.part(whole.moment == moment) for moment in whole.moment.unique()]

    def clip_groups(self, moments: Sequence[View]) -> list[list[View]]:
        return [list(moments)]

    def filling(self, group: Sequence[View], fps: float) -> str:
        if not group[0].video:
            return super().filling(group, fps)
        times = [float(view.times(fps)[0]) + (self.moments - 1) / 2 / fps for view in group]
        return "".join(
            f"<{time:.1f} seconds>{super(Qwen3VL, self).filling([view], fps)}" for time, view in zip(times, group)
        )
