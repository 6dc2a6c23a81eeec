"""An image that is read by pages as ordinary ones that can be drawn: all of it at its coarse levels, and one part.

Nothing is read for them: the part shows what was read when the tokens were chosen and sampled.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from texturevlm.rebuilding import PixelBox
from texturevlm.relevance import Relevance, normalised
from texturevlm.types import Allocation, Texture

SIDE = 640  # pixels of the part
MOST_ALONG = 1000  # pixels of the whole: a panel has 620


def coarse_part(texture: Texture) -> tuple[Texture, float]:
    """Coarse levels as an image of their own, and its pixels per pixel of the large one."""
    small = [level for level in texture.levels if max(level.shape[2:]) <= MOST_ALONG]
    whole = Texture(tuple(small), texture.names)
    return whole, whole.size[0] / texture.size[0]


def fine_part(texture: Texture, point: tuple[float, float]) -> tuple[Texture, PixelBox]:
    """The pixels around a point (x, y), and where they lie."""
    left, top, right, bottom = box = box_around(point, (SIDE, SIDE), texture.size)
    assert texture.pages is not None  # the caller has looked
    return Texture((texture.pages.crop(0, (top, left, bottom, right)),), texture.names), box


def box_around(point: tuple[float, float], extent: tuple[int, int], size: tuple[int, int]) -> PixelBox:
    """A box around a point (x, y), as wide and as tall as `extent` says, inside an image (height, width)."""
    width, height = min(extent[0], size[1]), min(extent[1], size[0])
    left = min(max(round(point[0] - width / 2), 0), size[1] - width)
    top = min(max(round(point[1] - height / 2), 0), size[0] - height)
    return left, top, left + width, top + height


def cut(allocation: Allocation, box: PixelBox) -> Allocation:
    """The footprints that reach into a box, seen from its corner."""
    left, top, right, bottom = box
    corner = allocation.centre.new_tensor([left, top])
    extent = allocation.centre.new_tensor([right - left, bottom - top])
    low, high = allocation.boxes[..., :2] - corner, allocation.boxes[..., 2:] - corner
    inside = allocation.valid & (high > 0).all(-1) & (low < extent).all(-1)
    return replace(allocation, centre=allocation.centre - corner, valid=inside, size=(bottom - top, right - left))


def cut_relevance(relevance: Relevance, box: PixelBox) -> Relevance:
    """The cells of a box, give or take a part of a cell."""
    (rows, columns), (height, width) = relevance.grid, relevance.size
    left, top = box[0] * columns // width, box[1] * rows // height
    right, bottom = max(left + 1, box[2] * columns // width), max(top + 1, box[3] * rows // height)
    maps: Any = {name: getattr(relevance, name)[:, top:bottom, left:right] for name in ("mass", "legible_scale", "ink")}
    maps["mass"] = normalised(maps["mass"])
    return replace(relevance, **maps, size=(box[3] - box[1], box[2] - box[0]))
