"""Gemma 3: tokens of 56 × 56 pixels, the average of their 4 × 4 patches; the tokens of an image attend to one another.

The image is one square of 896 × 896 pixels for the tower, whatever its size.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from texturevlm.vlm.adapter import CENTRED
from texturevlm.vlm.families.grouped import GroupedAdapter
from texturevlm.vlm.families.projected import square_side


class Gemma3(GroupedAdapter):
    normalisation = CENTRED
    two_looks = False  # layers have rotary embeddings of two kinds

    def patches_across(self, config: Any) -> int:
        vision = config.vision_config
        patches = square_side(vision.image_size) // square_side(vision.patch_size)
        return patches // math.isqrt(config.mm_tokens_per_image)

    @property
    def mark_id(self) -> int:
        """The stock processor puts the whole image in the place of its first token."""
        return int(self.config.boi_token_id)

    @property
    def wrapper(self) -> tuple[str, str]:
        begin, end = self.word(self.config.boi_token_id), self.word(self.config.eoi_token_id)
        return f"\n\n{begin}", f"{end}\n\n"

    def id_inputs(self, ids: Tensor) -> dict[str, Tensor]:
        """Where the image tokens are: they attend in both directions."""
        return {"token_type_ids": (ids == self.config.image_token_id).long()}

    def tower_of(self, model: Any) -> Any:
        return model.model.vision_tower

    def project_squares(self, squares: Tensor) -> Tensor:
        """The steps of the model's projector, which itself takes whole images only."""
        projector = self.model.model.multi_modal_projector
        square = squares.transpose(1, 2).unflatten(2, (self.merge, self.merge))
        pooled = projector.mm_soft_emb_norm(projector.avg_pool(square).flatten(1))
        return torch.matmul(pooled, projector.mm_input_projection_weight).type_as(squares)
