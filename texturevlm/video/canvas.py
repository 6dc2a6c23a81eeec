"""The texture that a stream owns: buffers at fixed addresses, of which a frame rewrites just the tiles that changed.

Whatever holds a pointer to the levels (a captured CUDA graph, a hardware texture's `fill`) goes on working, because the
tensors are made once and only their values change.
"""

from __future__ import annotations

import torch
from torch import Tensor

from texturevlm.ops.mip import level_extents, update_region
from texturevlm.types import Texture
from texturevlm.video.change import Changes
from texturevlm.video.tiles import pixel_mask, rather_whole, rectangles, tile_boxes


class Canvas:
    """Red, green and blue of the frame that is held, with all mip levels.

    texture: the same object for the life of the stream
    """

    def __init__(self, size: tuple[int, int], device: torch.device, tile: int) -> None:
        self.size, self.tile = size, tile
        self.levels = tuple(torch.zeros(1, 3, *extent, device=device) for extent in level_extents(*size))
        self.texture = Texture(self.levels)
        self.everything = torch.tensor([[[0, 0, size[1], size[0]]]], dtype=torch.int32, device=device)
        self._tiles = tile_boxes(size, tile, device)

    def replace(self, frame: Tensor) -> None:
        """Hold another frame, all of it."""
        self.levels[0].copy_(frame)
        update_region(self.levels, self.everything)

    def refresh(self, frame: Tensor, changes: Changes) -> None:
        """Take over the tiles that changed. Every level then equals a rebuilt one of the same level 0, bit for bit."""
        if self.levels[0].is_cuda:  # no look at the mask: every tile is a box, an empty one where nothing changed
            wide = pixel_mask(changes.mask, self.tile, self.size)
            torch.where(wide, frame, self.levels[0], out=self.levels[0])
            update_region(self.levels, self._tiles * changes.mask.view(1, -1, 1))
            return
        boxes = rectangles(changes.marked, self.tile, self.size)
        for left, top, right, bottom in boxes:
            here = (..., slice(top, bottom), slice(left, right))
            self.levels[0][here] = frame[here]
        if rather_whole(boxes, self.size):
            update_region(self.levels, self.everything)
        elif boxes:
            update_region(self.levels, torch.tensor([boxes]))
