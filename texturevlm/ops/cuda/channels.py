"""Layers of a texture by our kernels (channels.cu, coarse.cu, text.cu), each written where it belongs among the others.

A slot is a layer's place in the tensor `layers` (B, C, H, W); −1 is one that nobody asked for.
"""

import math
import struct
from collections.abc import Sequence

from torch import Tensor

from texturevlm.ops.cuda.launch import address, launch

NEAR_TILE, WIDE = 32, 64  # as in channels.cu and coarse.cu
STROKES_TILE, LETTERS_TILE, LINES_TILE = (32, 32), (64, 32), (32, 64)  # rows and columns, as in text.cu
MOST_REGIONS = 128  # as in channels.cu
MOST_LAYERS = 64  # bits
TEXT_LEVELS = 3
NO_SLOTS = (-1,) * 5
_LAYERS = struct.Struct("=Q3i4x")
_NEAR = struct.Struct("=2Q2I12i5iif4x")
_LEVEL = struct.Struct("=Q2i")
_SLOTS = struct.Struct("=2i")
_REGIONS = struct.Struct("=2Q5if")
_SCALE = struct.Struct("=4Q2i")
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
    batch, _, height, width = image.shape
    parameters = _pack_layers(layers) + (_NO_LAYERS if before is None else _pack_layers(before))
    parameters += _NEAR.pack(
        image.data_ptr(),
        address(edges),
        zero & 0xFFFFFFFF,
        zero >> 32,
        *slots,
        *before_slots,
        windows,
        math.hypot(height, width),
    )
    blocks = _tiles(height, width, (NEAR_TILE, NEAR_TILE)) * batch
    launch("channels.cu", "channels_near", layers.device, blocks, parameters, SCALAR=32)


def coarse_layers(layers: Tensor, levels: Sequence[Tensor], low_pass: int, saliency: int) -> None:
    """low_pass and saliency from colour's mip levels 3, 4 and 5, or the last one in place of those that are missing."""
    batch, _, height, width = layers.shape
    parameters = _pack_layers(layers) + b"".join([_pack_level(level) for level in levels])
    blocks = _tiles(height, width, (WIDE, WIDE)) * batch
    parameters += _SLOTS.pack(low_pass, saliency)
    launch("coarse.cu", "channels_coarse", layers.device, blocks, parameters, SCALAR=32)


def text_layer(layers: Tensor, levels: Sequence[Tensor], slot: int) -> None:
    """Where text is, from colour's mip levels 0, 1 and 2, as many as there are."""
    batch, _, height, width = layers.shape
    levels = levels[:TEXT_LEVELS]
    extents = [(level.shape[2], level.shape[3]) for level in levels]
    texels = sum(rows * columns for rows, columns in extents) * batch
    scratch = layers.new_empty(3 * texels)
    start = scratch.data_ptr()
    scales, found = [], []
    for level, (rows, columns) in zip(levels, extents):
        scales.append(_SCALE.pack(level.data_ptr(), start, start + 4 * texels, start + 8 * texels, rows, columns))
        found.append(_LEVEL.pack(start, rows, columns))
        start += 4 * rows * columns * batch
    missing = TEXT_LEVELS - len(levels)
    parameters = b"".join(scales) + bytes(_SCALE.size * missing) + _SLOTS.pack(batch, len(levels))
    for kernel, tile in (
        ("text_strokes", STROKES_TILE),
        ("text_letters", LETTERS_TILE),
        ("text_lines", LINES_TILE),
    ):
        blocks = sum([_tiles(rows, columns, tile) for rows, columns in extents]) * batch
        launch("text.cu", kernel, layers.device, blocks, parameters, SCALAR=32)
    parameters = _pack_layers(layers) + b"".join(found) + bytes(_LEVEL.size * missing) + _SLOTS.pack(len(levels), slot)
    launch(
        "coarse.cu", "channels_text", layers.device, _tiles(height, width, (32, WIDE)) * batch, parameters, SCALAR=32
    )


def region_layers(layers: Tensor, ids: Tensor, sums: Tensor, slots: Sequence[int]) -> None:
    """The regions' ids, the distance from their centroids, their sizes and their boundaries, in that order of slots.

    ids:  (B, H, W) int32, contiguous
    sums: (B, R, 3) from `region_sums_cuda`, at most MOST_REGIONS regions
    """
    batch, _, height, width = layers.shape
    pointers = (ids.data_ptr(), sums.data_ptr())
    parameters = _pack_layers(layers) + _REGIONS.pack(*pointers, sums.shape[1], *slots, max(height, width))
    blocks = _tiles(height, width, (32, 32)) * batch
    launch("channels.cu", "channels_regions", layers.device, blocks, parameters, SCALAR=32)


def _pack_layers(layers: Tensor) -> bytes:
    return _LAYERS.pack(layers.data_ptr(), *layers.shape[1:])


def _pack_level(level: Tensor) -> bytes:
    return _LEVEL.pack(level.data_ptr(), *level.shape[2:])


def _tiles(height: int, width: int, tile: tuple[int, int]) -> int:
    return -(-height // tile[0]) * -(-width // tile[1])
