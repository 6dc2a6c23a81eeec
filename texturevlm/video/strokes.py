"""The text channel in parts: a map of strokes for each mip level that it reads, refreshed around what changed.

`text_map` takes the greatest of three levels' strokes. On the level it is made at, a stroke acts only 43 texels away;
it is the coarsest level that gives the channel its reach of 180 pixels. So the dear part, the strokes of the finest
level, is refreshed close to the change, and only their combination, a few operations a pixel, as far as the channel
reaches.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from texturevlm.channels.structure import enlarge, luma
from texturevlm.channels.text import HALF, SCALES, TEXELS, text_lines
from texturevlm.video.tiles import Rectangle, enlarged, rather_whole

BORDER = 2  # texels that an enlarged map is read beyond a rectangle


class Strokes:
    """What `text_lines` finds on each of the levels, each (1, 1, H_l, W_l)."""

    def __init__(self, levels: Sequence[Tensor]) -> None:
        self.maps = [torch.zeros_like(level[:, :1]) for level in levels[:SCALES]]

    def remake(self, levels: Sequence[Tensor]) -> None:
        for found, level in zip(self.maps, levels):
            found.copy_(text_lines(luma(level)))

    def refresh(self, levels: Sequence[Tensor], boxes: Sequence[Rectangle]) -> None:
        """After the pixels in some rectangles changed."""
        for index, (found, level) in enumerate(zip(self.maps, levels)):
            size = (level.shape[2], level.shape[3])
            ratio = (levels[0].shape[2] / size[0], levels[0].shape[3] / size[1])
            outer = [enlarged(_scaled(box, ratio, index > 0), TEXELS, size) for box in boxes]
            if rather_whole([enlarged(box, TEXELS, size) for box in outer], size):
                found.copy_(text_lines(luma(level)))
                continue
            for left, top, right, bottom in outer:
                x0, y0, x1, y1 = enlarged((left, top, right, bottom), TEXELS, size)
                made = text_lines(luma(level[..., y0:y1, x0:x1]))
                found[..., top:bottom, left:right] = made[..., top - y0 : bottom - y0, left - x0 : right - x0]

    def text(self, box: Rectangle) -> Tensor:
        """The text channel in a rectangle along tiles, or of the whole image: (1, h, w)."""
        left, top, right, bottom = box
        found = self.maps[0][..., top:bottom, left:right]
        for index, coarse in enumerate(self.maps[1:], 1):
            if found.shape == self.maps[0].shape:
                wide = enlarge(coarse, found.shape[-2:])
            else:
                size = (coarse.shape[2], coarse.shape[3])
                x0, y0, x1, y1 = enlarged((left >> index, top >> index, right >> index, bottom >> index), BORDER, size)
                shape = ((y1 - y0) << index, (x1 - x0) << index)
                above, beside = top - (y0 << index), left - (x0 << index)
                wide = enlarge(coarse[..., y0:y1, x0:x1], shape)
                wide = wide[..., above : above + bottom - top, beside : beside + right - left]
            found = torch.maximum(found, wide * 0.5**index)
        return (found / (found + HALF)).squeeze(1)


def _scaled(box: Rectangle, ratio: tuple[float, float], coarse: bool) -> Rectangle:
    """The texels of a coarser level that look at a rectangle of pixels, and a few more at odd extents."""
    down, across = ratio
    more = 2 if coarse else 0
    left, top, right, bottom = box
    return int(left / across) - more, int(top / down) - more, int(right / across) + more, int(bottom / down) + more
