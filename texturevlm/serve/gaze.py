"""Where a person has looked: a trail of points becomes the channel `gaze`, and raises the relevance there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from texturevlm.relevance import PRIOR, Relevance, normalised
from texturevlm.serve.limits import ApiError

Point = tuple[float, float, float]  # x and y in pixels, and how long the eye rested there
LONGEST_TRAIL = 64  # points
SPREAD = 0.06  # standard deviation of what is seen around a point, of the longer side
WANTED = f"trail must be at most {LONGEST_TRAIL} points of x, y and seconds, finite, seconds of at least 0"
CELLS = 64  # of the map, along the longer side


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


def looked_at(relevance: Relevance, gaze: Tensor) -> Relevance:
    """The relevance with the channel's own weight: where it is 1, a cell is exp(weight) times as relevant."""
    cells = torch.nn.functional.interpolate(gaze[None], relevance.grid, mode="bilinear")[0].to(relevance.mass)
    return replace(relevance, mass=normalised(relevance.mass * torch.exp(PRIOR["gaze"] * cells)))


def trail_of(text: str) -> list[Point]:
    """Points of an address: x,y,seconds;x,y,seconds…"""
    try:
        points = [(x, y, rest) for x, y, rest in ([float(n) for n in one.split(",")] for one in text.split(";") if one)]
    except ValueError:
        raise ApiError(422, WANTED) from None
    return check_trail(points)


def check_trail(points: Sequence[Point]) -> list[Point]:
    """Raise unless there are few enough, all finite, with rests of at least 0."""
    finite = all(math.isfinite(value) for point in points for value in point)
    if len(points) > LONGEST_TRAIL or not finite or any(rest < 0 for _, _, rest in points):
        raise ApiError(422, WANTED)
    return list(points)
