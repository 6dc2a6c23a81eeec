"""CLIP, SigLIP and SigLIP 2 by themselves: features of a budget of tokens, for retrieval and classification."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from texturevlm.types import Allocation, Texture
from texturevlm.vlm.adapter import CENTRED, CLIP, Adapter
from texturevlm.vlm.prompts import Picture
from texturevlm.vlm.tokens import Tokens
from texturevlm.vlm.views import View, still_views, to_tokens
from texturevlm.vlm.vit import VisionTransformer, by_count


class Encoder(Adapter):
    """An image encoder, alone or beside its text encoder."""

    normalisation = CENTRED

    def __init__(self, model: Any, processor: Any = None) -> None:
        super().__init__(model, processor)
        self.tower = VisionTransformer(getattr(model, "vision_model", model))
        self.side = self.tower.side

    def encode(self, texture: Texture, allocation: Allocation) -> Tokens:
        """The tower's last hidden states: embeds (B, K, D), in the allocation's slots.

        texture, allocation: B images of one size, K upright footprints each
        """
        views = still_views("encode", Picture(texture, allocation), self.side)
        front = self.tower.in_front
        found = self._run(views, self.tower.tower, lambda out: out.last_hidden_state[:, front:])
        return to_tokens(allocation, views, [found])

    def features(self, texture: Texture, allocation: Allocation) -> Tensor:
        """(B, D): one vector per image, in the space shared with texts if there is one, or the pooled output."""
        views = still_views("features", Picture(texture, allocation), self.side)
        call = getattr(self.model, "get_image_features", self.tower.tower)
        return torch.stack(self._run(views, call, lambda out: out.pooler_output))

    def _run(self, views: list[View], call: Any, take: Any) -> list[Tensor]:
        """What `take` finds for each view."""
        found: dict[int, Tensor] = {}
        for group in by_count(views):
            members = [views[index] for index in group]
            pixels = self.normalised(torch.stack([view.pixels[:, 0] for view in members]))
            out = take(self.tower.run(call, pixels.to(self.model.device), members))
            found |= dict(zip(group, out))
        return [found[index] for index in range(len(views))]


class ClipEncoder(Encoder):
    normalisation = CLIP
