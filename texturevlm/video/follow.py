"""Following a box that someone pointed at: it moves as most of what is in it moves, and grows as that spreads.

A map that is carried cell by cell frays at its rim and is gone after a hundred frames; a box is carried whole. Its
shift is the median of the trusted movements in it, its growth how much the medians of its halves move apart.
"""

from __future__ import annotations

import torch
from torch import Tensor

from texturevlm.video.flow import Flow

ROUNDS = 2  # the movement is read where the box will be, which is known only once it was read
GROWTH = 0.2  # of the side, at most, from one frame to the next
LEAST = 2.0  # cells: no side becomes shorter


def followed(box: Tensor, flow: Flow) -> Tensor:
    """A box (4,), xyxy in cells, in the next frame. Reads no value on the host."""
    vector, trusted = flow.vector[0], flow.trusted[0]
    height, width = trusted.shape
    x = torch.arange(width, device=box.device) + 0.5
    y = (torch.arange(height, device=box.device) + 0.5)[:, None]
    centre, half = (box[:2] + box[2:]) / 2, (box[2:] - box[:2]) / 2
    moved, grown = centre, half
    for _ in range(ROUNDS):
        inside = trusted & ((x - moved[0]).abs() < grown[0]) & ((y - moved[1]).abs() < grown[1])
        shift = torch.stack([_median(vector[0], inside), _median(vector[1], inside)])
        across = _median(vector[0], inside & (x > moved[0])) - _median(vector[0], inside & (x < moved[0]))
        down = _median(vector[1], inside & (y > moved[1])) - _median(vector[1], inside & (y < moved[1]))
        spread = -(across / grown[0] + down / grown[1]) / 2  # the flow looks back, so what grows runs together in it
        moved, grown = centre - shift, half * (1 + spread.clamp(-GROWTH, GROWTH))
        grown = grown.clamp(min=LEAST / 2)
    return torch.cat([moved - grown, moved + grown])


def _median(values: Tensor, where: Tensor) -> Tensor:
    """Of the values that count; 0 if none does."""
    return values.where(where, torch.nan).flatten().nanmedian().nan_to_num(0.0)


def box_map(box: Tensor, grid: tuple[int, int]) -> Tensor:
    """(1, h, w): how much of each cell lies in a box (4,), xyxy in cells."""
    rows, columns = (torch.arange(extent, device=box.device) for extent in grid)
    across = (torch.minimum(box[2], columns + 1.0) - torch.maximum(box[0], columns.float())).clamp(0, 1)
    down = (torch.minimum(box[3], rows + 1.0) - torch.maximum(box[1], rows.float())).clamp(0, 1)
    return (down[:, None] * across)[None]
