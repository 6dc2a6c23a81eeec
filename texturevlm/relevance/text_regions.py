"""Parts of an upright image whose text runs at an angle of its own: stamps, signs, handwriting across a page.

Windows whose lines have nearly one angle make a region. The scout's spotter reads it turned upright, as it reads whole
pages (orientation.py): it says which way is up, and whether there is text at all.
"""

from __future__ import annotations

import torch
from torch import Tensor

from texturevlm.ops.line_angles import STRIDE, line_angles, window_centres
from texturevlm.relevance.orientation import best_quarter, small_grey
from texturevlm.turned import TextRegion
from texturevlm.types import Texture

LONGEST = 768  # pixels of the longer side that windows are cut from
OWN_ANGLE = 8.0  # degrees: less than that is not worth a turn
STRONG = 2.5  # strength of a window with lines of text
ALIKE = 4.0  # degrees between neighbours of one region
FEWEST, MOST = 3, 4  # windows of a region; regions of an image, the largest
READABLE = 0.12  # as `readability` says it of a region


def find_regions(texture: Texture) -> list[TextRegion]:
    """The regions of one upright image, the largest first; most images have none. Reads values: waits for a GPU."""
    grey = small_grey(texture, LONGEST)
    found = line_angles(grey)
    angle, strength = found.angle[0].cpu(), found.strength[0].cpu()
    across, down = texture.size[1] / grey.shape[2], texture.size[0] / grey.shape[1]
    groups = _groups(angle, (angle.abs() >= OWN_ANGLE) & (strength >= STRONG))
    regions = []
    for members in sorted((one for one in groups if len(one) >= FEWEST), key=len, reverse=True)[:MOST]:
        rows, columns = torch.tensor(members).unbind(1)
        x, y = window_centres(angle.shape[1])[columns] * across, window_centres(angle.shape[0])[rows] * down
        reach = torch.tensor([across, down, across, down]) * (STRIDE / 2) * torch.tensor([-1, -1, 1, 1])
        cells = torch.stack([x, y, x, y], -1) + reach
        skew = float(angle[rows, columns].median())
        reading = best_quarter(_crop(texture, cells), skew)
        if reading.readable >= READABLE:
            regions.append(TextRegion(reading.angle, cells))
    return regions


def _groups(angle: Tensor, marked: Tensor) -> list[list[tuple[int, int]]]:
    """Marked windows that touch, side by side or at a corner, and have nearly one angle."""
    left = {(row, column) for row, column in marked.nonzero().tolist()}
    found = []
    while left:
        group, reached = [], [left.pop()]
        while reached:
            row, column = reached.pop()
            group.append((row, column))
            around = [(row + i, column + j) for i in (-1, 0, 1) for j in (-1, 0, 1)]
            for one in [one for one in around if one in left and abs(angle[one] - angle[row, column]) <= ALIKE]:
                left.remove(one)
                reached.append(one)
        found.append(group)
    return found


def _crop(texture: Texture, cells: Tensor) -> Texture:
    """The part of the image around cells, xyxy, with a cell's margin."""
    height, width = texture.size
    margin = (cells[0, 2:] - cells[0, :2]) / 2
    low, high = (cells[:, :2].amin(0) - margin).clamp(min=0), cells[:, 2:].amax(0) + margin
    left, top = (int(one) for one in low)
    right, bottom = min(width, int(high[0]) + 1), min(height, int(high[1]) + 1)
    return Texture((texture.levels[0][..., top:bottom, left:right].contiguous(),), texture.names)
