"""Turned images: the picture that a reader turns upright in mind, and footprints that follow.

An angle is the direction in which the text of an image runs, in degrees from +x towards +y, which is down: 90 for a
page that was turned clockwise by a quarter. The upright frame of an image is the least upright box around what is not
blank after it was turned back. Tokens are chosen there, and a model reads them from the picture that was turned
upright: by a bicubic filter, so that small print stays sharper than by turned footprints. In the image as it was given,
their footprints are turned with the text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.types import Allocation, Texture

AUTO = "auto"  # the angle is found (relevance/orientation.py)
QUARTER = 90.0
ROUNDED = 10  # parts of a degree that angles of footprints are compared by
_SQUARE = 1e-3  # how far the axes of a readable footprint may be from perpendicular, as a cosine
_FEW_TEXELS = 1 << 17  # of the level that paper and ink are told apart in
_NEAR = 0.75  # of the sum of two sides: tokens that are no further apart are neighbours, also at a corner
_INK = 0.04  # difference from the paper, after averaging


def check_turn(function: str, turn: float | str) -> float | str:
    """`auto`, or an angle in degrees, made to lie from -180 to 180."""
    if turn == AUTO:
        return AUTO
    if isinstance(turn, (bool, str)) or not isinstance(turn, (int, float)) or not math.isfinite(turn):
        raise ValueError(f"{function}: turn must be 'auto' or the angle of the text in degrees, got {turn!r}")
    return _within(float(turn))


def upright_size(size: tuple[int, int], angle: float) -> tuple[int, int]:
    """(height, width) of the least upright box around an image of `size` that was turned back."""
    if angle % QUARTER == 0:
        return size if angle % 180 == 0 else (size[1], size[0])
    (height, width), ((cosine, sine), _) = size, _axes(angle)
    cosine, sine = abs(cosine), abs(sine)
    return math.ceil(width * sine + height * cosine - 1e-6), math.ceil(width * cosine + height * sine - 1e-6)


class UprightFrame(NamedTuple):
    """Where an upright picture of an image lies.

    angle: of the image's text, in degrees
    given: (height, width) of the image
    box:   xyxy, in pixels from the image's centre, along the axes of the text
    """

    angle: float
    given: tuple[int, int]
    box: tuple[float, float, float, float]

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the upright picture."""
        x0, y0, x1, y1 = self.box
        return max(1, round(y1 - y0)), max(1, round(x1 - x0))


def whole_frame(size: tuple[int, int], angle: float) -> UprightFrame:
    """The frame of all of an image of (height, width), blank or not."""
    height, width = upright_size(size, angle)
    return UprightFrame(angle, size, (-width / 2, -height / 2, width / 2, height / 2))


def upright_frame(texture: Texture, angle: float) -> UprightFrame:
    """The frame of an image: all of it, or after other than quarter turns the part that is not blank.

    A page that lies askew has blank corners around it, which would make the frame up to four times as large.
    """
    whole = whole_frame(texture.size, angle)
    if angle % QUARTER == 0:
        return whole
    coarse = _coarse(texture)
    rows, columns = (coarse - _paper(texture)[..., None, None]).abs().mean(1).amax(0).gt(_INK).nonzero().unbind(1)
    if not len(rows):
        return whole
    cell = texture.size[0] / coarse.shape[2], texture.size[1] / coarse.shape[3]
    x, y = ((columns + 0.5) * cell[1] - texture.size[1] / 2), ((rows + 0.5) * cell[0] - texture.size[0] / 2)
    own = turn_vectors(torch.stack([x, y], -1).float(), -angle)
    margin = max(cell) / 2  # no more: a frame larger than the page costs tokens, or has coarser cells
    low, high = (own.amin(0) - margin).floor().tolist(), (own.amax(0) + margin).ceil().tolist()
    x0, y0, x1, y1 = whole.box
    return UprightFrame(angle, texture.size, (max(x0, low[0]), max(y0, low[1]), min(x1, high[0]), min(y1, high[1])))


def turned_upright(texture: Texture, frame: UprightFrame) -> Texture:
    """The image in its upright frame, level 0 alone; beyond the image's border there is paper."""
    if frame.angle == 0:
        return texture
    image = texture.levels[0]
    if frame.angle % QUARTER == 0:
        turned = image.rot90(round(frame.angle / QUARTER), (2, 3))
        return replace(texture, levels=(turned,), size=frame.size, resident=None)
    grid = _sources(frame, frame.size, image)
    found = functional.grid_sample(image.float(), grid, mode="bicubic", padding_mode="border", align_corners=False)
    inside = (grid[0].abs() <= 1).all(-1)
    found = torch.where(inside, found.clamp(0, 1), _paper(texture)[..., None, None]).to(image.dtype)
    return replace(texture, levels=(found,), size=frame.size, resident=None)


def turned_maps(maps: Tensor, frame: UprightFrame) -> Tensor:
    """Maps (B, h, w) of the image, of any extent, in its upright frame, at about their own resolution; 0 beyond it."""
    if frame.angle % QUARTER == 0:
        return maps.rot90(round(frame.angle / QUARTER), (1, 2))
    finest = max(extent / side for extent, side in zip(maps.shape[1:], frame.given))
    grid = _sources(frame, (math.ceil(frame.size[0] * finest), math.ceil(frame.size[1] * finest)), maps)
    return functional.grid_sample(maps[:, None].float(), grid, mode="bilinear", align_corners=False)[:, 0]


def _sources(frame: UprightFrame, grid: tuple[int, int], like: Tensor) -> Tensor:
    """(B, h, w, 2): where in the image each of the h × w parts of its upright picture lies, from -1 to 1.

    like: a batch of as many images, on the device of the result
    """
    (height, width), (x0, y0) = frame.size, frame.box[:2]
    y, x = (
        (torch.arange(parts, device=like.device) + 0.5) * (extent / parts)
        for parts, extent in zip(grid, (height, width))
    )
    x, y = x + x0, y + y0
    (ux, uy), (vx, vy) = _axes(frame.angle)
    across, down = x * ux + y[:, None] * vx, x * uy + y[:, None] * vy  # in pixels from the image's centre
    rows, columns = frame.given
    return torch.stack([across * (2 / columns), down * (2 / rows)], -1)[None].expand(len(like), -1, -1, -1)


def turned_back(allocation: Allocation, frame: UprightFrame) -> Allocation:
    """Footprints in the upright frame → the same in the image, turned with its text."""
    if frame.angle == 0:
        return allocation
    height, width = frame.given
    corner, middle = (allocation.centre.new_tensor(one) for one in (frame.box[:2], [width / 2, height / 2]))
    return replace(
        allocation,
        centre=turn_vectors(allocation.centre + corner, frame.angle) + middle,
        ddx=turn_vectors(allocation.ddx, frame.angle),
        ddy=turn_vectors(allocation.ddy, frame.angle),
        size=frame.given,
    )


class TextRegion(NamedTuple):
    """A part of an image whose text has an angle of its own.

    angle: in degrees; cells: (n, 4), boxes on it, xyxy in pixels
    """

    angle: float
    cells: Tensor

    def holds(self, points: Tensor) -> Tensor:
        """(…, 2) → (…): which points lie in the least box around the cells along the axes of the text."""
        cells = self.cells.to(points)
        middle, half = (cells[:, :2] + cells[:, 2:]) / 2, (cells[:, 2:] - cells[:, :2]).amax(0) / 2
        own, places = (turn_vectors(one, -self.angle) for one in (middle, points))
        return ((places >= own.amin(0) - half) & (places <= own.amax(0) + half)).all(-1)


def following(allocation: Allocation, regions: Sequence[TextRegion]) -> Allocation:
    """Turn the footprints in regions with their text, in place; each still covers what it covered.

    A footprint that is larger than a region stays as it is: most of it shows something else.
    """
    ddx, ddy = allocation.ddx.clone(), allocation.ddy.clone()
    extent = torch.maximum(ddx.norm(dim=-1), ddy.norm(dim=-1)) * allocation.patch
    for region in regions:
        cells = region.cells.to(allocation.centre)
        small = extent <= (cells[:, 2:].amax(0) - cells[:, :2].amin(0)).amax()
        follows = (region.holds(allocation.centre) & small)[..., None]
        (cosine, sine), _ = _axes(region.angle)
        cover = abs(cosine) + abs(sine)  # of a turned square around an upright one
        ddx = torch.where(follows, turn_vectors(ddx, region.angle) * cover, ddx)
        ddy = torch.where(follows, turn_vectors(ddy, region.angle) * cover, ddy)
    return replace(allocation, ddx=ddx, ddy=ddy)


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
    return _within(float(steps[most]) / ROUNDED)


def _within(angle: float) -> float:
    """-180 up to 180 degrees."""
    return (angle + 180) % 360 - 180


def turn_vectors(vectors: Tensor, angle: float) -> Tensor:
    """(…, 2) vectors of the upright frame in the axes of the image."""
    across, down = _axes(angle)
    return vectors @ vectors.new_tensor([across, down])


def _axes(angle: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """The axes of the upright frame, x then y, in the image; exact for quarter turns."""
    cosine, sine = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    if angle % QUARTER == 0:
        cosine, sine = float(round(cosine)), float(round(sine))
    return (cosine, sine), (-sine, cosine)


def _coarse(texture: Texture) -> Tensor:
    """(B, C, h, w): the finest level of few texels."""
    levels = texture.mipmapped().levels
    return next(level for level in levels if level.shape[2] * level.shape[3] <= _FEW_TEXELS).float()


def _paper(texture: Texture) -> Tensor:
    """(B, C): the median of each channel."""
    return _coarse(texture).flatten(2).median(2).values
