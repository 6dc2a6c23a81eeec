"""Pictures of an image that is read by pages: all of it at its coarse levels, and one part as its pages show it.

Nothing is read for them: the part shows what was read when the tokens were chosen and sampled.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from PIL import Image
from torch import Tensor

from texturevlm.draw import look_picture, question_picture, weightiest
from texturevlm.relevance.maps import Relevance, normalised
from texturevlm.types import Allocation, Texture
from texturevlm.virtual.pages import Box

SIDE = 640  # pixels of the part


def look_pictures(texture: Texture, allocation: Allocation, point: tuple[float, float]) -> list[Image.Image]:
    """`look_picture` of the whole and of the part around a point."""
    assert texture.pages is not None  # `draw` has looked
    whole, box = Texture(texture.levels, texture.names), _part(texture.size, point)
    shown = scaled(allocation, whole.size)
    x, y = (value * extent / full for value, extent, full in zip(point, whole.size[::-1], texture.size[::-1]))
    part, own = Texture((texture.pages.crop(0, box),), texture.names), _cut(allocation, box)
    near = (point[0] - box[1], point[1] - box[0])
    return [look_picture(whole, shown, (x, y), base=_level(texture)), look_picture(part, own, near)]


def question_pictures(
    texture: Texture, allocation: Allocation, relevance: Relevance, question: str
) -> list[Image.Image]:
    """`question_picture` of the whole and of its most relevant part."""
    assert texture.pages is not None  # `draw` has looked
    whole, box = Texture(texture.levels, texture.names), _part(texture.size, weightiest(relevance, (SIDE, SIDE)))
    shown, shrunk = scaled(allocation, whole.size), replace(relevance, size=whole.size)
    part, own = Texture((texture.pages.crop(0, box),), texture.names), _cut(allocation, box)
    title = f"the part at {box[1]}, {box[0]} of {texture.size[1]} x {texture.size[0]} pixels"
    return [
        question_picture(whole, shown, shrunk, question, base=_level(texture)),
        question_picture(part, own, _cut_relevance(relevance, box), title),
    ]


def scaled(allocation: Allocation, size: tuple[int, int]) -> Allocation:
    """The same footprints on the image at another size."""
    ratio = torch.tensor([size[1] / allocation.size[1], size[0] / allocation.size[0]], device=allocation.centre.device)
    centre, ddx, ddy = (one * ratio for one in (allocation.centre, allocation.ddx, allocation.ddy))
    return replace(allocation, centre=centre, ddx=ddx, ddy=ddy, size=size)


def _level(texture: Texture) -> float:
    return math.log2(texture.size[0] / texture.levels[0].shape[2])


def _part(size: tuple[int, int], point: tuple[float, float]) -> Box:
    """A square of pixels around a point, inside the image."""
    height, width = (min(SIDE, extent) for extent in size)
    left = min(max(round(point[0] - width / 2), 0), size[1] - width)
    top = min(max(round(point[1] - height / 2), 0), size[0] - height)
    return top, left, top + height, left + width


def _cut(allocation: Allocation, box: Box) -> Allocation:
    """The footprints that reach into a box, seen from its corner."""
    top, left, bottom, right = box
    corner = torch.tensor([left, top], device=allocation.centre.device)
    low, high = allocation.boxes[..., :2] - corner, allocation.boxes[..., 2:] - corner
    extent = torch.tensor([right - left, bottom - top], device=corner.device)
    inside = allocation.valid & (high > 0).all(-1) & (low < extent).all(-1)
    return replace(
        allocation, centre=allocation.centre - corner, valid=inside, size=(bottom - top, right - left)
    )


def _cut_relevance(relevance: Relevance, box: Box) -> Relevance:
    """The cells of a box, give or take a part of a cell."""
    (rows, columns), (height, width) = relevance.grid, relevance.size
    top, left = box[0] * rows // height, box[1] * columns // width
    bottom, right = max(top + 1, box[2] * rows // height), max(left + 1, box[3] * columns // width)

    def part(one: Tensor) -> Tensor:
        return one[:, top:bottom, left:right]

    own = {name: part(getattr(relevance, name)) for name in ("mass", "legible_scale", "ink")}
    mass = normalised(own.pop("mass"))
    return replace(relevance, mass=mass, **own, size=(box[2] - box[0], box[3] - box[1]))
