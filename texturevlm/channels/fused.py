"""The layers of `build` by our kernels: few launches, each reading what it needs once and writing layers in place.

The functions in this package's other modules are the specification. They also make the layers that have no kernel
(given maps, embeddings, SAM's regions, an OCR model's text), which are then copied into the tensor.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from texturevlm.channels import channels_kernel as kernels
from texturevlm.channels import text_kernel as text
from texturevlm.channels.saliency import SALIENCY_LEVELS, SALIENCY_REACH
from texturevlm.channels.structure import COARSE_LEVEL, COARSER_LEVEL, EDGES_REACH, LOW_PASS_REACH
from texturevlm.channels.text import TEXT_REACH
from texturevlm.ops.distance import distance_within_cuda
from texturevlm.ops.marks import Marks
from texturevlm.ops.segment import region_sums_cuda, seed_grid, superpixels
from texturevlm.types import COLOURS, Texture

REGIONS = 50
NEAR = (
    *("red", "green", "blue", "x", "y", "eccentricity", "edges", "edges_inverted", "high_pass", "motion"),
    *("previous_saliency", "previous_attention"),
)
BEFORE = (*COLOURS, "saliency", "attention")  # what those need of the last frame
WINDOWS = {"edges", "edges_inverted", "high_pass", "edge_distance"}
CLUSTERS = ("cluster_id", "cluster_distance", "cluster_size", "boundaries")
STRUCTURE = ("edges", "edges_inverted", "high_pass", "low_pass", "saliency", "edge_distance", "text")
IN_PARTS = (*COLOURS, *STRUCTURE)  # what can be made where tiles are marked
BY_KERNEL = {*NEAR, *CLUSTERS, "edge_distance", "low_pass", "saliency", "text"}


@dataclass(frozen=True)
class LayerPlan:
    """Which kernels run, and where each layer goes; a slot is its index among the layers, −1 for none.

    zero: one bit per layer whose input is missing; rest: the names that no kernel makes, with their slots
    """

    near: tuple[int, ...]
    zero: int
    windows: bool
    edge_distance: int
    low_pass: int
    saliency: int
    text: int
    clusters: tuple[int, ...]
    rest: tuple[tuple[str, int], ...]


@lru_cache(maxsize=64)
def plan(names: tuple[str, ...], unknown: frozenset[str], elsewhere: tuple[str, ...]) -> LayerPlan:
    """unknown: layers that become zero; elsewhere: layers that PyTorch makes, though there is a kernel."""
    other = unknown.union(elsewhere)
    slots = {name: slot for slot, name in enumerate(names) if name in BY_KERNEL and name not in other}
    return LayerPlan(
        near=tuple(slots.get(name, -1) for name in NEAR),
        zero=sum(1 << slot for slot, name in enumerate(names) if name in unknown),
        windows=bool(WINDOWS & slots.keys()),
        edge_distance=slots.get("edge_distance", -1),
        low_pass=slots.get("low_pass", -1),
        saliency=slots.get("saliency", -1),
        text=slots.get("text", -1),
        clusters=tuple(slots.get(name, -1) for name in CLUSTERS),
        rest=tuple((name, slot) for slot, name in enumerate(names) if name not in slots and name not in unknown),
    )


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
    edges = edge_bits(image) if todo.edge_distance >= 0 else None
    _near(layers, image, todo, edges, previous, None)
    _coarse(layers, levels, todo, None)
    if edges is not None:
        distance_within_cuda(edges, layers.select(1, todo.edge_distance))
    if todo.text >= 0:
        text.text_layer(layers, levels, todo.text)
    if max(todo.clusters) >= 0:
        rows, columns = seed_grid(height, width, REGIONS)
        ids = superpixels(image, count=REGIONS, backend="cuda")
        kernels.region_layers(layers, ids, region_sums_cuda(ids, rows * columns), todo.clusters)
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
        self._edges = edge_bits(levels[0]) if self._plan.edge_distance >= 0 else None
        self._text = self._text_tiles = None
        if self._plan.text >= 0:
            self._text = levels[0].new_empty(text.text_memory(levels))
            self._text_tiles = text.no_text_tiles(levels)

    def near(self, marks: Marks | None) -> None:
        """Update the layers that read level 0 alone; marks: the tiles that changed, None for all of them."""
        _near(self.layers, self.levels[0], self._plan, self._edges, None, marks)
        if self._edges is not None:
            field = self.layers.select(1, self._plan.edge_distance)
            distance_within_cuda(self._edges, field, marks=marks, reach=EDGES_REACH)

    def coarse(self, marks: Marks | None) -> None:
        """Update the layers that read coarser levels."""
        _coarse(self.layers, self.levels, self._plan, marks)

    def text_tiles(self, marks: Marks) -> Tensor | None:
        """List the tiles that `text` must update; needs no levels yet."""
        if self._text_tiles is not None:
            text.list_text_tiles(self._text_tiles, self.levels, marks, TEXT_REACH)
        return self._text_tiles

    def text(self, tiles: Tensor | None) -> None:
        """Update the text layer; tiles: from `text_tiles`, None for all of them."""
        if self._text is not None:
            text.text_layer(self.layers, self.levels, self._plan.text, kept=self._text, tiles=tiles)


def edge_bits(image: Tensor) -> Tensor:
    """Memory for one bit per pixel."""
    batch, _, height, width = image.shape
    return torch.empty((batch, height, -(-width // 32)), dtype=torch.int32, device=image.device)


def _near(
    layers: Tensor, image: Tensor, todo: LayerPlan, edges: Tensor | None, previous: Texture | None, marks: Marks | None
) -> None:
    if not (todo.windows or todo.zero or max(todo.near) >= 0):
        return
    kernels.near_layers(
        layers,
        image,
        todo.near,
        todo.zero,
        windows=todo.windows,
        edges=edges,
        before=None if previous is None else previous.levels[0].to(image).contiguous(),
        before_slots=kernels.NO_SLOTS if previous is None else _before_slots(previous.names),
        marks=marks,
    )


def _coarse(layers: Tensor, levels: Sequence[Tensor], todo: LayerPlan, marks: Marks | None) -> None:
    if max(todo.low_pass, todo.saliency) < 0:
        return
    wanted = [levels[min(level, len(levels) - 1)] for level in (COARSE_LEVEL, SALIENCY_LEVELS[-1], COARSER_LEVEL)]
    reach = max(LOW_PASS_REACH, SALIENCY_REACH)
    kernels.coarse_layers(layers, wanted, todo.low_pass, todo.saliency, marks=marks, reach=reach)


@lru_cache(maxsize=64)
def _before_slots(names: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(names.index(name) if name in names else -1 for name in BEFORE)
