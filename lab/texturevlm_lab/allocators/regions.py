"""Regions of an image on the grid of its relevance, for allocators that keep objects whole: colours, SAM, or given."""

from __future__ import annotations

import os
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.channels.segments import Segmenter, sam_regions
from texturevlm.channels.structure import colour_levels
from texturevlm.check import check_shapes
from texturevlm.relevance.maps import Relevance
from texturevlm.types import Texture

Regions = Tensor | Segmenter | str | os.PathLike[str]


def find_regions(function: str, regions: Regions, texture: Texture, relevance: Relevance) -> Tensor:
    """(B, h, w) integers on the relevance's grid.

    regions: such a map; or a SAM, by its hub id, its folder, or loaded (`channels.Segmenter`)
    """
    if isinstance(regions, (str, os.PathLike)):
        regions = load_segmenter(os.fspath(regions), texture.device)
    if isinstance(regions, Segmenter):
        regions = segmented(regions, texture, relevance.grid)
    check_shapes(function, mass=(relevance.mass, "B h w"), regions=(regions, "B h w"))
    return regions


@lru_cache(maxsize=2)
def load_segmenter(model: str, device: torch.device) -> Segmenter:
    """A SAM by its hub id or its folder; the last ones stay loaded."""
    return Segmenter.load(model, device=device)


def segmented(segmenter: Segmenter, texture: Texture, grid: tuple[int, int]) -> Tensor:
    """SAM's regions of the coarsest level that is as fine as SAM's input, at the cells' centres: (B, h, w)."""
    side = segmenter.network.config.vision_config.image_size
    levels = colour_levels(texture.mipmapped())
    level = next((one for one in reversed(levels) if max(one.shape[2:]) >= side), levels[0])
    found = sam_regions(level.float(), segmenter).float()
    return functional.interpolate(found[:, None], grid, mode="nearest-exact")[:, 0].long()


def shared_in_regions(mass: Tensor, regions: Tensor) -> Tensor:
    """A mass (B, h, w) spread evenly over each region (B, h, w); 0 is no region and keeps its own."""
    batch, count = len(mass), int(regions.max()) + 1
    number = (regions.long() + count * torch.arange(batch, device=regions.device)[:, None, None]).flatten()
    total = mass.new_zeros(batch * count).index_add(0, number, mass.flatten())
    cells = torch.bincount(number, minlength=batch * count).clamp(min=1)
    even = (total / cells)[number].view(mass.shape)
    return torch.where(regions > 0, even, mass)
