"""Vision transformers on chosen patches: each embedded at its true position, the rest the tower's own.

These towers have a learned table of positions and no other notion of place, so a patch is looked up where its centre
lies in the image, between the entries. The tower is called with a picture of one patch, and for as long as the call
lasts its embeddings module returns the embeddings of the chosen patches instead. A tower is one subclass of
VisionTransformer and one line in TOWERS. `Encoder` is CLIP, SigLIP or SigLIP 2 by itself: features of a budget of
tokens, for retrieval and classification.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.types import Allocation, Texture
from texturevlm.vlm.adapter import CENTRED, CLIP, Adapter
from texturevlm.vlm.modules import Override
from texturevlm.vlm.prompts import PromptImage
from texturevlm.vlm.views import View, still_views

Tower = Callable[..., Any]


class VisionTransformer(ABC):
    """A tower: the module, whose `embeddings` turn pixels into embeddings with positions.

    in_front:    tokens of its own that it puts in front of the patches
    wide_reach:  whether a patch that is larger than an entry of the table averages all entries that it covers
    channels_last: whether a patch is flattened as (y, x, channel) instead of (channel, y, x)
    """

    in_front: ClassVar[int] = 0
    wide_reach: ClassVar[bool] = False
    channels_last: ClassVar[bool] = False

    def __init__(self, tower: Any) -> None:
        self.tower = tower
        self.embeddings = tower.embeddings

    @property
    def layers(self) -> Any:
        """The blocks of the tower, first to last."""
        return self.tower.encoder.layers

    @property
    @abstractmethod
    def projection(self) -> Any:
        """The module whose weight and bias embed a patch."""

    @property
    @abstractmethod
    def table(self) -> Tensor:
        """(in_front + side², D): positions of the tokens in front, then of the patches, row by row."""

    def front(self) -> Tensor:
        """(in_front, D): the tokens in front."""
        return self.table[:0]

    def inputs(self, batch: int, count: int) -> dict[str, Tensor]:
        """Arguments of the tower for so many patches; their pixels are not read."""
        weight = self.projection.weight
        return {"pixel_values": weight.new_zeros(batch, 3, 1, 1)}

    @property
    def table_side(self) -> int:
        """Rows, and columns, of the table of positions."""
        return int((len(self.table) - self.in_front) ** 0.5)

    def run(self, call: Tower, pixels: Tensor, patch: Tensor, reach: Tensor | None = None, **options: Any) -> Any:
        """`call` (the tower, or a method of a model that calls it) on normalised pixels (B, N, 3, P, P).

        patch: (B, N, 2), row and column on the grid of the table
        reach: (B, N, 2), entries of the table that a patch covers; None: one
        """
        embedded = self.embedded(pixels, patch, reach)
        override = Override(self.embeddings, "forward", lambda *_, **__: embedded)
        try:
            return call(**self.inputs(*pixels.shape[:2]), **options)
        finally:
            override.remove()

    def run_layers(self, pixels: Tensor, patch: Tensor, layers: Sequence[int]) -> list[Tensor]:
        """Run the tower: the outputs (B, in_front + N, D) of some layers, counted from 1, or from the last, -1.

        `output_hidden_states` would leave hooks of transformers' own behind, with which no model can be pickled.
        """
        found: dict[int, Tensor] = {}
        modules = self.layers
        hooks = []
        try:
            for layer in layers:
                module = modules[layer - 1 if layer > 0 else layer]
                hooks.append(module.register_forward_hook(lambda _, __, out, key=layer: found.__setitem__(key, out)))
            self.run(self.tower, pixels, patch)
        finally:
            for hook in hooks:
                hook.remove()
        return [found[layer] for layer in layers]

    def embedded(self, pixels: Tensor, patch: Tensor, reach: Tensor | None) -> Tensor:
        """(B, N, 3, P, P) → (B, N, D), with the tower's own tokens in front."""
        module, table = self.projection, self.table
        order = (0, 1, 3, 4, 2) if self.channels_last else (0, 1, 2, 3, 4)
        rows = pixels.permute(order).flatten(2).to(module.weight)
        tokens = functional.linear(rows, module.weight.flatten(1), module.bias)
        tokens = tokens + self._positions(table[self.in_front :], patch, reach).to(tokens.dtype)
        front = (self.front() + table[: self.in_front]).expand(len(tokens), -1, -1)
        return torch.cat([front.to(tokens.dtype), tokens], 1)

    def _positions(self, table: Tensor, patch: Tensor, reach: Tensor | None) -> Tensor:
        """(B, N, D): the table read where the patches' centres lie."""
        side = self.table_side
        entry = torch.arange(side, device=table.device)
        shares = []
        for axis in (0, 1):
            at = patch[..., axis].detach().to(table.device).clamp(0, side - 1)
            width = torch.ones_like(at) if reach is None else reach[..., axis].to(at).clamp(min=1)
            share = (1 - (entry - at[..., None]).abs() / width[..., None]).clamp(min=0)
            shares.append(share / share.sum(-1, keepdim=True))
        rows, columns = shares
        return torch.einsum("bkr,bkc,rcd->bkd", rows, columns, table.float().view(side, side, -1))


class SiglipTower(VisionTransformer):
    @property
    def projection(self) -> Any:
        return self.embeddings.patch_embedding

    @property
    def table(self) -> Tensor:
        weight: Tensor = self.embeddings.position_embedding.weight
        return weight


class ClipTower(SiglipTower):
    """With a class token."""

    in_front = 1

    def front(self) -> Tensor:
        token: Tensor = self.embeddings.class_embedding
        return token[None]


class Siglip2Tower(SiglipTower):
    """Takes patches in rows."""

    wide_reach = True
    channels_last = True

    def inputs(self, batch: int, count: int) -> dict[str, Tensor]:
        weight = self.projection.weight
        return {
            "pixel_values": weight.new_zeros(batch, 1, weight.shape[1]),
            "pixel_attention_mask": torch.ones(batch, count, dtype=torch.int64, device=weight.device),
            "spatial_shapes": torch.ones(batch, 2, dtype=torch.int64, device=weight.device),
        }


class SmolVLMTower(SiglipTower):
    """SigLIP that takes pictures of any shape, with a mask of patches."""

    def inputs(self, batch: int, count: int) -> dict[str, Tensor]:
        mask = torch.ones(batch, 1, count, dtype=torch.bool, device=self.table.device)
        return super().inputs(batch, count) | {"patch_attention_mask": mask}


class InternVLTower(VisionTransformer):
    in_front = 1

    @property
    def layers(self) -> Any:
        return self.tower.encoder.layer

    @property
    def projection(self) -> Any:
        return self.embeddings.patch_embeddings.projection

    @property
    def table(self) -> Tensor:
        table: Tensor = self.embeddings.position_embeddings
        return table[0]

    def front(self) -> Tensor:
        token: Tensor = self.embeddings.cls_token
        return token[0]


# model_type of a tower's config → how it is run
TOWERS: dict[str, type[VisionTransformer]] = {
    "clip_vision_model": ClipTower,
    "siglip_vision_model": SiglipTower,
    "siglip2_vision_model": Siglip2Tower,
    "smolvlm_vision": SmolVLMTower,
    "internvl_vision": InternVLTower,
}


def tower_for(tower: Any) -> VisionTransformer:
    """How a vision tower is run on chosen patches."""
    kind = tower.config.model_type
    if kind not in TOWERS:
        raise ValueError(f"adapt: vision tower must be one of {', '.join(TOWERS)}, got {kind}")
    return TOWERS[kind](tower)


def by_count(counts: Sequence[int]) -> list[list[int]]:
    """Which images have equally many patches and can run together: these towers know no padding."""
    groups: dict[int, list[int]] = {}
    for index, count in enumerate(counts):
        groups.setdefault(count, []).append(index)
    return list(groups.values())


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
            patch = torch.stack([place.patch[:, 0] for place in lie])
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
