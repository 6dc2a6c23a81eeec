"""SmolVLM and SmolVLM2: a pixel shuffle puts the patches of a token in a row, 3 × 3 or 4 × 4 of them.

The image is one square of the tower's size, whatever its size: chosen tokens replace the stock processor's tiles.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from texturevlm.vlm.adapter import CENTRED
from texturevlm.vlm.families.grouped import GroupedAdapter

AROUND, GLOBAL = "<fake_token_around_image>", "<global-img>"  # as the stock processor spells them


class SmolVLM(GroupedAdapter):
    normalisation = CENTRED

    def patches_across(self, config: Any) -> int:
        return int(config.scale_factor)

    @property
    def wrapper(self) -> tuple[str, str]:
        return f"{AROUND}{GLOBAL}", AROUND

    def tower_of(self, model: Any) -> Any:
        return model.model.vision_model

    def language_of(self, model: Any) -> Any:
        return model.model.text_model

    def project_squares(self, squares: Tensor) -> Tensor:
        projected: Tensor = self.model.model.connector(squares)
        return projected[:, 0]
