"""Where text is, by our kernels (text.cu, text_tiles.cu, and channels_text of coarse.cu), as a layer among others.

Where only some of an image changed, a kernel lists the tiles that each of them has to make before the first begins:
most tiles then are no more than a block that finds no number on its list, and the others begin at once.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from texturevlm.channels.channels_kernel import LEVEL, pack_layers, tiles_of
from texturevlm.cuda.launch import launch
from texturevlm.ops.marks import Marks, packed

TILES = {"text_strokes": (32, 32), "text_letters": (64, 32), "text_lines": (32, 64)}  # rows, columns, as in text.cuh
LAYER_TILE = (16, 64)  # as in text_tiles.cu and coarse.cu
LISTING = 1024  # threads, as in text_tiles.cu
TEXT_LEVELS = 3
_SCALE = struct.Struct("=5Q2i")
_SCALES = struct.Struct("=2i3Q")
_LISTS = struct.Struct("=4Q24si4x")
_LAYER = struct.Struct("=2iQ")


def text_layer(
    layers: Tensor,
    levels: Sequence[Tensor],
    slot: int,
    *,
    kept: Tensor | None = None,
    tiles: Tensor | None = None,
) -> None:
    """Where text is, from colour's mip levels 0, 1 and 2, as many as there are.

    kept:  (`text_memory`,), what the next call with `tiles` needs of this one
    tiles: `list_text_tiles`: only these are made
    """
    levels = levels[:TEXT_LEVELS]
    texels, scales, blocks = _plan(layers.shape[0], tuple([level.shape[2:] for level in levels]))
    memory = layers.new_empty(3 * texels) if kept is None else kept
    start, part = memory.data_ptr(), 4 * texels
    jobs, found = [], []
    for level, (offset, rows, columns) in zip(levels, scales):
        at = start + offset
        result = at if kept is None else at + 3 * part
        jobs.append(_SCALE.pack(level.data_ptr(), at, at + part, at + 2 * part, result, rows, columns))
        found.append(LEVEL.pack(result, rows, columns))
    missing = TEXT_LEVELS - len(levels)
    lists = _lists(tiles)
    parameters = b"".join(jobs) + bytes(_SCALE.size * missing) + _SCALES.pack(layers.shape[0], len(levels), *lists[:3])
    for kernel, count in zip(TILES, blocks):
        launch("text.cu", kernel, layers.device, count, parameters, early=True, SCALAR=32)
    parameters = pack_layers(layers) + b"".join(found) + bytes(LEVEL.size * missing)
    parameters += _LAYER.pack(len(levels), slot, lists[3])
    launch("coarse.cu", "channels_text", layers.device, blocks[3], parameters, early=True, SCALAR=32)


def text_memory(levels: Sequence[Tensor]) -> int:
    """How many numbers `text_layer` keeps."""
    return 4 * sum(level.shape[0] * level.shape[2] * level.shape[3] for level in levels[:TEXT_LEVELS])


def list_text_tiles(lists: Tensor, levels: Sequence[Tensor], marks: Marks, reach: int) -> None:
    """The tiles that `text_layer` has to make, of one image.

    lists:  of `no_text_tiles`: for each of its kernels how many tiles, and their numbers
    levels: as for `text_layer`; layers have the extent of the first
    reach:  how many texels of it a texel acts on the layer
    """
    levels = levels[:TEXT_LEVELS]
    scales = b"".join([_SCALE.pack(*[0] * 5, *level.shape[2:]) for level in levels])
    parameters = scales + bytes(_SCALE.size * (TEXT_LEVELS - len(levels))) + _SCALES.pack(1, len(levels), 0, 0, 0)
    parameters += _LISTS.pack(*_lists(lists), packed(marks), reach)
    launch("text_tiles.cu", "text_tiles", lists.device, len(lists), parameters, threads=LISTING, SCALAR=32)


def no_text_tiles(levels: Sequence[Tensor]) -> Tensor:
    """Lists for `list_text_tiles`, with nothing on them yet."""
    blocks = _plan(levels[0].shape[0], tuple([level.shape[2:] for level in levels[:TEXT_LEVELS]]))[2]
    return torch.zeros((len(blocks), 1 + max(blocks)), dtype=torch.int32, device=levels[0].device)


def _lists(tiles: Tensor | None) -> list[int]:
    """Where each kernel's list begins; 0: it makes all."""
    return [0] * 4 if tiles is None else [tiles.data_ptr() + 4 * index * tiles.shape[1] for index in range(4)]


@lru_cache(maxsize=256)
def _plan(batch: int, extents: tuple[torch.Size, ...]) -> tuple[int, tuple[tuple[int, int, int], ...], tuple[int, ...]]:
    """The texels of all scales; where each begins, in bytes, and its extent; the blocks of each kernel."""
    texels, scales = 0, []
    for rows, columns in extents:
        scales.append((4 * texels, rows, columns))
        texels += rows * columns * batch
    blocks = [sum(tiles_of(rows, columns, tile) for rows, columns in extents) * batch for tile in TILES.values()]
    rows, columns = extents[0]
    return texels, tuple(scales), (*blocks, tiles_of(rows, columns, LAYER_TILE) * batch)
