"""A vision tower that attends hierarchically, or in windows: of the Qwen-VL families and GLM-V, whose rows are flat.

The patches of a segment (an image, a moment of a video, or a level of detail that stands apart) are laid out along the
quadtree of their tokens, once per pass for all blocks. transformers calls the implementation segment by segment, so
attention never crosses images. Positions are rotated into queries and keys before that, and stay as they are. Blocks of
Qwen2.5-VL that attend in windows of their own are left alone; the others find its patches window by window, and blocks
of keys follow that order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from texturevlm.ops import quadtree_order
from texturevlm.vlm import Override, is_packed, unpack
from texturevlm.vlm.places import FINER
from texturevlm_lab.attention.block_layout import BlockLayout
from texturevlm_lab.attention.hierarchical import attend_laid_out
from texturevlm_lab.attention.implementation import IMPLEMENTATION, Named
from texturevlm_lab.attention.options import TOWER, AttentionOptions, check_tower_attention
from texturevlm_lab.attention.token_order import token_levels

PASS = "texturevlm_pass"  # argument that the tower hands to the attention of its blocks


def attend_in_tower(adapter: Any, options: AttentionOptions) -> None:
    """Hook the tower of a bound adapter, until the adapter is restored."""
    check_tower_attention("attend_in_tower", adapter.config)
    _not_causal("attend_in_tower", adapter.trained.levels == "causal")
    if adapter.tower.config._attn_implementation == IMPLEMENTATION:
        raise ValueError("attend_in_tower: tower must attend densely, got one that is hooked; detach it first")
    adapter.also(TowerAttention(adapter, options).hooks())


@dataclass(eq=False)
class TowerPass:
    """One pass through the tower.

    layouts: one per segment
    chosen:  by the layer that chose last, per segment
    layer:   that runs
    turn:    segments of it that were run
    """

    layouts: list[BlockLayout]
    chosen: dict[int, Tensor] = field(default_factory=dict)
    layer: int = -1
    turn: int = 0

    def next_segment(self, layer: int) -> int:
        """The number of the segment that a layer asks for: it asks for one after the other."""
        if layer != self.layer:
            self.layer, self.turn = layer, 0
        self.turn += 1
        return (self.turn - 1) % len(self.layouts)


class TowerAttention:
    """The hooks of one tower. What belongs to a pass travels with it: several threads may run one model."""

    def __init__(self, adapter: Any, options: AttentionOptions) -> None:
        self.adapter, self.options = adapter, options

    def hooks(self) -> Iterator[Any]:
        """Hook the tower; yields what has `remove`."""
        tower = self.adapter.tower
        self._tower = Override(tower, "forward", self._tower_forward)
        yield self._tower
        whole = [tower.blocks[number].attn for number in sorted(self.adapter.whole_blocks)]
        yield Named(self, whole, tower.config)

    def _tower_forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        grid = kwargs["grid_thw"] if "grid_thw" in kwargs else args[0]
        found = TowerPass(self._layouts(*self._tokens(hidden_states, grid)))
        return self._tower.original(hidden_states, *args, **kwargs, **{PASS: found})

    def _tokens(self, rows: Tensor, grid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of every token: its place (n, 2), its level (n,), and whether it begins a segment (n,)."""
        merge = self.adapter.merge
        if is_packed(rows, self.adapter.row_width):
            geometry = unpack(rows, self.adapter.row_width)[1].of_tokens(merge)
            begins = geometry.begins[:, 0]
            _not_causal("forward", "causal" in self.adapter.levels and bool((begins == FINER).any()))
            return geometry.token, token_levels(self.adapter, rows), begins > 0.5
        places = []
        for moments, height, width in grid.tolist():
            sides = (torch.arange(side // merge, device=rows.device) for side in (height, width))
            places += [torch.cartesian_prod(*sides).view(-1, 2)] * moments
        first = torch.tensor([0, *map(len, places[:-1])], device=rows.device).cumsum(0)
        place = torch.cat(places)
        begins = torch.zeros(len(place), dtype=torch.bool, device=rows.device).index_fill(0, first, True)
        return place, torch.zeros_like(place[:, 0]), begins

    def _layouts(self, place: Tensor, level: Tensor, begins: Tensor) -> list[BlockLayout]:
        own, patches = self.options, self.adapter.merge**2
        ordered = len(self.adapter.whole_blocks) < len(self.adapter.tower.blocks)  # by its own windows
        counts = begins.cumsum(0).bincount()[1:].tolist()
        found = []
        for one, levels in zip(place.split(counts), level.split(counts)):
            count, visual = len(one) * patches, None
            if not ordered:
                first = quadtree_order(one, levels)[:, None] * patches
                visual = (first + torch.arange(patches, device=place.device)).flatten()
            found.append(
                BlockLayout.of(
                    1,
                    count,
                    count,
                    visual=visual,
                    block=own.block,
                    group=own.group,
                    neighbours=None if own.kind == "linear" else own.neighbours,
                    device=place.device,
                )
            )
        return found

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> Tensor | None:
        """The output of one layer for one segment, (1, H, N, D); None in a pass that did not come through our hook."""
        own, running = self.options, options.get(PASS)
        if running is None:
            return None
        segment = running.next_segment(layer)
        out, running.chosen[segment] = attend_laid_out(
            q,
            k,
            v,
            running.layouts[segment],
            scale=options["scaling"],
            fine=own.fine,
            kind=own.kind,
            rank=own.rank,
            chosen=running.chosen[segment] if layer % own.share else None,
        )
        return out


def _not_causal(function: str, causal: bool) -> None:
    if causal:
        raise ValueError(f"{function}: levels must be joint or apart with {TOWER}, got causal")
