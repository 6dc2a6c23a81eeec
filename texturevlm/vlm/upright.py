"""Turned footprints as a model reads them: upright, at their places in the upright frame of the page.

Where tokens are placed in an upright picture (`texturevlm.placement`), most are upright already, and stamps and signs
alone are turned. Footprints that a caller turned himself come without a frame; the angle that most of their area has is
taken.
"""

from __future__ import annotations

from dataclasses import replace
from operator import itemgetter

import torch
from torch import Tensor

from texturevlm.frame import QUARTER, turn_vectors, upright_size, within
from texturevlm.types import Allocation

ROUNDED = 10  # parts of a degree that angles of footprints are compared by
_SQUARE = 1e-3  # how far the axes of a readable footprint may be from perpendicular, as a cosine
_NEAR = 0.75  # of the sum of two sides: tokens that are no further apart are neighbours, also at a corner


def as_read(function: str, allocation: Allocation) -> Allocation:
    """Where a model places the tokens: upright, in the upright frame of the angle that most of their area has.

    Neighbours of another angle, such as those of a stamp, are turned upright together, about their middle: its lines
    arrive as lines, and its middle at its place in that frame. Upright allocations are returned as they are. Reads
    values, so it waits for a GPU.
    """
    angles = {
        reading_angle(function, allocation.each(itemgetter(slice(one, one + 1)))) for one in range(allocation.batch)
    }
    if len(angles) > 1:
        raise ValueError(f"{function}: allocation must have one angle for all images of a batch, got {len(angles)}")
    if (angle := angles.pop()) is None:
        return allocation
    middle = allocation.centre.new_tensor([allocation.size[1], allocation.size[0]]) / 2
    along, down = (axis.norm(dim=-1) for axis in (allocation.ddx, allocation.ddy))
    upright = replace(
        allocation,
        centre=turn_vectors(allocation.centre - middle, -angle),
        ddx=torch.stack([along, torch.zeros_like(along)], -1),
        ddy=torch.stack([torch.zeros_like(down), down], -1),
    )
    height, width = upright_size(allocation.size, angle)
    upright = _groups_upright(allocation, upright, angle, (width, height))
    low, high = -middle.new_tensor([width, height]) / 2, middle.new_tensor([width, height]) / 2
    if angle % QUARTER:  # blank corners have no tokens
        boxes = upright.boxes[upright.valid].detach()
        low, high = low.maximum(boxes[:, :2].amin(0)).floor(), high.minimum(boxes[:, 2:].amax(0)).ceil()
    columns, rows = (max(1, round(side)) for side in (high - low).tolist())
    return replace(upright, centre=upright.centre - low, size=(rows, columns))


def _groups_upright(allocation: Allocation, upright: Allocation, angle: float, extent: tuple[int, int]) -> Allocation:
    """Turn each group of neighbours with an angle of their own about its middle; it stays inside the frame.

    upright: the tokens at their places from the middle of the frame of `angle`, which has this extent (x, y)
    """
    ddx = allocation.ddx.detach().double().cpu()
    own = torch.rad2deg(torch.atan2(ddx[..., 1], ddx[..., 0])) - angle
    steps = ((own + 180).remainder(360) - 180).mul(ROUNDED).round()
    others = allocation.valid.cpu() & (steps != 0)
    centre, border = upright.centre.clone(), upright.centre.new_tensor(extent) / 2
    half = torch.stack([upright.ddx[..., 0], upright.ddy[..., 1]], -1) * (upright.patch / 2)
    for image in others.any(1).nonzero()[:, 0].tolist():
        for members in _neighbours(centre[image], half[image], steps[image], others[image]):
            places, around = centre[image, members], half[image, members]
            middle = places.mean(0)
            places = middle + turn_vectors(places - middle, -float(steps[image, members[0]]) / ROUNDED)
            below = (-border - (places - around).amin(0)).clamp(min=0)
            above = ((places + around).amax(0) - border).clamp(min=0)
            centre[image, members] = places + (below - above)
    return replace(upright, centre=centre)


def _neighbours(centre: Tensor, half: Tensor, steps: Tensor, marked: Tensor) -> list[list[int]]:
    """The marked tokens of one image, by angle and nearness. centre, half: (K, 2); steps, marked: (K,)"""
    centre, side = centre.detach().cpu(), half.detach().cpu().amax(-1) * 2
    near = torch.cdist(centre, centre) <= _NEAR * (side[:, None] + side)
    near &= (steps[:, None] == steps) & marked
    left, found = set(marked.nonzero()[:, 0].tolist()), []
    while left:
        group = reached = {left.pop()}
        while reached:
            reached = set(near[sorted(reached)].any(0).nonzero()[:, 0].tolist()) & left
            left -= reached
            group = group | reached
        found.append(sorted(group))
    return found


def reading_angle(function: str, allocation: Allocation) -> float | None:
    """The angle that most of the area of the used footprints has; None if all of them are upright."""
    used = allocation.valid
    if bool((allocation.upright | ~used).all()):
        return None
    ddx, ddy = (axis[used].detach().double().cpu() for axis in (allocation.ddx, allocation.ddy))
    lengths = ddx.norm(dim=-1) * ddy.norm(dim=-1)
    mirrored = ddx[:, 0] * ddy[:, 1] - ddx[:, 1] * ddy[:, 0] <= 0
    slanted = (ddx * ddy).sum(-1).abs() > _SQUARE * lengths
    if bool((mirrored | slanted).any()):
        raise ValueError(
            f"{function}: allocation must have footprints with perpendicular axes, upright or rotated, since a "
            f"pretrained model cannot read mirrored or slanted ones, got {int((mirrored | slanted).sum())} of those"
        )
    angles = torch.rad2deg(torch.atan2(ddx[:, 1], ddx[:, 0]))
    steps, group = (angles * ROUNDED).round().remainder(360 * ROUNDED).unique(return_inverse=True)
    cover = ddx.abs().sum(-1) / ddx.norm(dim=-1)  # footprints that follow a region's text are so much longer
    most = torch.zeros(len(steps), dtype=torch.float64).index_add_(0, group, lengths / cover.square()).argmax()
    return within(float(steps[most]) / ROUNDED)
