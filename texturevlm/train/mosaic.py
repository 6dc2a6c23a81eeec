"""Photographs put together for one step of learning: whole ones, and mosaics of four.

A caption says what is in a photograph, not where. In a mosaic of four photographs it does: what a caption names is in
its own quarter and not, as far as is known, in the others. All draws come from a generator on the host, so that a step
is the same whenever it is made; the pixels are put together on the device by one `grid_sample`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

QUARTERS = 4
LAST = QUARTERS - 1  # the lower right quarter, which is all of a picture that is no mosaic
SPLIT = (0.35, 0.65)  # where the four meet
SMALLEST = 0.5  # of a photograph's side is seen at least
CONTRAST, BRIGHTNESS, TINT = 0.4, 0.15, 0.1
GREY = 0.1  # of pictures have no colour


class Draw(NamedTuple):
    """B pictures of four quarters each, which photographs they show, and how.

    photographs: (B, 4) numbers; upper left, upper right, lower left, lower right
    split:   (B, 2) x and y where the quarters meet, 0 to 1; 0, 0 where the last is all of the picture
    window:  (B, 4, 4) the part of each photograph that is seen, x0, y0, x1, y1 from 0 to 1; x0 above x1 mirrors it
    gain, shift: (B, 3) what the colours are multiplied by and shifted by
    grey:    (B,) 1 where there is no colour
    """

    photographs: Tensor
    split: Tensor
    window: Tensor
    gain: Tensor
    shift: Tensor
    grey: Tensor

    def to(self, device: str) -> Draw:
        return Draw(*(part.to(device, non_blocking=True) for part in self))


def drawn(photographs: Tensor, mosaics: float, generator: torch.Generator) -> Draw:
    """photographs: (B, 4); mosaics: the share of pictures that are."""
    count = len(photographs)

    def even(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator)

    split = SPLIT[0] + (SPLIT[1] - SPLIT[0]) * even(count, 2)
    split = split * (even(count, 1) < mosaics)
    extent = SMALLEST + (1 - SMALLEST) * even(count, QUARTERS, 1)
    shape = 0.8 + 0.4 * even(count, QUARTERS, 1)  # how much wider than high
    extent = torch.cat([extent * shape.sqrt(), extent / shape.sqrt()], 2).clamp(max=1)
    low = (1 - extent) * even(count, QUARTERS, 2)
    high = low + extent
    mirrored = even(count, QUARTERS, 1) < 0.5
    x0, x1 = low[..., :1].where(~mirrored, high[..., :1]), high[..., :1].where(~mirrored, low[..., :1])
    window = torch.cat([x0, low[..., 1:], x1, high[..., 1:]], 2)
    gain = 1 + CONTRAST * (2 * even(count, 1) - 1) + TINT * (2 * even(count, 3) - 1)
    shift = BRIGHTNESS * (2 * even(count, 1) - 1).expand(-1, 3)
    return Draw(photographs, split, window, gain, shift, (even(count) < GREY).float())


def pictures(pixels: Tensor, draw: Draw) -> Tensor:
    """pixels (M, 3, S, S) uint8 of all photographs, on the draw's device → (B, 3, S, S) from 0 to 1."""
    side = pixels.shape[-1]
    count = len(draw.split)
    # the four photographs beside and below one another, so that one reading serves all quarters
    four = pixels[draw.photographs].view(count, 2, 2, 3, side, side)
    sheet = four.permute(0, 3, 1, 4, 2, 5).reshape(count, 3, 2 * side, 2 * side).float() / 255
    middle = (torch.arange(side, device=pixels.device) + 0.5) / side
    across, down = _place(middle, draw.split[:, 0]), _place(middle, draw.split[:, 1])
    quarter = 2 * down.after[:, :, None] + across.after[:, None, :]
    window = draw.window.gather(1, quarter.view(count, -1, 1).expand(-1, -1, 4)).view(count, side, side, 4)
    edge = 0.5 / side  # half a pixel: nothing is read of the photograph beside
    x = (window[..., 0] + (window[..., 2] - window[..., 0]) * across.within[:, None, :]).clamp(edge, 1 - edge)
    y = (window[..., 1] + (window[..., 3] - window[..., 1]) * down.within[:, :, None]).clamp(edge, 1 - edge)
    grid = torch.stack([x + across.after[:, None, :], y + down.after[:, :, None]], 3) - 1
    read = functional.grid_sample(sheet, grid, align_corners=False)
    plain = read.mean(1, keepdim=True)
    read = read + draw.grey.view(-1, 1, 1, 1) * (plain - read)
    return ((read - 0.5) * draw.gain[..., None, None] + 0.5 + draw.shift[..., None, None]).clamp(0, 1)


class _Place(NamedTuple):
    """(B, N) of points along one axis: 1 after the split, 0 before; and how far within its quarter, 0 to 1."""

    after: Tensor
    within: Tensor


def _place(points: Tensor, split: Tensor) -> _Place:
    cut = split[:, None]
    after = points >= cut
    within = torch.where(after, (points - cut) / (1 - cut), points / cut.clamp(min=1e-6))
    return _Place(after.long(), within)


def quarters(split: Tensor, side: int) -> Tensor:
    """(B, 4, side · side) of 0 and 1: the spots of each quarter; of none of them where a spot lies in two."""
    edges = torch.arange(side + 1, device=split.device) / side
    cut = split[..., None]
    before, after = (edges[1:] <= cut + 1e-6).float(), (edges[:-1] >= cut - 1e-6).float()
    across, down = (torch.stack([before[:, axis], after[:, axis]], 1) for axis in (0, 1))
    return (down[:, :, None, :, None] * across[:, None, :, None, :]).reshape(len(split), QUARTERS, side * side)


def moved(boxes: Tensor, draw: Draw) -> Tensor:
    """Boxes (B, P, 4) of the last quarter's photographs, as shares of them → as shares of the picture, cut at the
    quarter's edges."""
    window, split = draw.window[:, LAST, None], draw.split[:, None]
    low, extent = window[..., :2], window[..., 2:] - window[..., :2]
    one, two = ((corner - low) / extent for corner in (boxes[..., :2], boxes[..., 2:]))
    corners = torch.cat([torch.minimum(one, two), torch.maximum(one, two)], 2).clamp(0, 1)
    start = split.repeat(1, 1, 2)
    return start + (1 - start) * corners
