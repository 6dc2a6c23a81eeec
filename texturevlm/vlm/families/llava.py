"""LLaVA-1.5 and LLaVA-OneVision: a CLIP or SigLIP tower, a projector, and a language model without image positions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from texturevlm.vlm.adapter import CENTRED, CLIP
from texturevlm.vlm.families.projected import ProjectedAdapter


class Llava(ProjectedAdapter):
    """LLaVA-1.5."""

    normalisation = CLIP

    def tower_of(self, model: Any) -> Any:
        return model.model.vision_tower

    def hidden(self, pixels: Tensor, patch: Tensor) -> Tensor:
        """The layers that the config names, without the class token."""
        config, front = self.config, self.tower.in_front
        layers = config.vision_feature_layer
        if front and config.vision_feature_select_strategy != "default":
            raise ValueError(
                f"adapt: vision_feature_select_strategy must be 'default', without the tower's class token, "
                f"got {config.vision_feature_select_strategy!r}"
            )
        layers = [layers] if isinstance(layers, int) else layers
        return torch.cat([one[:, front:] for one in self.tower.run_layers(pixels, patch, layers)], -1)

    @property
    def tower_depth(self) -> int:
        layers = self.config.vision_feature_layer
        last = layers if isinstance(layers, int) else layers[-1]
        return last if last > 0 else super().tower_depth + 1 + last

    def project(self, hidden: Tensor) -> Tensor:
        projected: Tensor = self.model.model.multi_modal_projector(hidden)
        return projected


class LlavaOnevision(Llava):
    """LLaVA-OneVision, whose images end with a token for a new line."""

    normalisation = CENTRED

    def length(self, tokens: int) -> int:
        return tokens + 1

    def arranged(self, tokens: Tensor) -> Tensor:
        return torch.cat([tokens, self.model.model.image_newline[None].to(tokens)])
