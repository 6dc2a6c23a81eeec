"""Layers of a texture by our kernels (channels.cu, coarse.cu), each written to its channel of one tensor.

A slot is a layer's channel in the tensor `layers` (B, C, H, W); −1 means not wanted. With `marks` a kernel updates only
the pixels within reach of a marked tile. Marks are of level 0.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from texturevlm.cuda.launch import launch
from texturevlm.cuda.struct import Layout, constants
from texturevlm.ops.marks import Marks, pack_marks

NEAR_TILE, MOST_REGIONS = constants("channels.cu", "NEAR_TILE", "MOST_REGIONS")
(COARSE_TILE,) = constants("coarse.cu", "WIDE")
MOST_LAYERS = 64  # bits of Near.zero
NO_SLOTS = (-1,) * 5
_LAYERS = Layout("layers.cuh", "Layers").in_order("start", "channels", "height", "width")
_NEAR, _REGIONS = Layout("channels.cu", "Near"), Layout("channels.cu", "RegionLayers")
_COARSE, _LEVEL = Layout("coarse.cu", "Coarse"), Layout("coarse.cu", "Level").in_order("texels", "height", "width")


def near_layers(
    layers: Tensor,
    image: Tensor,
    slots: Sequence[int],
    zero: int,
    *,
    windows: bool,
    edges: Tensor | None = None,
    before: Tensor | None = None,
    before_slots: Sequence[int] = NO_SLOTS,
    marks: Marks | None = None,
) -> None:
    """Layers that depend on a pixel and the window around it.

    image:   (B, 3, H, W), contiguous
    slots:   of red, green, blue, x, y, eccentricity, edges, edges_inverted, high_pass, motion, and of the last frame's
             saliency and attention
    zero:    one bit per slot that becomes zero
    windows: whether edges, edges_inverted, high_pass or `edges` are wanted
    edges:   (B, H, ⌈W / 32⌉) int32, gets one bit per pixel that is an edge, the first pixel's lowest
    before:  (B, C', H, W), contiguous: the last frame's layers
    before_slots: of its red, green, blue, saliency and attention; −1 reads as zero
    """
    parameters = _NEAR.pack(
        layers=pack_layers(layers), before=None if before is None else pack_layers(before), marks=pack_marks(marks),
        image=image, edges=edges, zero=(zero & 0xFFFFFFFF, zero >> 32), slot=slots, before_slot=before_slots,
        windows=windows, diagonal=math.hypot(*image.shape[2:]),
    )  # fmt: skip
    blocks = _blocks(layers.shape, (NEAR_TILE, NEAR_TILE))
    launch("channels.cu", "channels_near", layers.device, blocks, parameters)


def coarse_layers(
    layers: Tensor,
    levels: Sequence[Tensor],
    low_pass: int,
    saliency: int,
    *,
    marks: Marks | None = None,
    reach: int = 0,
) -> None:
    """low_pass and saliency from colour's mip levels 3, 4 and 5, or the last one in place of those that are missing.

    reach: of a change, in texels of the layers' own level, for `marks`
    """
    coarse, middle, coarser = [_LEVEL(level.data_ptr(), *level.shape[2:]) for level in levels]
    parameters = _COARSE.pack(
        layers=pack_layers(layers), coarse=coarse, middle=middle, coarser=coarser, low_pass=low_pass, saliency=saliency,
        reach=reach, marks=pack_marks(marks),
    )  # fmt: skip
    blocks = _blocks(layers.shape, (COARSE_TILE, COARSE_TILE))
    launch("coarse.cu", "channels_coarse", layers.device, blocks, parameters)


def region_layers(layers: Tensor, ids: Tensor, sums: Tensor, slots: Sequence[int]) -> None:
    """The regions' ids, the distance from their centroids, their sizes and their boundaries, in that order of slots.

    ids:  (B, H, W) int32, contiguous
    sums: (B, R, 3) from `region_sums_cuda`, at most MOST_REGIONS regions
    """
    of_slots = dict(zip(("id", "distance", "size", "boundaries"), slots, strict=True))
    parameters = _REGIONS.pack(
        layers=pack_layers(layers), ids=ids, sums=sums, regions=sums.shape[1], side=max(layers.shape[2:]), **of_slots
    )
    launch("channels.cu", "channels_regions", layers.device, _blocks(layers.shape, (32, 32)), parameters)


def pack_layers(layers: Tensor) -> bytes:
    """`struct Layers` of layers.cuh."""
    return _LAYERS(layers.data_ptr(), *layers.shape[1:])


@lru_cache(maxsize=256)
def _blocks(shape: torch.Size, tile: tuple[int, int]) -> int:
    batch, _, height, width = shape
    return tiles_of(height, width, tile) * batch


def tiles_of(height: int, width: int, tile: tuple[int, ...]) -> int:
    """How many tiles cover an image."""
    return -(-height // tile[0]) * -(-width // tile[1])
