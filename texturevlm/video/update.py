"""Bringing texture and channels to the next frame, tile by tile, with PyTorch operations.

`FrameUpdate` is the interface and the strategy for a CPU (and for a GPU where no kernel runs); `GpuFrameUpdate` in
update_gpu.py does the same by kernels. Levels are allocated once and only their values change, so that whatever holds a
pointer to them (a captured CUDA graph, a hardware texture) stays valid.
"""

from __future__ import annotations

import torch
from torch import Tensor

from texturevlm.ops.mip import level_extents, update_region
from texturevlm.types import Allocation, Texture
from texturevlm.video.change import Changes, Noise, find_changes, mask_rectangles, whole_is_cheaper
from texturevlm.video.change_gpu import GpuComparison
from texturevlm.video.channels import StreamChannels


class FrameUpdate:
    """The held frame.

    texture:    red, green and blue with all mip levels, the same object for the life of the stream
    channels:   other channels of the held frame, if any are kept
    comparison: where kernels compare frames
    samples_patches: whether `compare` has also refreshed the patches that read a changed tile
    A frame goes through `compare`, and then through `replace` (a keyframe), or `apply` and `channels.refresh`
    (something changed), or `stand_still` (nothing did).
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

    def replace(self, frame: Tensor) -> None:
        """Hold another frame, all of it."""
        self.texture.levels[0].copy_(frame)
        update_region(self.texture.levels, self._everything)

    def apply(self, frame: Tensor, found: Changes) -> None:
        """Copy the changed tiles. Every level then equals one rebuilt from level 0, bit for bit."""
        levels = self.texture.levels
        boxes = mask_rectangles(found.marked, self.tile, self.size)
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
