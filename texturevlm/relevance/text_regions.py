"""Parts of an upright image whose text runs at an angle of its own: stamps, signs, handwriting across a page.

Windows whose lines have nearly one angle make a region. The scout's spotter reads it turned upright, as it reads whole
pages (orientation.py): it says whether there is text, and which way it runs. A sign may hold no word that the spotter
knows; then it is not taken to be upside down.
"""

from __future__ import annotations

import torch
from torch import Tensor

from texturevlm.frame import QUARTER, TextRegion
from texturevlm.ops.line_angles import STRIDE, line_angles, window_centres
from texturevlm.relevance.orientation import READABLE, Reading, small_grey
from texturevlm.scout.scout import load_scout
from texturevlm.types import Texture

LONGEST = 768  # pixels of the longer side that windows are cut from
OWN_ANGLE = 8.0  # degrees: less than that is not worth a turn
STRONG = 2.5  # strength of a window with lines of text
ALIKE = 4.0  # degrees between neighbours of one region
ONE_TEXT = 12.0  # degrees between regions that are one text: lines of a sign that is seen from the side
FEWEST, MOST = 3, 4  # windows of a region; regions of an image, the largest
WRITTEN = 0.95  # chance of text at the best spots; print has .99 and more, other textures at most .81 were seen


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
        skew = _median(angle[rows, columns])
        reading = upright_reading(_crop(texture, cells), skew)
        if reading.written >= WRITTEN:
            regions.append(TextRegion(reading.angle, cells))
    return _joined(regions)


def upright_reading(part: Texture, skew: float) -> Reading:
    """A part of an image whose lines have an angle up to quarter turns, as it is read best.

    Whether lines run along the angle or across it, the chance of text says: it is high at half turns, too. Whether they
    are upside down, known words must say.
    """
    scout = load_scout(device=part.device)
    along = Reading.of(scout, part, skew)
    if along.readable >= READABLE:
        return along
    across, other, turned = (Reading.of(scout, part, skew + quarter * QUARTER) for quarter in (1, -1, 2))
    if max(across.written, other.written) > max(along.written, turned.written):
        return max(across, other, key=lambda one: one.readable)
    return turned if turned.readable >= READABLE else along


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
            for one in [one for one in around if one in left and abs(_apart(angle[one], angle[row, column])) <= ALIKE]:
                left.remove(one)
                reached.append(one)
        found.append(group)
    return found


def _joined(regions: list[TextRegion]) -> list[TextRegion]:
    """Texts that touch and have about one angle are one: each turned by itself, they would lie on one another."""
    found: list[TextRegion] = []
    for one in regions:
        for number, other in enumerate(found):
            apart = (one.angle - other.angle + 180) % 360 - 180
            if abs(apart) <= ONE_TEXT and _touch(one.cells, other.cells):
                cells = torch.cat([other.cells, one.cells])
                found[number] = TextRegion(other.angle + apart * len(one.cells) / len(cells), cells)
                break
        else:
            found.append(one)
    return found


def _touch(cells: Tensor, others: Tensor) -> bool:
    """Whether at most one window lies between cells, (n, 4) and (m, 4) of one size, xyxy."""
    steps = (cells[:, None, :2] - others[:, :2]).abs() / (cells[0, 2:] - cells[0, :2])
    return bool((steps.amax(-1) <= 2 + 1e-3).any())


def _apart(angle: Tensor, other: Tensor) -> Tensor:
    """The difference of angles that are known up to quarter turns, -45 to 45 degrees."""
    return (angle - other + QUARTER / 2).remainder(QUARTER) - QUARTER / 2


def _median(angles: Tensor) -> float:
    """The median of angles that are alike, up to quarter turns."""
    return float(angles[0] + _apart(angles, angles[0]).median())


def _crop(texture: Texture, cells: Tensor) -> Texture:
    """The part of the image around cells, xyxy, with a cell's margin."""
    height, width = texture.size
    margin = (cells[0, 2:] - cells[0, :2]) / 2
    low, high = (cells[:, :2].amin(0) - margin).clamp(min=0), cells[:, 2:].amax(0) + margin
    left, top = (int(one) for one in low)
    right, bottom = min(width, int(high[0]) + 1), min(height, int(high[1]) + 1)
    return Texture((texture.levels[0][..., top:bottom, left:right].contiguous(),), texture.names)
