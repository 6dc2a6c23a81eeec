"""Bringing texture and channels to the next frame, tile by tile, with PyTorch operations.

`FrameUpdate` is the interface and the strategy for a CPU (and for a GPU where no kernel runs); update_gpu.py does the
same by kernels. Levels are allocated once, so that whatever holds a pointer to them (a captured graph) stays valid.

A channel of small reach is computed for the tiles within reach of a change, from a cut-out of the mip levels with a
further border of that reach; the result equals that of the whole frame. Where the frame's sides are not multiples of
the coarsest texel that it reads, texels of a cut-out would be others: it is then computed for the whole frame. Channels
of global reach (clusters, boundaries, embeddings) are computed at a keyframe, and once a quarter of the tiles has
changed since. Positions are written once. Channels 15 to 17 fade everywhere and are rewritten as a whole (`write`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.channels import (
    CHANNELS,
    EMBEDDING_LAYERS,
    MOST_TEXELS,
    TEXELS,
    TEXT_HALF,
    TEXT_SCALES,
    build,
    enlarge,
    luma,
    text_lines,
)
from texturevlm.ops import level_extents, mipmap, update_region
from texturevlm.types import COLOURS, Allocation, Texture
from texturevlm.video.change import (
    Changes,
    Noise,
    Rectangle,
    find_changes,
    grow_mask,
    pixel_mask,
    tile_boxes,
    whole_is_cheaper,
)
from texturevlm.video.change_gpu import GpuComparison

CONSTANT = ("x", "y", "eccentricity", "attention", "gaze")  # no frame changes them
CARRIED = ("previous_relevance", "previous_saliency", "fixation_history", "previous_attention")
AGAIN = 0.25  # share of tiles changed since channels of global reach were computed: they are computed again
BORDER = 2  # texels that enlarging a coarse map reads beyond a rectangle


class FrameUpdate:
    """The held frame.

    texture:    red, green and blue with all mip levels, the same object for the life of the stream
    channels:   other channels of the held frame, if any are kept
    comparison: where kernels compare frames
    samples_patches: whether `compare` has also refreshed the patches that read a changed tile
    A frame goes through `compare`, then `replace` (a keyframe), or `apply` and `channels.refresh`, or `stand_still`.
    """

    comparison: GpuComparison | None = None
    samples_patches = False

    def __init__(self, size: tuple[int, int], tile: int, device: torch.device) -> None:
        self.size, self.tile = size, tile
        self.texture = Texture(tuple(torch.zeros(1, 3, *extent, device=device) for extent in level_extents(*size)))
        self.device = self.texture.device  # with its index
        self.channels: StreamChannels | None = None
        self._everything = torch.tensor([[[0, 0, size[1], size[0]]]], dtype=torch.int32, device=device)

    def compare(self, frame: Tensor, noise: Noise, *, keyframe: bool = False, sample: bool = True) -> Changes:
        """Find the tiles that changed. Raises ValueError for a frame that is not an image.

        frame:    (1, 3, H, W), 0 to 1; where there is a `comparison`, bytes are taken as well
        keyframe: the frame will be held by `replace`, whatever it shows
        sample:   a GPU may refresh patches at once
        """
        return find_changes(frame, self.texture.levels[0], noise, tile=self.tile)

    def replace(self, frame: Tensor, found: Changes | None = None) -> None:
        """Hold another frame, all of it, with all channels but the carried ones, which become zero.

        found: what changed, if the frame goes on from the held one: that is its motion; else nothing moved
        """
        held, motion = self.texture.levels[0], None
        if found is not None and self.channels is not None and "motion" in self.channels.names:
            motion = (frame - held).abs().amax(1).clamp(max=1)
            motion = motion.where(pixel_mask(found.mask, self.tile, self.size), 0.0)
        held.copy_(frame)
        update_region(self.texture.levels, self._everything)
        if self.channels is not None:
            self.channels.rebuild()
            if found is not None and motion is not None:
                self.channels.write({"motion": motion})
                self.channels.moved = tile_boxes(found.marked, self.tile, self.size)

    def apply(self, frame: Tensor, found: Changes) -> None:
        """Copy the changed tiles. Every level then equals one rebuilt from level 0, bit for bit."""
        levels = self.texture.levels
        boxes = tile_boxes(found.marked, self.tile, self.size)
        if self.channels is not None:
            self.channels.write_motion(frame, boxes)
        for box in boxes:
            levels[0][box.window] = frame[box.window]
        if whole_is_cheaper(boxes, self.size):
            update_region(levels, self._everything)
        elif boxes:
            update_region(levels, torch.tensor([boxes], dtype=torch.int32, device=self.device))

    def stand_still(self) -> None:
        """Nothing changed: the motion channel becomes zero."""
        if self.channels is not None:
            self.channels.stop_motion()

    def hold(self, allocation: Allocation) -> None:
        """Tell a GPU the footprints from here on."""


class StreamChannels:
    """Channels of the held frame, with mips, at fixed addresses.

    parts:   update rectangles instead of the whole frame; by default on a CPU, where that is faster
    models:  those of the embedding channels, as `build` takes them
    layers:  the channels as a Texture, the same object for the life of the stream
    changed: (rows, columns) bool, tiles that changed since the channels of global reach were computed
    moved:   the rectangles in which the motion channel is not zero
    """

    def __init__(
        self, names: Sequence[str], texture: Texture, tile: int, *, parts: bool | None = None, **models: Any
    ) -> None:
        self.names, self.texture, self.tile, self.models = tuple(names), texture, tile, models
        device, count = texture.device, len(self.names)
        self.levels = tuple(torch.zeros(1, count, *extent, device=device) for extent in channel_extents(texture.size))
        self.reduce = tuple(CHANNELS[name].reduce for name in self.names)
        self.layers = Texture(self.levels, self.names, texture.size, self.reduce)
        self.changed = np.zeros(0, dtype=bool)
        self.moved: list[Rectangle] = []
        self._parts = device.type == "cpu" if parts is None else parts
        self._parts &= self.levels[0].shape[2:] == texture.size
        self._strokes = TextStrokes(texture.levels) if self._parts and "text" in self.names else None
        self._before = texture.levels[0].clone() if "motion" in self.names and not self._parts else None
        self._indices: dict[tuple[str, ...], Tensor] = {}
        self._global = [name for name in self.names if CHANNELS[name].reach is None]

    def rebuild(self) -> None:
        """Compute everything from the held frame; nothing moved, nothing is carried."""
        if self._before is not None:
            self._before.copy_(self.texture.levels[0])
        self._clear_carried()
        self._build_whole([name for name in self.names if name not in CARRIED])
        if self._strokes is not None:
            self._strokes.refresh(self.texture.levels, [Rectangle(0, 0, *self.texture.size[::-1])])
        self.moved, self.changed = [], np.zeros(0, dtype=bool)

    def _clear_carried(self) -> None:
        if carried := [name for name in self.names if name in CARRIED]:
            for level in self.levels:
                level.index_fill_(1, self._slots(carried), 0)

    def refresh(self, changes: Changes) -> bool:
        """Update the channels around the changed tiles; returns whether those of global reach were computed again."""
        again = self._refresh_global(changes)
        local = [name for name in self.names if name not in (*CONSTANT, *CARRIED) and CHANNELS[name].reach is not None]
        if not self._parts:
            self._build_whole(local)
            if self._before is not None:
                self._before.copy_(self.texture.levels[0])
            return again
        for group in _groups([name for name in local if name != "motion"]):
            self._build_part(group, changes.marked)
        return again

    def _refresh_global(self, changes: Changes) -> bool:
        """Compute the channels of global reach again if enough has changed; returns whether that was so."""
        if not self._global:
            return False
        self.changed = changes.marked | self.changed if self.changed.size else changes.marked.copy()
        if self.changed.mean() <= AGAIN:
            return False
        self._build_whole(self._global)
        self.changed = np.zeros_like(changes.marked)
        return True

    def write_motion(self, frame: Tensor, boxes: list[Rectangle]) -> None:
        """Write how much a frame differs from the held one, before its rectangles of changed tiles are copied."""
        if not self._parts or "motion" not in self.names:
            return
        layer = self.levels[0][:, self.names.index("motion")]
        for box in self.moved:
            layer[box.window] = 0
        for box in boxes:
            now, held = (image[box.window] for image in (frame, self.texture.levels[0]))
            layer[box.window] = (now - held).abs().amax(1).clamp(max=1)
        self._update_mips(["motion"], [*self.moved, *boxes])
        self.moved = boxes

    def stop_motion(self) -> None:
        """Set the motion channel to zero: nothing changed in this frame."""
        if "motion" in self.names:
            if not self._parts:
                self._build_whole(["motion"])
            elif self.moved:
                self.write_motion(self.texture.levels[0], [])

    def on_grid(self, names: Sequence[str], grid: tuple[int, int]) -> Tensor:
        """(1, C, h, w): some channels on a grid of cells."""
        slots = [self.names.index(name) for name in names]
        level = next((level for level in self.levels if level.shape[2:] == grid), self.levels[0])
        return functional.interpolate(level[:, slots], grid, mode="area")

    def write(self, maps: Mapping[str, Tensor]) -> None:
        """Overwrite channels by maps (1, h, w) of any extent; names that are not kept are ignored."""
        wanted = [name for name in maps if name in self.names]
        for name in wanted:
            wide = functional.interpolate(maps[name][:, None], self.levels[0].shape[2:], mode="bilinear")
            self.levels[0][:, self.names.index(name)] = wide[:, 0].clamp(*CHANNELS[name].range)
        if wanted:
            self._update_mips(wanted, None)

    def _build_whole(self, names: Sequence[str]) -> None:
        if not names:
            return
        previous = None if self._before is None else Texture((self._before,))
        models = self.models if any(name in EMBEDDING_LAYERS for name in names) else {}
        built = build(self.texture, names, previous=previous, **models)
        for level, made in zip(self.levels, built.levels):
            level.index_copy_(1, self._slots(names), made)

    def _slots(self, names: Sequence[str]) -> Tensor:
        """Indices of some channels; kept, so that a frame copies nothing to the GPU."""
        key = tuple(names)
        if key not in self._indices:
            found = [self.names.index(name) for name in key]
            self._indices[key] = torch.tensor(found, device=self.levels[0].device)
        return self._indices[key]

    def _build_part(self, names: Sequence[str], marked: np.ndarray) -> None:
        """Update channels of one reach and one depth."""
        size, tile = self.texture.size, self.tile
        reach = max(CHANNELS[name].reach or 0 for name in names)
        boxes = tile_boxes(grow_mask(marked, reach, tile), tile, size)
        texel = 1 << max(CHANNELS[name].deepest for name in names)
        aligned = texel == 1 or all(extent % texel == 0 and extent >= texel for extent in (*size, tile))
        if self._strokes is not None and names == ["text"]:
            self._strokes.refresh(self.texture.levels, tile_boxes(marked, tile, size))
            if whole_is_cheaper(boxes, size) or not aligned:
                boxes = [Rectangle(0, 0, *size[::-1])]
            for box in boxes:
                self.levels[0][:, self.names.index("text")][box.window] = self._strokes.text(box)
            return self._update_mips(names, boxes)
        outer = [box.expanded(-(-reach // tile) * tile, size) for box in boxes]
        if not aligned or whole_is_cheaper(outer, size):
            return self._build_whole(names)
        for box, around in zip(boxes, outer):
            sizes = [2**level for level in range(texel.bit_length())]
            cut = [level[around.scaled(by, by).window] for level, by in zip(self.texture.levels, sizes)]
            built = build(Texture(tuple(cut)), names).levels[0]
            self.levels[0][box.window][:, self._slots(names)] = built[box.within(around).window]
        self._update_mips(names, boxes)

    def _update_mips(self, names: Sequence[str], boxes: Sequence[Rectangle] | None) -> None:
        """Update the mip levels of some channels, in some rectangles or everywhere (None)."""
        if boxes is not None and not len(boxes):
            return
        for name in names:
            slot = self.names.index(name)
            levels = [level[:, slot : slot + 1] for level in self.levels]
            if boxes is None or whole_is_cheaper(boxes, self.texture.size):
                for level, made in zip(levels, mipmap(levels[0].contiguous(), reduce=CHANNELS[name].reduce)):
                    level.copy_(made)
            else:
                update_region(levels, torch.tensor([list(boxes)]), reduce=CHANNELS[name].reduce)


def channel_extents(size: tuple[int, int]) -> list[tuple[int, int]]:
    """The extents of the channels' levels; a very large frame has no channels at its finest levels."""
    extents = level_extents(*size)
    base = next(i for i, (height, width) in enumerate(extents) if height * width <= MOST_TEXELS)
    return list(extents[base:])


def _groups(names: Sequence[str]) -> list[list[str]]:
    """Channels of similar reach and equal depth are built together; text and the colours by themselves."""
    found: dict[tuple[int, int, bool, bool], list[str]] = {}
    for name in names:
        reach = -(-(CHANNELS[name].reach or 0) // 32)  # a tile is larger than the difference between 2 and 8
        found.setdefault((reach, CHANNELS[name].deepest, name == "text", name in COLOURS), []).append(name)
    return list(found.values())


class TextStrokes:
    """The text channel in parts: a map of strokes for each mip level that it reads, (1, 1, H_l, W_l) each.

    A stroke reaches 43 texels on its own level; the coarsest of three gives the channel its reach of 180 pixels. So the
    expensive strokes of the finest level are updated near the change, and only their maximum as far as that.
    """

    def __init__(self, levels: Sequence[Tensor]) -> None:
        self.maps = [torch.zeros_like(level[:, :1]) for level in levels[:TEXT_SCALES]]

    def refresh(self, levels: Sequence[Tensor], boxes: Sequence[Rectangle]) -> None:
        """Update the maps after the pixels in some rectangles changed."""
        for index, (found, level) in enumerate(zip(self.maps, levels)):
            size = (level.shape[2], level.shape[3])
            down, across = (extent / texels for extent, texels in zip(levels[0].shape[2:], size))
            odd = 2 if index else 0  # texels more: odd extents do not halve exactly
            inner = [box.scaled(across, down).expanded(TEXELS + odd, size) for box in boxes]
            outer = [box.expanded(TEXELS, size) for box in inner]
            if whole_is_cheaper(outer, size):
                found.copy_(text_lines(luma(level)))
                continue
            for box, around in zip(inner, outer):
                found[box.window] = text_lines(luma(level[around.window]))[box.within(around).window]

    def text(self, box: Rectangle) -> Tensor:
        """The text channel in a rectangle of tiles, or in the whole frame: (1, h, w)."""
        found = self.maps[0][box.window]
        for index, coarse in enumerate(self.maps[1:], 1):
            if found.shape == self.maps[0].shape:
                wide = enlarge(coarse, found.shape[-2:])
            else:
                size, texel = (coarse.shape[2], coarse.shape[3]), 2**index
                around = box.scaled(texel, texel).expanded(BORDER, size)
                outer = around.scaled(1 / texel, 1 / texel)
                wide = enlarge(coarse[around.window], (outer.bottom - outer.top, outer.right - outer.left))
                wide = wide[box.within(outer).window]
            found = torch.maximum(found, wide * 0.5**index)
        return (found / (found + TEXT_HALF)).squeeze(1)
