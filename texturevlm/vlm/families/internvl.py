"""InternVL3 (the port in transformers): tokens of 28 × 28 pixels, whose four patches a pixel shuffle puts in a row.

The image is one tile of 448 × 448 pixels for the tower, whatever its size: chosen tokens replace the stock processor's
further tiles.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from texturevlm.vlm.adapter import IMAGENET
from texturevlm.vlm.families.grouped import GroupedAdapter


class InternVL(GroupedAdapter):
    normalisation = IMAGENET

    def __init__(self, config: Any, processor: Any = None) -> None:
        super().__init__(config, processor)
        layer, strategy = config.vision_feature_layer, config.vision_feature_select_strategy
        if (layer, strategy) != (-1, "default"):
            raise ValueError(
                f"adapt: InternVL must use the last layer of its tower without the class token, "
                f"got vision_feature_layer={layer} and vision_feature_select_strategy={strategy!r}"
            )

    def patches_across(self, config: Any) -> int:
        return int(1 / config.downsample_ratio)

    @property
    def wrapper(self) -> tuple[str, str]:
        return self.tokenizer.start_image_token, self.tokenizer.end_image_token

    def tower_of(self, model: Any) -> Any:
        return model.model.vision_tower

    def project_squares(self, squares: Tensor) -> Tensor:
        network = self.model.model
        square = squares.unflatten(1, (self.merge, self.merge))
        shuffled = network.pixel_shuffle(square, scale_factor=self.config.downsample_ratio)
        projected: Tensor = network.multi_modal_projector(shuffled.flatten(1))
        return projected
