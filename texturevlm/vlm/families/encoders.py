"""CLIP, SigLIP and SigLIP 2 by themselves: features of a budget of tokens, for retrieval and classification."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from texturevlm.types import Allocation, Texture
from texturevlm.vlm.adapter import CENTRED, CLIP, Adapter
from texturevlm.vlm.prompts import PromptImage
from texturevlm.vlm.views import View, still_views
from texturevlm.vlm.vit import VisionTransformer, by_count, tower_for


class Encoder(Adapter):
    """An image encoder, alone or beside its text encoder."""

    normalisation = CENTRED

    def __init__(self, config: Any, processor: Any = None) -> None:
        super().__init__(config, processor)
        self.side = getattr(config, "vision_config", config).patch_size

    @property
    def tower(self) -> VisionTransformer:
        """The vision tower of the bound model."""
        return tower_for(getattr(self.model, "vision_model", self.model))

    def hooks(self, model: Any) -> Iterator[Any]:
        """None stays: the tower is hooked while it runs."""
        yield from ()

    def grid_for(self, size: tuple[int, int]) -> tuple[int, int]:
        return self.tower.table_side, self.tower.table_side

    def pixel_inputs(self, views: Sequence[View], *, coordinates: str | None = None) -> dict[str, Tensor]:
        raise NotImplementedError(
            f"prepare: model must be a vision-language model, got {self.config.model_type}: use `encode` or `features`"
        )

    def embed(self, views: Sequence[View], *, coordinates: str | None = None) -> list[list[Tensor]]:
        """The tower's last hidden states."""
        front = self.tower.in_front
        return [self._run(views, self.tower.tower, lambda out: out.last_hidden_state[:, front:])]

    def replaced_tower(self, features: Sequence[Sequence[Tensor]]) -> Iterator[Any]:
        raise NotImplementedError(
            f"StoredFeatures: model must be a vision-language model, got {self.config.model_type}"
        )

    def features(self, texture: Texture, allocation: Allocation) -> Tensor:
        """(B, D): one vector per image, in the space shared with texts if there is one, or the pooled output."""
        views = still_views("features", PromptImage(texture, allocation), self.side)
        call = getattr(self.model, "get_image_features", self.tower.tower)
        return torch.stack(self._run(views, call, lambda out: out.pooler_output))

    def _run(self, views: Sequence[View], call: Any, take: Any) -> list[Tensor]:
        """What `take` finds for each view."""
        found: dict[int, Tensor] = {}
        for group in by_count([len(view) for view in views]):
            members = [views[index] for index in group]
            pixels = self.normalised(torch.stack([view.pixels[:, 0] for view in members])).to(self.device)
            lie = [self.places(view) for view in members]
            patch = torch.stack([one.patch[:, 0] for one in lie])
            reach = torch.stack([self._reach(view) for view in members]) if self.tower.wide_reach else None
            with self.lock:  # the tower is changed while it runs
                out = self.tower.run(call, pixels, patch, reach)
            found |= dict(zip(group, take(out)))
        return [found[index] for index in range(len(views))]

    def _reach(self, view: View) -> Tensor:
        """(n, 2): entries of the table that each token covers, down and across."""
        cells = torch.tensor(view.size).to(view.step) / self.tower.table_side
        return view.step.detach().flip(-1) * self.side / cells


class ClipEncoder(Encoder):
    normalisation = CLIP
