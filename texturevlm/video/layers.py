"""The channels of a stream: each refreshed as far around the changed tiles as a changed pixel acts in it.

Small reach: `build` is asked for the tiles, grown by the channel's reach, on a cut-out of the mip levels with another
reach around it; what it gives there is what it would give for the whole frame. Where the frame's sides are not a
multiple of the coarsest texel that a channel reads, mip texels of a cut-out would not be those of the frame, and that
channel is built in whole. Text is the dearest and reads three levels, so each level keeps its own map of strokes.

On a GPU the kernels do the same: each takes the marks of the tiles that changed and leaves the rest as it is
(`texturevlm.channels.fused.LayersInPlace`); only a base level coarser than the image is built in whole there.

Global reach (clusters, boundaries, embeddings): made at a keyframe, and again once the tiles that changed since then
are a quarter of all; in between clusters are left as they are, and embeddings are carried by the flow. Positions are
written once. Maps that are carried from frame to frame (channels 15 to 17) are given to `give`, and are rewritten in
whole, since they fade everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.channels import CHANNELS, DenseEncoder, Projection, build
from texturevlm.channels.build import DEEPEST, MOST_TEXELS
from texturevlm.channels.fused import IN_PARTS, LayersInPlace
from texturevlm.channels.registry import EMBEDDING
from texturevlm.ops.marks import Marks
from texturevlm.ops.mip import level_extents, mipmap, update_region
from texturevlm.ops.mip_kernel import MOVED, UNCHANGED, update_marked_cuda
from texturevlm.types import COLOURS, Texture
from texturevlm.video.canvas import Canvas
from texturevlm.video.change import Changes
from texturevlm.video.strokes import Strokes
from texturevlm.video.tiles import Rectangle, enlarged, grown, rather_whole, rectangles

FIXED = ("x", "y", "eccentricity", "attention", "gaze", "previous_attention")  # of positions, or of nothing here
CARRIED = ("previous_relevance", "previous_saliency", "fixation_history")
AGAIN = 0.25  # of the tiles changed since channels of global reach were made: they are made again


class Layers:
    """Channels of the frame that a canvas holds, with mips, at fixed addresses.

    marked:  whether kernels refresh what marked tiles act on
    texture: the same object for the life of the stream
    parts:   the kernels' side, if they do
    """

    def __init__(
        self,
        names: Sequence[str],
        canvas: Canvas,
        *,
        marked: bool = False,
        encoder: DenseEncoder | None = None,
        projection: Projection | None = None,
    ) -> None:
        self.names, self.canvas = tuple(names), canvas
        self.models: dict[str, Any] = {"encoder": encoder, "projection": projection}
        extents = level_extents(*canvas.size)
        self.base = next(i for i, (height, width) in enumerate(extents) if height * width <= MOST_TEXELS)
        shape = (1, len(self.names))
        device = canvas.levels[0].device
        self.levels = tuple(torch.zeros(*shape, *extent, device=device) for extent in extents[self.base :])
        self.reduce = tuple(CHANNELS[name].reduce for name in self.names)
        self.texture = Texture(self.levels, self.names, canvas.size, self.reduce)
        self._places: dict[tuple[str, ...], Tensor] = {}
        self.changed = np.zeros(0, dtype=bool)  # since the channels of global reach were made
        self.moved: list[Rectangle] = []  # where the motion channel is not zero
        self._placed = [name for name in self.names if name in IN_PARTS]
        self.parts = None
        if marked and self.base == 0:
            self.parts = LayersInPlace(self.levels[0], self.names, self._placed, canvas.levels)
        self._strokes = Strokes(canvas.levels) if self._in_parts and "text" in self.names else None
        whole = self.parts is None and not self._in_parts
        self._before = canvas.levels[0].clone() if "motion" in self.names and whole else None

    @property
    def _in_parts(self) -> bool:
        """Rectangles, as on a CPU; on a GPU all layers of the whole frame are made faster than many are launched."""
        return self.parts is None and not self.canvas.levels[0].is_cuda and self.base == 0

    @property
    def motion(self) -> Tensor | None:
        """(H, W), where the kernel that takes tiles over writes how much they moved; None if nobody asked for it."""
        if self.parts is None or "motion" not in self.names:
            return None
        return self.levels[0][0, self.names.index("motion")]

    def remake(self) -> None:
        """Everything, from the frame that is held; nothing moved."""
        if self._before is not None:
            self._before.copy_(self.canvas.levels[0])
        placed = [] if self.parts is None else self._placed
        self._whole([name for name in self.names if name not in CARRIED and name not in placed])
        self._place()
        if self._strokes is not None:
            self._strokes.remake(self.canvas.levels)
        self.moved, self.changed = [], np.zeros(0, dtype=bool)

    def refresh_mips(self, marks: Marks, either: Marks) -> None:
        """The mip levels of what `parts` made, but for text; either: the marks, and those of the frame before."""
        reach = tuple([UNCHANGED if name == "text" else self._reach.get(name, UNCHANGED) for name in self.names])
        if set(reach) != {UNCHANGED}:
            update_marked_cuda(self.levels, self.reduce, marks, reach=reach, either=either)

    def refresh_text_mips(self, marks: Marks) -> None:
        """Those of the text layer, which takes longest; right after `parts.text`."""
        if "text" in self._reach:
            slot = self.names.index("text")
            one = [level[:, slot : slot + 1] for level in self.levels]
            update_marked_cuda(one, self.reduce[slot : slot + 1], marks, reach=(self._reach["text"],), early=True)

    def refresh(self, changes: Changes, before: Mapping[Rectangle, Tensor]) -> bool:
        """What the tiles that changed act on.

        before: what the canvas held in the rectangles of changed tiles until now (only a CPU's stream needs it)
        returns whether channels of global reach were made again
        """
        again = self.refresh_everywhere(changes)
        if self.parts is not None:  # the kernels have done the rest
            return again
        small = [name for name in self.names if name not in (*FIXED, *CARRIED) and CHANNELS[name].reach is not None]
        if not self._in_parts:
            self._whole(small)
            if self._before is not None:
                self._before.copy_(self.canvas.levels[0])
            return again
        if "motion" in small:
            small.remove("motion")
            self._motion(before)
        for group in _groups(small):
            self._part(group, changes.marked)
        return again

    def refresh_everywhere(self, changes: Changes) -> bool:
        """The channels of global reach, if enough has changed since they were made; whether that was so."""
        self.changed = changes.marked | self.changed if self.changed.size else changes.marked.copy()
        everywhere = [name for name in self.names if CHANNELS[name].reach is None]
        again = bool(everywhere) and self.changed.mean() > AGAIN
        if again:
            self._whole(everywhere)
            self.changed = np.zeros_like(changes.marked)
        return again

    def stand_still(self) -> None:
        """The motion channel of a frame in which nothing moved; where kernels refresh it, they have done so."""
        if self.parts is None and "motion" in self.names:
            if not self._in_parts:
                self._whole(["motion"])
            elif self.moved:
                self._motion({})

    def cells(self, names: Sequence[str], grid: tuple[int, int]) -> Tensor:
        """(1, C, h, w): layers on a grid of cells, a mip level of the frame."""
        slots = [self.names.index(name) for name in names]
        level = next((one for one in self.levels if one.shape[2:] == grid), self.levels[0])
        return functional.interpolate(level[:, slots], grid, mode="area")

    def give(self, maps: Mapping[str, Tensor]) -> None:
        """Rewrite carried channels from maps (1, h, w) of any extent."""
        wanted = [name for name in maps if name in self.names]
        for name in wanted:
            size = self.levels[0].shape[2:]
            wide = functional.interpolate(maps[name][:, None], size, mode="bilinear")
            self.levels[0][:, self.names.index(name)] = wide[:, 0].clamp(*CHANNELS[name].range)
        if wanted:
            self._mips(wanted, None)

    def restore(self, finest: Tensor, changed: np.ndarray, moved: list[Rectangle]) -> None:
        """Level 0, and what else a refresh depends on; the canvas holds its frame already."""
        self.levels[0].copy_(finest)
        self._mips(self.names, None)
        self._place()
        self.changed, self.moved = changed, moved
        if self._strokes is not None:
            self._strokes.remake(self.canvas.levels)
        if self._before is not None:
            self._before.copy_(self.canvas.levels[0])

    def _place(self) -> None:
        """All that the kernels make in parts, everywhere, with what they keep from frame to frame."""
        if self.parts is not None and self._placed:
            self.parts.near(None)
            self.parts.coarse(None)
            self.parts.text(None)
            update_region(self.levels, self.canvas.everything, reduce=self.reduce)

    @cached_property
    def _reach(self) -> dict[str, int]:
        """How far a changed tile acts in each channel that kernels remake, as `update_marked_cuda` takes it."""
        return {name: CHANNELS[name].reach or 0 for name in self._placed} | {"motion": MOVED}

    def _whole(self, names: Sequence[str]) -> None:
        if not names:
            return
        previous = None if self._before is None else Texture((self._before,))
        embedded = any(name in EMBEDDING for name in names)
        built = build(self.canvas.texture, names, previous=previous, **(self.models if embedded else {}))
        for level, made in zip(self.levels, built.levels):
            level.index_copy_(1, self._slots(names), made)

    def _slots(self, names: Sequence[str]) -> Tensor:
        """The places of some channels; kept, so that nothing is copied to a GPU in every frame."""
        key = tuple(names)
        if key not in self._places:
            found = [self.names.index(name) for name in key]
            self._places[key] = torch.tensor(found, device=self.levels[0].device)
        return self._places[key]

    def _motion(self, before: Mapping[Rectangle, Tensor]) -> None:
        layer = self.levels[0][:, self.names.index("motion")]
        for left, top, right, bottom in self.moved:
            layer[:, top:bottom, left:right] = 0
        for (left, top, right, bottom), held in before.items():
            now = self.canvas.levels[0][..., top:bottom, left:right]
            layer[:, top:bottom, left:right] = (now - held).abs().amax(1).clamp(max=1)
        self._mips(["motion"], [*self.moved, *before])
        self.moved = list(before)

    def _part(self, names: Sequence[str], marked: np.ndarray) -> None:
        """Channels of one reach and one depth."""
        size, tile = self.canvas.size, self.canvas.tile
        reach = max(CHANNELS[name].reach or 0 for name in names)
        boxes = rectangles(grown(marked, reach, tile), tile, size)
        texel = 1 << max(DEEPEST.get(name, 0) for name in names)
        if names == ["text"]:
            assert self._strokes is not None
            self._strokes.refresh(self.canvas.levels, rectangles(marked, tile, size))
            whole = rather_whole(boxes, size) or not _divides(texel, size, tile)
            boxes = [(0, 0, size[1], size[0])] if whole else boxes
            for box in boxes:
                left, top, right, bottom = box
                layer = self.levels[0][:, self.names.index("text")]
                layer[:, top:bottom, left:right] = self._strokes.text(box)
            return self._mips(names, boxes)
        border = -(-reach // tile) * tile
        outer = [enlarged(box, border, size) for box in boxes]
        if not _divides(texel, size, tile) or rather_whole(outer, size):
            return self._whole(names)
        for (left, top, right, bottom), (x0, y0, x1, y1) in zip(boxes, outer):
            steps = range(texel.bit_length())
            cut = [self.canvas.levels[i][..., y0 >> i : y1 >> i, x0 >> i : x1 >> i] for i in steps]
            built = build(Texture(tuple(cut)), names).levels[0]
            inside = built[..., top - y0 : bottom - y0, left - x0 : right - x0]
            for slot, name in enumerate(names):
                self.levels[0][:, self.names.index(name), top:bottom, left:right] = inside[:, slot]
        self._mips(names, boxes)

    def _mips(self, names: Sequence[str], boxes: Sequence[Rectangle] | None) -> None:
        """Refresh the mip levels of some channels, in some rectangles or everywhere."""
        if boxes is not None and not len(boxes):
            return
        for name in names:
            one = slice(self.names.index(name), self.names.index(name) + 1)
            levels = [level[:, one] for level in self.levels]
            if boxes is None or rather_whole(boxes, self.canvas.size):
                for level, made in zip(levels, mipmap(levels[0].contiguous(), reduce=CHANNELS[name].reduce)):
                    level.copy_(made)
            else:
                update_region(levels, torch.tensor([list(boxes)]), reduce=CHANNELS[name].reduce)


def _divides(texel: int, size: tuple[int, int], tile: int) -> bool:
    """Whether mip texels of a cut-out along tiles are those of the frame."""
    return texel == 1 or all(extent % texel == 0 and extent >= texel for extent in (*size, tile))


def _groups(names: Sequence[str]) -> list[list[str]]:
    """Names whose reach and depth are alike are built together; text by itself."""
    found: dict[tuple[int, int, bool], list[str]] = {}
    for name in names:
        if name not in COLOURS:
            # tiles are coarser than the difference between a reach of 2 and of 8
            key = (-(-(CHANNELS[name].reach or 0) // 32), DEEPEST.get(name, 0), name == "text")
            found.setdefault(key, []).append(name)
    colours = [name for name in names if name in COLOURS]
    return [*found.values(), *([colours] if colours else [])]
