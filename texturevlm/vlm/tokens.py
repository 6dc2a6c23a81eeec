"""Tokens: embeddings from a vision tower, for a language model; and those of the model's own full grid, weighted.

Each token has its own position and size, because merged or weighted tokens are no longer one footprint each. Weighting
the full grid by relevance saves no token, and everything is differentiable: it is the soft counterpart of choosing
tokens, a control, and a way to train a relevance that will choose tokens later.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.check import check_floating, check_shapes
from texturevlm.types import Allocation, Texture
from texturevlm.vlm.views import View


@dataclass(frozen=True, eq=False)
class Tokens:
    """K embeddings per image.

    embeds:   (B, K, D), zero in unused slots
    position: (B, K, 2), x then y of the centre in level-0 pixels
    size:     (B, K, 2), width then height of the area in level-0 pixels
    weight:   (B, K), weight of each token; 0 in unused slots
    deepstack: further embeddings, each (B, K, D), which Qwen3-VL adds to its first layers; empty for other models
    """

    embeds: Tensor
    position: Tensor
    size: Tensor
    weight: Tensor
    deepstack: tuple[Tensor, ...] = ()

    def __post_init__(self) -> None:
        check_floating("Tokens", embeds=self.embeds, position=self.position, size=self.size, weight=self.weight)
        check_shapes(
            "Tokens",
            embeds=(self.embeds, "B K D"),
            position=(self.position, "B K 2"),
            size=(self.size, "B K 2"),
            weight=(self.weight, "B K"),
        )
        for index, layer in enumerate(self.deepstack):
            check_shapes("Tokens", embeds=(self.embeds, "B K D"), **{f"deepstack_{index}": (layer, "B K D")})


def to_tokens(allocation: Allocation, views: Sequence[View], columns: Sequence[Sequence[Tensor]]) -> Tokens:
    """Tokens in the allocation's slots, from embeddings (n, D) of each image's view; further columns for DeepStack."""
    image = torch.cat([torch.full_like(view.slot, index) for index, view in enumerate(views)])
    slot = torch.cat([view.slot for view in views])
    placed = []
    for column in columns:
        flat = torch.cat(list(column))
        table = flat.new_zeros(allocation.batch, allocation.budget, flat.shape[-1])
        placed.append(table.index_put((image.to(flat.device), slot.to(flat.device)), flat))
    boxes = allocation.boxes
    return Tokens(
        embeds=placed[0],
        position=allocation.centre.to(placed[0].device),
        size=(boxes[..., 2:] - boxes[..., :2]).to(placed[0].device),
        weight=allocation.valid.to(placed[0]),
        deepstack=tuple(placed[1:]),
    )


def own_grid(adapter: Any, texture: Texture) -> Allocation:
    """Every cell of the grid that the unmodified model lays over images of this size."""
    height, width = texture.size
    rows, columns = adapter.grid_for(texture.size)
    down, across = height / rows, width / columns
    y, x = torch.meshgrid(torch.arange(rows) * down, torch.arange(columns) * across, indexing="ij")
    boxes = torch.stack([x, y, x + across, y + down], -1).reshape(1, -1, 4)
    found = Allocation.of_boxes(boxes, texture.size, adapter.side).to(texture.device)
    return found.each(lambda column: column.expand(texture.batch, *column.shape[1:]))


def grid_weights(adapter: Any, texture: Texture, relevance: Tensor) -> Tensor:
    """(B, K): the mean of a map (B, h, w) of any resolution over each cell of the model's own grid; differentiable."""
    check_shapes("grid_weights", levels=(texture.levels[0], "B C H W"), relevance=(relevance, "B h w"))
    return functional.adaptive_avg_pool2d(relevance.unsqueeze(1), adapter.grid_for(texture.size)).flatten(1)


def weighted(adapter: Any, prompts: Any, texture: Texture, relevance: Tensor, **options: Any) -> dict[str, Tensor]:
    """Inputs of the model with each visual token multiplied by the mean relevance of its cell.

    adapter:   of a vision-language model
    prompts:   one for a single image, or a list, one per image of the texture's batch
    relevance: (B, h, w), of any resolution; gradients flow back to it
    options:   of the adapter's `prepare`
    """
    weights = grid_weights(adapter, texture, relevance)
    inputs: dict[str, Tensor] = adapter.prepare(
        prompts, texture, own_grid(adapter, texture), weights=weights, **options
    )
    return inputs
