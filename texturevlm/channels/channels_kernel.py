"""Layers of a texture by our kernels (channels.cu, coarse.cu), each written where it belongs among the others.

A slot is a layer's place in the tensor `layers` (B, C, H, W); −1 is one that nobody asked for. With `marks` a kernel
makes only what the marked tiles act on, and leaves the rest of its layers as it is; the marks are of pixels of level 0.
"""

import math
import struct
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from texturevlm.cuda.launch import address, launch
from texturevlm.ops.marks import Marks, packed

NEAR_TILE, WIDE = 32, 64  # as in channels.cu and coarse.cu
MOST_REGIONS = 128  # as in channels.cu
MOST_LAYERS = 64  # bits
NO_SLOTS = (-1,) * 5
_LAYERS = struct.Struct("=Q3i4x")
_NEAR = struct.Struct("=24s2Q2I12i5iif4x")
LEVEL = struct.Struct("=Q2i")
_SLOTS = struct.Struct("=3i4x24s")
_REGIONS = struct.Struct("=2Q5if")
_NO_LAYERS = bytes(_LAYERS.size)


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
    """What follows from a pixel and the window around it.

    image:   (B, 3, H, W), contiguous
    slots:   of red, green, blue, x, y, eccentricity, edges, edges_inverted, high_pass, motion, and of the last frame's
             saliency and attention
    zero:    a bit for each slot that becomes zero
    windows: whether edges, edges_inverted, high_pass or `edges` are wanted
    edges:   (B, H, ⌈W / 32⌉) int32, gets a bit for each pixel that is an edge, the first pixel's lowest
    before:  (B, C', H, W), contiguous: the last frame's layers
    before_slots: of its red, green, blue, saliency and attention; one that it lacks counts as zero
    """
    parameters = pack_layers(layers) + (_NO_LAYERS if before is None else pack_layers(before))
    parameters += _NEAR.pack(
        packed(marks),
        image.data_ptr(),
        address(edges),
        zero & 0xFFFFFFFF,
        zero >> 32,
        *slots,
        *before_slots,
        windows,
        math.hypot(*image.shape[2:]),
    )
    blocks = _blocks(layers.shape, (NEAR_TILE, NEAR_TILE))
    launch("channels.cu", "channels_near", layers.device, blocks, parameters, SCALAR=32)


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

    reach: how many texels of the layers' own level a texel acts, for `marks`
    """
    colour = b"".join([LEVEL.pack(level.data_ptr(), *level.shape[2:]) for level in levels])
    parameters = pack_layers(layers) + colour + _SLOTS.pack(low_pass, saliency, reach, packed(marks))
    launch("coarse.cu", "channels_coarse", layers.device, _blocks(layers.shape, (WIDE, WIDE)), parameters, SCALAR=32)


def region_layers(layers: Tensor, ids: Tensor, sums: Tensor, slots: Sequence[int]) -> None:
    """The regions' ids, the distance from their centroids, their sizes and their boundaries, in that order of slots.

    ids:  (B, H, W) int32, contiguous
    sums: (B, R, 3) from `region_sums_cuda`, at most MOST_REGIONS regions
    """
    longer = max(layers.shape[2:])
    parameters = pack_layers(layers) + _REGIONS.pack(ids.data_ptr(), sums.data_ptr(), sums.shape[1], *slots, longer)
    launch("channels.cu", "channels_regions", layers.device, _blocks(layers.shape, (32, 32)), parameters, SCALAR=32)


def pack_layers(layers: Tensor) -> bytes:
    """`struct Layers` of layers.cuh."""
    return _LAYERS.pack(layers.data_ptr(), *layers.shape[1:])


@lru_cache(maxsize=256)
def _blocks(shape: torch.Size, tile: tuple[int, int]) -> int:
    batch, _, height, width = shape
    return tiles_of(height, width, tile) * batch


def tiles_of(height: int, width: int, tile: tuple[int, int]) -> int:
    """How many tiles cover an image."""
    return -(-height // tile[0]) * -(-width // tile[1])
