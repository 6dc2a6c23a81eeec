"""The text layer by our kernels (text.cu, text_tiles.cu, and channels_text of coarse.cu).

If only part of an image changed, `text_tiles` first lists the tiles that each kernel has to update. A block without a
tile on its list ends at once.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from texturevlm.channels.channels_kernel import pack_layers, tiles_of
from texturevlm.cuda.launch import launch
from texturevlm.cuda.struct import Layout, constants
from texturevlm.ops.marks import Marks, pack_marks

TEXT_LEVELS, LISTING_THREADS = constants("text_tiles.cu", "TEXT_LEVELS", "LISTING_THREADS")
TILES: dict[str, tuple[int, ...]] = {  # rows, columns; the layer's last
    "text_strokes": constants("text.cuh", "STROKES_TILE", "STROKES_TILE"),
    "text_letters": constants("text.cuh", "LETTERS_TALL", "LETTERS_WIDE"),
    "text_lines": constants("text.cuh", "LINES_TALL", "LINES_WIDE"),
    "channels_text": constants("text.cuh", "LAYER_TALL", "LAYER_WIDE"),
}
_SCALE = Layout("text.cuh", "Scale").in_order("image", "strokes", "clean", "letters", "found", "height", "width")
_TEXT, _TILES = Layout("text.cuh", "Text"), Layout("text_tiles.cu", "TextTiles")
_FOUND = Layout("coarse.cu", "Found").in_order("strokes", "height", "width")
_LAYER = Layout("coarse.cu", "TextLayer")


def text_layer(
    layers: Tensor,
    levels: Sequence[Tensor],
    slot: int,
    *,
    kept: Tensor | None = None,
    tiles: Tensor | None = None,
) -> None:
    """Where text is, from colour's mip levels 0, 1 and 2, as many as there are.

    kept:  (`text_memory`,), intermediate results that the next call with `tiles` needs
    tiles: from `list_text_tiles`: only these are updated
    """
    levels = levels[:TEXT_LEVELS]
    texels, scales, blocks = _plan(layers.shape[0], tuple([level.shape[2:] for level in levels]))
    memory = layers.new_empty(3 * texels) if kept is None else kept
    start, part = memory.data_ptr(), 4 * texels
    jobs, found = [], []
    for level, (offset, rows, columns) in zip(levels, scales):
        at = start + offset
        result = at if kept is None else at + 3 * part
        jobs.append(_SCALE(level.data_ptr(), at, at + part, at + 2 * part, result, rows, columns))
        found.append(_FOUND(result, rows, columns))
    lists = _lists(tiles)
    parameters = _pack_text(layers.shape[0], jobs, lists)
    for kernel, count in zip(TILES, blocks[:3]):
        launch("text.cu", kernel, layers.device, count, parameters, early=True)
    parameters = _LAYER.pack(
        layers=pack_layers(layers), found=found, levels=len(levels), slot=slot, tiles=_listed(lists[3])
    )
    launch("coarse.cu", "channels_text", layers.device, blocks[3], parameters, early=True)


def text_memory(levels: Sequence[Tensor]) -> int:
    """How many numbers `text_layer` keeps."""
    return 4 * sum(level.shape[0] * level.shape[2] * level.shape[3] for level in levels[:TEXT_LEVELS])


def list_text_tiles(lists: Tensor, levels: Sequence[Tensor], marks: Marks, reach: int) -> None:
    """List the tiles that `text_layer` must update, of one image.

    lists:  from `no_text_tiles`: per kernel the number of tiles, and their indices
    levels: as for `text_layer`; layers have the extent of the first
    reach:  of a changed texel, in texels of the first level
    """
    levels = levels[:TEXT_LEVELS]
    text = _pack_text(1, [_SCALE(*[0] * 5, *level.shape[2:]) for level in levels], [0] * 3)
    parameters = _TILES.pack(text=text, list=_lists(lists), marks=pack_marks(marks), reach=reach)
    launch("text_tiles.cu", "text_tiles", lists.device, len(lists), parameters, threads=LISTING_THREADS)


def no_text_tiles(levels: Sequence[Tensor]) -> Tensor:
    """Empty lists for `list_text_tiles`."""
    blocks = _plan(levels[0].shape[0], tuple([level.shape[2:] for level in levels[:TEXT_LEVELS]]))[2]
    return torch.zeros((len(blocks), 1 + max(blocks)), dtype=torch.int32, device=levels[0].device)


def _pack_text(batch: int, scales: Sequence[bytes], lists: Sequence[int]) -> bytes:
    strokes, letters, lines = map(_listed, lists[:3])
    return _TEXT.pack(scale=scales, batch=batch, scales=len(scales), strokes=strokes, letters=letters, lines=lines)


def _listed(list_start: int) -> bytes:
    """`struct Listed` of marks.cuh: one pointer."""
    return list_start.to_bytes(8, "little")


def _lists(tiles: Tensor | None) -> list[int]:
    """The address of each kernel's list; 0: the kernel updates all tiles."""
    return [0] * 4 if tiles is None else [tiles.data_ptr() + 4 * index * tiles.shape[1] for index in range(4)]


@lru_cache(maxsize=256)
def _plan(batch: int, extents: tuple[torch.Size, ...]) -> tuple[int, tuple[tuple[int, int, int], ...], tuple[int, ...]]:
    """The texels of all scales; where each begins, in bytes, and its extent; the blocks of each kernel."""
    texels, scales = 0, []
    for rows, columns in extents:
        scales.append((4 * texels, rows, columns))
        texels += rows * columns * batch
    *tiles, layer_tile = TILES.values()
    blocks = [sum(tiles_of(rows, columns, tile) for rows, columns in extents) * batch for tile in tiles]
    return texels, tuple(scales), (*blocks, tiles_of(extents[0][0], extents[0][1], layer_tile) * batch)
