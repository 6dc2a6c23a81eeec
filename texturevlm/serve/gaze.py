"""Where a person looks: at a point, where tokens are densest; and where the eye has rested, which is evidence."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from texturevlm.allocate import foveate
from texturevlm.placement import Allocator, Picture
from texturevlm.relevance import Relevance
from texturevlm.types import Allocation, Texture

Point = tuple[float, float, float]  # x and y in pixels, and how long the eye rested there
LONGEST_TRAIL = 64  # points
SPREAD = 0.06  # standard deviation of what is seen around a point, of the longer side
CELLS = 64  # of the map, along the longer side
FOVEA = 0.1  # `e0` of `foveate`


def gaze_map(trail: Sequence[Point], size: tuple[int, int]) -> Tensor:
    """(1, h, w), 0 to 1: the channel `gaze` of an image of this size. A longer rest counts more."""
    height, width = size
    longer = max(size)
    rows, columns = (torch.arange(-(-CELLS * extent // longer)) + 0.5 for extent in size)
    cell = longer / CELLS
    found = torch.zeros(len(rows), len(columns))
    for x, y, rest in trail:
        across = ((columns * cell - min(max(x, 0.0), width)) / (SPREAD * longer)) ** 2
        down = ((rows * cell - min(max(y, 0.0), height)) / (SPREAD * longer)) ** 2
        found += rest * torch.exp(-0.5 * (down[:, None] + across))
    return (found / found.max().clamp(min=1e-12))[None]


def gaze_evidence(trail: Sequence[Point], picture: Picture) -> Tensor | None:
    """The evidence (1, h, w) of a trail in the image as it was given, in the picture; None without a trail."""
    if not trail:
        return None
    return picture.frame.maps(gaze_map(trail, picture.original.size)).to(picture.texture.device)


def around(point: tuple[float, float], picture: Picture) -> Allocator:
    """An allocator whose tokens are densest at a point of the image as it was given, whatever the question."""
    x, y = picture.frame.inverse().apply(torch.tensor(point, dtype=torch.float64)).tolist()
    height, width = picture.texture.size
    inside = min(max(x, 0.0), width - 1.0), min(max(y, 0.0), height - 1.0)

    def foveated(texture: Texture, relevance: Relevance, *, budget: int, patch: int) -> Allocation:
        most = min(budget, height * width)
        return foveate(texture.size, fixation=inside, budget=most, patch=patch, e0=FOVEA, device=texture.device)

    return foveated
