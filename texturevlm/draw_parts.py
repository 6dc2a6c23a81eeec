"""An image that is read by pages as ordinary ones that can be drawn: all of it at its coarse levels, and one part.

Nothing is read for them: the part shows what was read when the tokens were chosen and sampled.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from texturevlm.relevance import Relevance, normalised
from texturevlm.types import Allocation, Texture

SIDE = 640  # pixels of the part
MOST_ALONG = 1000  # pixels of the whole: a panel has 620
Box = tuple[int, int, int, int]  # top, left, bottom, right, in pixels


def coarse_part(texture: Texture) -> tuple[Texture, float]:
    """Coarse levels as an image of their own, and its pixels per pixel of the large one."""
    small = [level for level in texture.levels if max(level.shape[2:]) <= MOST_ALONG]
    whole = Texture(tuple(small), texture.names)
    return whole, whole.size[0] / texture.size[0]


def fine_part(texture: Texture, point: tuple[float, float]) -> tuple[Texture, Box]:
    """The pixels around a point (x, y), and where they lie."""
    box = _part_box(texture.size, point)
    assert texture.pages is not None  # the caller has looked
    return Texture((texture.pages.crop(0, box),), texture.names), box


def _part_box(size: tuple[int, int], point: tuple[float, float]) -> Box:
    """A square of pixels around a point, inside the image."""
    height, width = (min(SIDE, extent) for extent in size)
    left = min(max(round(point[0] - width / 2), 0), size[1] - width)
    top = min(max(round(point[1] - height / 2), 0), size[0] - height)
    return top, left, top + height, left + width


def cut(allocation: Allocation, box: Box) -> Allocation:
    """The footprints that reach into a box, seen from its corner."""
    top, left, bottom, right = box
    corner = torch.tensor([left, top], device=allocation.centre.device)
    low, high = allocation.boxes[..., :2] - corner, allocation.boxes[..., 2:] - corner
    extent = torch.tensor([right - left, bottom - top], device=corner.device)
    inside = allocation.valid & (high > 0).all(-1) & (low < extent).all(-1)
    return replace(allocation, centre=allocation.centre - corner, valid=inside, size=(bottom - top, right - left))


def cut_relevance(relevance: Relevance, box: Box) -> Relevance:
    """The cells of a box, give or take a part of a cell."""
    (rows, columns), (height, width) = relevance.grid, relevance.size
    top, left = box[0] * rows // height, box[1] * columns // width
    bottom, right = max(top + 1, box[2] * rows // height), max(left + 1, box[3] * columns // width)

    def inside(name: str) -> Tensor:
        found: Tensor = getattr(relevance, name)[:, top:bottom, left:right]
        return found

    maps: Any = {name: inside(name) for name in ("legible_scale", "ink")}
    return replace(relevance, mass=normalised(inside("mass")), **maps, size=(box[2] - box[0], box[3] - box[1]))
