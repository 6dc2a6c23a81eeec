"""The model's own full grid with each embedding weighted by relevance: no token is saved, everything is differentiable.

It is the soft counterpart of choosing tokens: a control, and a way to train a relevance that will choose tokens later.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.check import check_shapes
from texturevlm.types import Allocation, Texture


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
