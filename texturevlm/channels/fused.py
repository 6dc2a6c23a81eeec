"""The layers of `build` by our kernels (channels.cu, coarse.cu, text.cu): few launches, each writing layers in place.

The functions in this package's other modules are the specification. They also make the layers that have no kernel
(given maps, embeddings, SAM's regions, an OCR model's text), which are then copied into the tensor.

A slot is a layer's channel in the tensor `layers` (B, C, H, W); −1 means not wanted. With `marks`, which are of level
0, a kernel updates only the pixels within reach of a marked tile. Parameters are packed once per shape: a call only
fills in addresses (`template`).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from texturevlm.channels.structure import (
    COARSE_LEVEL,
    COARSER_LEVEL,
    EDGES_REACH,
    LOW_PASS_REACH,
    SALIENCY_LEVELS,
    SALIENCY_REACH,
)
from texturevlm.channels.text import TEXT_REACH
from texturevlm.cuda import HOLE, Layout, address, constants, launch, template
from texturevlm.ops import (
    Marks,
    distance_within_cuda,
    level_extents,
    pack_marks,
    region_sums_cuda,
    seed_grid,
    superpixels,
)
from texturevlm.types import COLOURS, Texture

REGIONS = 50
NEAR = (  # made from a pixel and the window around it
    *("red", "green", "blue", "x", "y", "eccentricity", "edges", "edges_inverted", "high_pass", "motion"),
    *("previous_saliency", "previous_attention"),
)
BEFORE = (*COLOURS, "saliency", "attention")  # what those need of the last frame
WINDOWS = {"edges", "edges_inverted", "high_pass", "edge_distance"}
CLUSTERS = ("cluster_id", "cluster_distance", "cluster_size", "boundaries")
STRUCTURE = ("edges", "edges_inverted", "high_pass", "low_pass", "saliency", "edge_distance", "text")
IN_PARTS = (*COLOURS, *STRUCTURE)  # what can be made where tiles are marked
BY_KERNEL = {*NEAR, *CLUSTERS, "edge_distance", "low_pass", "saliency", "text"}
MOST_LAYERS = 64  # bits of Near.zero

NEAR_TILE, MOST_REGIONS = constants("channels.cu", "NEAR_TILE", "MOST_REGIONS")
(COARSE_TILE,) = constants("coarse.cu", "WIDE")
REGION_TILE = 32
TEXT_LEVELS, LISTING_THREADS = constants("text_tiles.cu", "TEXT_LEVELS", "LISTING_THREADS")
TILES: dict[str, tuple[int, ...]] = {  # rows, columns; the layer's last
    "text_strokes": constants("text.cuh", "STROKES_TILE", "STROKES_TILE"),
    "text_letters": constants("text.cuh", "LETTERS_TALL", "LETTERS_WIDE"),
    "text_lines": constants("text.cuh", "LINES_TALL", "LINES_WIDE"),
    "channels_text": constants("text.cuh", "LAYER_TALL", "LAYER_WIDE"),
}
_LAYERS = Layout("layers.cuh", "Layers").in_order("start", "channels", "height", "width")
_NEAR, _REGIONS = Layout("channels.cu", "Near"), Layout("channels.cu", "RegionLayers")
_COARSE, _LEVEL = Layout("coarse.cu", "Coarse"), Layout("coarse.cu", "Level").in_order("texels", "height", "width")
_SCALE = Layout("text.cuh", "Scale").in_order("image", "strokes", "clean", "letters", "found", "height", "width")
_TEXT, _TILES = Layout("text.cuh", "Text"), Layout("text_tiles.cu", "TextTiles")
_FOUND = Layout("coarse.cu", "Found").in_order("strokes", "height", "width")
_TEXT_LAYER = Layout("coarse.cu", "TextLayer")
_LISTED = HOLE.to_bytes(8, "little")  # `struct Listed` of marks.cuh: one pointer
Job = tuple[Callable[..., bytes], int]  # packs the parameters from addresses, in the struct's order; blocks


@dataclass(frozen=True, eq=False)
class LayerPlan:
    """What makes each layer.

    slots: of the layers that kernels make; rest: names and slots of those that PyTorch makes
    zero:  one bit per layer whose input is missing
    """

    slots: dict[str, int]
    zero: int
    rest: tuple[tuple[str, int], ...]

    def of(self, *names: str) -> list[int]:
        """The slots of these layers."""
        return [self.slots.get(name, -1) for name in names]


@lru_cache(maxsize=64)
def plan(names: tuple[str, ...], unknown: frozenset[str], elsewhere: tuple[str, ...]) -> LayerPlan:
    """unknown: layers that become zero; elsewhere: layers that PyTorch makes, though there is a kernel."""
    slots = {name: slot for slot, name in enumerate(names)}
    made = {name: slot for name, slot in slots.items() if name in BY_KERNEL and name not in unknown.union(elsewhere)}
    rest = tuple((name, slot) for name, slot in slots.items() if name not in made and name not in unknown)
    return LayerPlan(made, sum(1 << slot for name, slot in slots.items() if name in unknown), rest)


def build_layers(
    levels: Sequence[Tensor],
    names: tuple[str, ...],
    *,
    previous: Texture | None,
    unknown: frozenset[str],
    elsewhere: tuple[str, ...],
    layer: Callable[[str], Tensor],
) -> Tensor:
    """(B, C, H, W), level 0 of the layers `names`.

    levels:    colour's mip levels, as many as the layers need, each (B, 3, H_l, W_l) float32
    unknown:   the layers whose input is missing; they become zero
    elsewhere: the layers that `layer` makes, by name, though there is a kernel
    """
    levels = [level.contiguous() for level in levels]
    image = levels[0]
    batch, _, height, width = image.shape
    todo = plan(names, unknown, elsewhere)
    layers = image.new_empty((batch, len(names), height, width))
    edges = _edge_bits(image, todo)
    _near(layers, image, todo, edges, previous, None)
    coarse_layers(layers, levels, *todo.of("low_pass", "saliency"))
    if edges is not None:
        distance_within_cuda(edges, layers.select(1, todo.slots["edge_distance"]))
    if "text" in todo.slots:
        text_layer(layers, levels, todo.slots["text"])
    if not todo.slots.keys().isdisjoint(CLUSTERS):
        rows, columns = seed_grid(height, width, REGIONS)
        ids = superpixels(image, count=REGIONS, backend="cuda")
        sums = region_sums_cuda(ids, rows * columns)
        pack, blocks = _regions_job(layers.shape, todo, rows * columns)
        parameters = pack(layers.data_ptr(), ids.data_ptr(), sums.data_ptr())
        launch("channels.cu", "channels_regions", layers.device, blocks, parameters)
    for name, index in todo.rest:
        layers[:, index] = layer(name)
    return layers


class LayersInPlace:
    """Layers of small reach in a tensor of the caller, updated where tiles are marked.

    names:  of the layers in `layers`, (1, C, H, W)
    which:  the names that are made here, all of them in IN_PARTS
    levels: colour's mip levels, contiguous, at fixed addresses like `layers`
    """

    def __init__(self, layers: Tensor, names: tuple[str, ...], which: Sequence[str], levels: Sequence[Tensor]) -> None:
        self.layers, self.levels = layers, levels
        self._plan = plan(names, frozenset(), tuple(name for name in names if name not in which))
        self._edges = _edge_bits(levels[0], self._plan)
        self._text = self._text_tiles = None
        if "text" in self._plan.slots:
            texels = _text_job(layers.shape, len(levels[:TEXT_LEVELS]), 0, True).texels
            self._text, self._text_tiles = levels[0].new_empty(4 * texels), no_text_tiles(levels)

    def near(self, marks: Marks | None) -> None:
        """Update the layers that read level 0 alone; marks: the tiles that changed, None for all of them."""
        _near(self.layers, self.levels[0], self._plan, self._edges, None, marks)
        if self._edges is not None:
            field = self.layers.select(1, self._plan.slots["edge_distance"])
            distance_within_cuda(self._edges, field, marks=marks, reach=EDGES_REACH)

    def coarse(self, marks: Marks | None) -> None:
        """Update the layers that read coarser levels."""
        coarse_layers(self.layers, self.levels, *self._plan.of("low_pass", "saliency"), marks=marks)

    def text_tiles(self, marks: Marks) -> Tensor | None:
        """List the tiles that `text` must update; needs no levels yet."""
        if self._text_tiles is not None:
            list_text_tiles(self._text_tiles, self.levels, marks, TEXT_REACH)
        return self._text_tiles

    def text(self, tiles: Tensor | None) -> None:
        """Update the text layer; tiles: from `text_tiles`, None for all of them."""
        if self._text is not None:
            text_layer(self.layers, self.levels, self._plan.slots["text"], kept=self._text, tiles=tiles)


def _edge_bits(image: Tensor, todo: LayerPlan) -> Tensor | None:
    """Memory for one bit per pixel, if edges are needed: (B, H, ⌈W / 32⌉), the first pixel's bit lowest."""
    if "edge_distance" not in todo.slots:
        return None
    batch, _, height, width = image.shape
    return torch.empty((batch, height, -(-width // 32)), dtype=torch.int32, device=image.device)


def _near(
    layers: Tensor, image: Tensor, todo: LayerPlan, edges: Tensor | None, previous: Texture | None, marks: Marks | None
) -> None:
    """Layers that depend on a pixel and the window around it, and those that are zero."""
    pack, blocks = _near_job(layers.shape, todo, None if previous is None else previous.names, pack_marks(marks))
    if blocks:
        before = None if previous is None else previous.levels[0].to(image).contiguous()
        parameters = pack(layers.data_ptr(), address(before), image.data_ptr(), address(edges))
        launch("channels.cu", "channels_near", layers.device, blocks, parameters)


@lru_cache(maxsize=256)
def _near_job(shape: torch.Size, todo: LayerPlan, before: tuple[str, ...] | None, marks: bytes | None) -> Job:
    """before: the names of the last frame's layers; one that is missing reads as zero."""
    slots, windows = todo.of(*NEAR), not todo.slots.keys().isdisjoint(WINDOWS)
    there = before or ()
    parameters = _NEAR.pack(
        layers=_LAYERS(HOLE, *shape[1:]),
        before=_LAYERS(HOLE, *((len(there), *shape[2:]) if there else (0, 0, 0))),
        marks=marks, image=HOLE, edges=HOLE, zero=(todo.zero & 0xFFFFFFFF, todo.zero >> 32), slot=slots,
        before_slot=[there.index(name) if name in there else -1 for name in BEFORE], windows=windows,
        diagonal=math.hypot(*shape[2:]),
    )  # fmt: skip
    wanted = windows or todo.zero or max(slots) >= 0
    return template(parameters), _tiles(shape, NEAR_TILE, NEAR_TILE) if wanted else 0


def coarse_layers(
    layers: Tensor, levels: Sequence[Tensor], low_pass: int, saliency: int, *, marks: Marks | None = None
) -> None:
    """low_pass and saliency from colour's mip levels 3, 4 and 5, or the last one in place of those that are missing."""
    if max(low_pass, saliency) < 0:
        return
    last = len(levels) - 1
    pack, blocks = _coarse_job(layers.shape, last, low_pass, saliency, pack_marks(marks))
    parameters = pack(layers.data_ptr(), *[levels[min(level, last)].data_ptr() for level in _COARSE_LEVELS])
    launch("coarse.cu", "channels_coarse", layers.device, blocks, parameters)


_COARSE_LEVELS = (COARSE_LEVEL, SALIENCY_LEVELS[-1], COARSER_LEVEL)


@lru_cache(maxsize=256)
def _coarse_job(shape: torch.Size, last: int, low_pass: int, saliency: int, marks: bytes | None) -> Job:
    extents = level_extents(*shape[2:])
    coarse, middle, coarser = [_LEVEL(HOLE, *extents[min(level, last)]) for level in _COARSE_LEVELS]
    parameters = _COARSE.pack(
        layers=_LAYERS(HOLE, *shape[1:]), coarse=coarse, middle=middle, coarser=coarser, low_pass=low_pass,
        saliency=saliency, reach=max(LOW_PASS_REACH, SALIENCY_REACH), marks=marks,
    )  # fmt: skip
    return template(parameters), _tiles(shape, COARSE_TILE, COARSE_TILE)


@lru_cache(maxsize=256)
def _regions_job(shape: torch.Size, todo: LayerPlan, regions: int) -> Job:
    """The layers CLUSTERS from ids (B, H, W) int32 and sums (B, R, 3) of `region_sums_cuda`."""
    slots = dict(zip(("id", "distance", "size", "boundaries"), todo.of(*CLUSTERS), strict=True))
    layers = _LAYERS(HOLE, *shape[1:])
    parameters = _REGIONS.pack(layers=layers, ids=HOLE, sums=HOLE, regions=regions, side=max(shape[2:]), **slots)
    return template(parameters), _tiles(shape, REGION_TILE, REGION_TILE)


def text_layer(
    layers: Tensor, levels: Sequence[Tensor], slot: int, *, kept: Tensor | None = None, tiles: Tensor | None = None
) -> None:
    """Where text is, from colour's mip levels 0, 1 and 2, as many as there are.

    kept:  intermediate results that the next call with `tiles` needs, 4 per texel of the three levels
    tiles: from `list_text_tiles`: only these are updated, and a block without a tile on its list ends at once
    """
    levels = levels[:TEXT_LEVELS]
    job = _text_job(layers.shape, len(levels), slot, kept is not None)
    memory = layers.new_empty(3 * job.texels) if kept is None else kept
    start, lists = memory.data_ptr(), _lists(tiles)
    addresses: list[int] = []
    for level, offsets in zip(levels, job.offsets):
        addresses += (level.data_ptr(), *[start + offset for offset in offsets])
    parameters = job.pack_text(*addresses, *lists[:3])
    for kernel, count in zip(TILES, job.blocks[:3]):
        launch("text.cu", kernel, layers.device, count, parameters, early=True)
    parameters = job.pack_layer(layers.data_ptr(), *addresses[4::5], lists[3])
    launch("coarse.cu", "channels_text", layers.device, job.blocks[3], parameters, early=True)


class _TextJob(NamedTuple):
    """texels: of all levels; offsets: of a level's strokes, clean, letters and found in memory, in bytes."""

    texels: int
    offsets: tuple[tuple[int, ...], ...]
    blocks: tuple[int, ...]
    pack_text: Callable[..., bytes]
    pack_layer: Callable[..., bytes]


@lru_cache(maxsize=256)
def _text_job(shape: torch.Size, count: int, slot: int, keep: bool) -> _TextJob:
    """keep: what was found does not overwrite the strokes."""
    batch, (*tiles, layer_tile) = shape[0], TILES.values()
    extents = level_extents(shape[2], shape[3], count)
    ends = [4 * batch * sum(rows * columns for rows, columns in extents[:end]) for end in range(count + 1)]
    part = ends[-1]  # of the memory
    offsets = [(start, start + part, start + 2 * part, start + 3 * part * keep) for start in ends[:-1]]
    text = {"batch": batch, "scales": count, "strokes": _LISTED, "letters": _LISTED, "lines": _LISTED}
    text_parameters = _TEXT.pack(scale=[_SCALE(*[HOLE] * 5, *extent) for extent in extents], **text)
    found = [_FOUND(HOLE, *extent) for extent in extents]
    layer_parameters = _TEXT_LAYER.pack(
        layers=_LAYERS(HOLE, *shape[1:]), found=found, levels=count, slot=slot, tiles=_LISTED
    )
    blocks = [sum(_tiles((batch, 1, *extent), *tile) for extent in extents) for tile in tiles]
    blocks.append(_tiles(shape, *layer_tile))
    return _TextJob(part // 4, tuple(offsets), tuple(blocks), template(text_parameters), template(layer_parameters))


def list_text_tiles(lists: Tensor, levels: Sequence[Tensor], marks: Marks, reach: int) -> None:
    """List the tiles that `text_layer` must update, of one image.

    lists:  from `no_text_tiles`: per kernel the number of tiles, and their indices
    levels: as for `text_layer`; layers have the extent of the first
    reach:  of a changed texel, in texels of the first level
    """
    job = _text_job(levels[0].shape, len(levels[:TEXT_LEVELS]), 0, True)
    text = job.pack_text(*[0] * (5 * len(job.offsets) + 3))
    parameters = _TILES.pack(text=text, list=_lists(lists), marks=pack_marks(marks), reach=reach)
    launch("text_tiles.cu", "text_tiles", lists.device, len(lists), parameters, threads=LISTING_THREADS)


def no_text_tiles(levels: Sequence[Tensor]) -> Tensor:
    """Empty lists for `list_text_tiles`."""
    blocks = _text_job(levels[0].shape, len(levels[:TEXT_LEVELS]), 0, True).blocks
    return torch.zeros((len(blocks), 1 + max(blocks)), dtype=torch.int32, device=levels[0].device)


def _lists(tiles: Tensor | None) -> list[int]:
    """The address of each kernel's list; 0: the kernel updates all tiles."""
    return [0] * 4 if tiles is None else [tiles.data_ptr() + 4 * index * tiles.shape[1] for index in range(4)]


def _tiles(shape: Sequence[int], tall: int, wide: int) -> int:
    """How many tiles cover all images of a tensor (B, C, H, W)."""
    return -(-shape[2] // tall) * -(-shape[3] // wide) * shape[0]
