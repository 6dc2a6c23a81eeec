"""The inputs of the channel scorer: every channel at every cell, fetched by one call of the sampler.

A block says where a channel is read: here (the cell), around and wide (the same place, two and four mip levels
coarser), region (the mean over the cell's region, which `cluster_id` names), squared (here, squared). Motion counts as
far as the rest of the image stands still: where the camera moves, it says nothing about what matters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from texturevlm.channels.build import build
from texturevlm.channels.registry import CHANNELS
from texturevlm.cuda.constants import device_constant
from texturevlm.cuda.struct import constants
from texturevlm.ops.lookup import lookup
from texturevlm.ops.mip import level_extents
from texturevlm.relevance.maps import ImageMaps
from texturevlm.types import COLOURS, Texture

REGION_KEY = "cluster_id"  # labels: they say which cells belong together, and have no weight of their own
MOTION_KEY = "motion"
CONTEXT = {"here": 0, "around": 2, "wide": 4}  # block → levels above the cells'
BLOCKS = (*CONTEXT, "region", "squared")
WEIGHED = tuple(name for name in CHANNELS if name != REGION_KEY)
OF_MAPS = ("salience", "legible_scale", "ink")  # what is known of the cells without channels
MOST_CHANNEL_TEXELS = 1 << 20  # of the finest level that channels are built at: cells are coarser anyway
# A static number, so that a graph can capture the sums; superpixels are about 50, SAM's some 100.
(MOST_REGIONS,) = constants("channel_logits.cu", "MOST_REGIONS")
FLOOR = 0.01  # of a density, where the mean is 1: its logarithm stays finite
SCALES = (0.25, 64.0)  # of legible scales, pixels
MOVING = 0.05  # motion from which a cell counts as moving: 13 of 255 steps
ALL_MOVES = 0.25  # share of moving cells from which all of an image moves


def feature_names(channels: Sequence[str]) -> tuple[str, ...]:
    """Names of the features of these channels, in order: block.channel, then the cells' own."""
    return (*(f"{block}.{name}" for block in BLOCKS for name in channels), *OF_MAPS)


# Those that any image has, so that they can be trained.
CHANNEL_FEATURES = feature_names([name for name in WEIGHED if not CHANNELS[name].needs])


def channel_layers(texture: Texture, known: Texture | None = None, **given: Any) -> Texture:
    """The channels of images, with mips; those whose input was not given are left out.

    known: channels of the same images that are there already, with mips; the others are built
    given: as `build_channels` takes it. A texture that holds channels already is returned as it is
    """
    if not is_plain(texture):
        if maps := given.keys() - {"encoder", "projection"}:
            named = ", ".join(sorted(maps))
            raise ValueError(f"ChannelScorer: texture must hold colours alone where {named} is given, got {texture}")
        known_channels(texture)
        return texture.mipmapped()
    names = [name for name, channel in CHANNELS.items() if not channel.needs or channel.needs in given]
    extents = enumerate(level_extents(*texture.size))
    base = next(level for level, (height, width) in extents if height * width <= MOST_CHANNEL_TEXELS)
    if known is None:
        return build(texture, names, base=base, **given)
    base = max(base, level_extents(*texture.size).index((known.levels[0].shape[2], known.levels[0].shape[3])))
    extent = level_extents(*texture.size)[base]
    kept = [level for level in known.levels if level.shape[2] <= extent[0] and level.shape[3] <= extent[1]]
    missing = [name for name in names if name not in known.names]
    if not missing:
        return Texture(tuple(kept), known.names, texture.size, known.reduce)
    made = build(texture, missing, base=base, **given)
    levels = tuple(torch.cat(pair, 1) for pair in zip(kept, made.levels))
    return Texture(levels, (*known.names, *made.names), texture.size, (*known.reduce, *made.reduce))


def known_channels(layers: Texture) -> tuple[str, ...]:
    """The channels with weights that a texture holds; those that an image alone gives must be there."""
    held = set(layers.names)
    for name, channel in CHANNELS.items():
        if name not in held and not channel.needs:
            raise ValueError(
                f"ChannelScorer: texture must hold the colours alone, or every channel that needs no other input, "
                f"lacks {name!r}; build_channels(texture, 'all') makes them"
            )
    return tuple(name for name in WEIGHED if name in held)


def is_plain(texture: Texture) -> bool:
    """Whether a texture holds no channel but colours."""
    return not (set(texture.names) & set(CHANNELS)) - set(COLOURS)


def cell_features(layers: Texture, maps: ImageMaps) -> Tensor:
    """All features of all cells.

    layers: channels with mips, from any level on
    maps:   of the same images
    returns (B, h · w, F), in the order of `feature_names(known_channels(layers))`
    """
    names = known_channels(layers)
    rows, columns = maps.grid
    count = rows * columns
    height, width = layers.levels[0].shape[2:]
    down, across = (torch.arange(extent, device=layers.device) + 0.5 for extent in (rows, columns))
    y, x = torch.meshgrid(down * (height / rows), across * (width / columns), indexing="ij")
    points = torch.stack([x, y], -1).view(1, count, 2).repeat(layers.batch, len(CONTEXT), 1)
    lod = device_constant(context_levels(layers, maps), torch.float32, layers.device)
    lod = lod.repeat_interleave(count).expand(layers.batch, -1).contiguous()
    found = lookup([one.float() for one in layers.levels], points, lod, nearest=layers.nearest)
    regions = found[:, :count, layers.names.index(REGION_KEY)].round().long()
    picked = device_constant([layers.names.index(name) for name in names], torch.int64, layers.device)
    contexts = found.index_select(2, picked).view(layers.batch, len(CONTEXT), count, len(names)).unbind(1)
    here = contexts[0]
    blocks = [*contexts, _region_means(here, regions), here.square(), _of_maps(maps)]
    if MOTION_KEY in names:
        place = names.index(MOTION_KEY)
        own = _own_motion(here[..., place])[..., None]
        blocks[0] = torch.cat([here[..., :place], own, here[..., place + 1 :]], -1)
    return torch.cat(blocks, -1)


def context_levels(layers: Texture, maps: ImageMaps) -> list[float]:
    """The mip level of `layers` at which each block of CONTEXT is read."""
    level = max(0.0, float(round(math.log2(layers.levels[0].shape[3] / maps.grid[1]))))
    return [level + above for above in CONTEXT.values()]


def _own_motion(motion: Tensor) -> Tensor:
    """(B, N): motion, less the larger the share of cells that move."""
    moving = (motion > MOVING).to(motion).mean(1, keepdim=True)
    return motion * (1 - moving / ALL_MOVES).clamp(min=0)


def _region_means(values: Tensor, regions: Tensor) -> Tensor:
    """The mean of values (B, N, C) over the cells of each cell's region (B, N)."""
    index = regions.clamp(0, MOST_REGIONS - 1)[..., None].expand_as(values)
    sums = values.new_zeros(len(values), MOST_REGIONS, values.shape[2])
    counts = torch.zeros_like(sums).scatter_add_(1, index, torch.ones_like(values))
    return (sums.scatter_add_(1, index, values) / counts.clamp(min=1)).gather(1, index)


def _of_maps(maps: ImageMaps) -> Tensor:
    """(B, N, 3): logarithms of salience, whose mean is 1, and of the legible scale; ink."""
    count = maps.salience[0].numel()
    parts = [log_density(maps.salience * count), maps.legible_scale.clamp(*SCALES).log2(), maps.ink.float()]
    return torch.stack([part.flatten(1).float() for part in parts], -1)


def log_density(density: Tensor) -> Tensor:
    """The logarithm of a density whose mean is 1, finite at 0."""
    return (density + FLOOR).log()
