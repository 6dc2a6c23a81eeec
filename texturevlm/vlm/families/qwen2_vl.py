"""Qwen2-VL: tokens of 28 × 28 pixels (four patches), rotary positions only.

A video is one run of tokens whose third position is time.
"""

from torch import Tensor

from texturevlm.vlm.adapter import CLIP
from texturevlm.vlm.families.qwen import QwenAdapter
from texturevlm.vlm.views import View


class Qwen2VL(QwenAdapter):
    normalisation = CLIP

    def moment(self, view: View) -> Tensor:
        """Videos of Qwen2-VL count their pairs of frames."""
        return view.moment / self.moments if view.video else super().moment(view)
