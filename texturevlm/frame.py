"""Frames: where a picture lies in the image that it was made from.

Text may lie on its side, askew or upside down. Its angle says where lines run: from +x towards +y (down), so 90 for a
page that was turned clockwise by a quarter. Tokens are chosen in an upright picture of the image, and a model reads
them from there: that picture is made by a bicubic filter, so that small print stays sharper than by turned footprints.
A small image may be enlarged, too. The frame of the picture says where its pixels lie in the image.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.types import Allocation, Texture

AUTO = "auto"  # the angle is found (relevance/orientation.py)
QUARTER = 90.0
_FEW_TEXELS = 1 << 17  # of the level that paper and ink are told apart in
_INK = 0.04  # difference from the paper, after averaging

Vector = tuple[float, float]  # x, then y


def check_turn(function: str, turn: float | str) -> float | str:
    """`auto`, or an angle in degrees, made to lie from -180 to 180."""
    if turn == AUTO:
        return AUTO
    if isinstance(turn, (bool, str)) or not isinstance(turn, (int, float)) or not math.isfinite(turn):
        raise ValueError(f"{function}: turn must be 'auto' or the angle of the text in degrees, got {turn!r:.40}")
    return within(float(turn))


class Frame(NamedTuple):
    """An affine map from the pixels of a picture to those of the image that it was made from.

    size:         (height, width) of the picture
    given:        (height, width) of the image
    across, down: how far a step of one pixel along the picture's x, and along its y, goes in the image
    origin:       where the picture's upper left corner lies in the image
    """

    size: tuple[int, int]
    given: tuple[int, int]
    across: Vector = (1.0, 0.0)
    down: Vector = (0.0, 1.0)
    origin: Vector = (0.0, 0.0)

    @classmethod
    def stretch(cls, size: tuple[int, int], given: tuple[int, int]) -> Frame:
        """All of an image at another size."""
        return cls(size, given, (given[1] / size[1], 0.0), (0.0, given[0] / size[0]))

    @classmethod
    def turned(cls, given: tuple[int, int], angle: float, box: Sequence[float] | None = None) -> Frame:
        """An image turned back by an angle in degrees.

        box: xyxy in pixels from the image's centre, along the axes of the text: the part that is shown, or all of it
        """
        height, width = upright_size(given, angle)
        x0, y0, x1, y1 = (-width / 2, -height / 2, width / 2, height / 2) if box is None else box
        across, down = axes(angle)
        corner = (x0 * across[0] + y0 * down[0] + given[1] / 2, x0 * across[1] + y0 * down[1] + given[0] / 2)
        return cls((max(1, round(y1 - y0)), max(1, round(x1 - x0))), given, across, down, corner)

    @property
    def angle(self) -> float:
        """Of the picture's x axis in the image, in degrees from -180 to 180."""
        return within(math.degrees(math.atan2(self.across[1], self.across[0])))

    @property
    def scale(self) -> float:
        """Pixels of the image along one pixel of the picture."""
        return math.hypot(*self.across)

    @property
    def is_whole(self) -> bool:
        """Whether picture and image are the same."""
        return self == Frame(self.given, self.given)

    def apply(self, points: Tensor) -> Tensor:
        """Points (…, 2) of the picture → of the image."""
        return self.move(points) + points.new_tensor(self.origin)

    def move(self, vectors: Tensor) -> Tensor:
        """Vectors (…, 2), such as axes of footprints, in the picture → in the image."""
        return vectors @ vectors.new_tensor([self.across, self.down])

    def compose(self, inner: Frame) -> Frame:
        """The frame of a picture (`inner`) that was made from this picture."""
        ours = torch.tensor([self.across, self.down], dtype=torch.float64)
        along = torch.tensor([inner.across, inner.down, inner.origin], dtype=torch.float64) @ ours
        across, down, corner = along.tolist()
        corner = corner[0] + self.origin[0], corner[1] + self.origin[1]
        return Frame(inner.size, self.given, tuple(across), tuple(down), corner)

    def inverse(self) -> Frame:
        """The map from the image to the picture."""
        (a, b), (c, d), (x, y) = self.across, self.down, self.origin
        area = a * d - b * c
        across, down = (d / area, -b / area), (-c / area, a / area)
        corner = -(x * across[0] + y * down[0]), -(x * across[1] + y * down[1])
        return Frame(self.given, self.size, across, down, corner)

    def footprints(self, allocation: Allocation) -> Allocation:
        """Footprints in the picture → the same in the image, turned with its text."""
        if self.is_whole:
            return allocation
        centre, ddx, ddy = self.apply(allocation.centre), self.move(allocation.ddx), self.move(allocation.ddy)
        return replace(allocation, centre=centre, ddx=ddx, ddy=ddy, size=self.given)

    def maps(self, maps: Tensor) -> Tensor:
        """Maps (B, h, w) of the image, of any extent, → of the picture, at about their resolution; 0 beyond the
        image."""
        if self.angle % QUARTER == 0:
            return maps.rot90(round(self.angle / QUARTER), (1, 2))
        finest = max(extent / side for extent, side in zip(maps.shape[1:], self.given)) * self.scale
        grid = self._sources((math.ceil(self.size[0] * finest), math.ceil(self.size[1] * finest)), maps)
        return functional.grid_sample(maps[:, None].float(), grid, mode="bilinear", align_corners=False)[:, 0]

    def show(self, texture: Texture) -> Texture:
        """The picture of an image, level 0 alone; beyond the image's border there is paper."""
        upright = self._upright(texture)
        if upright.size == self.size:
            return upright
        image = upright.levels[0]
        found = functional.interpolate(image.float(), self.size, mode="bicubic").clamp(0, 1)
        return replace(upright, levels=(found.to(image.dtype),), size=self.size, resident=None)

    def _upright(self, texture: Texture) -> Texture:
        """The picture at the scale of the image."""
        if self.angle == 0:
            return texture
        image = texture.levels[0]
        if self.angle % QUARTER == 0:
            turned = image.rot90(round(self.angle / QUARTER), (2, 3))
            return replace(texture, levels=(turned,), size=(turned.shape[2], turned.shape[3]), resident=None)
        size = round(self.size[0] * self.scale), round(self.size[1] * self.scale)
        grid = self._sources(size, image)
        found = functional.grid_sample(image.float(), grid, mode="bicubic", padding_mode="border", align_corners=False)
        inside = (grid[0].abs() <= 1).all(-1)
        found = torch.where(inside, found.clamp(0, 1), _paper(texture)[..., None, None]).to(image.dtype)
        return replace(texture, levels=(found,), size=size, resident=None)

    def _sources(self, grid: tuple[int, int], like: Tensor) -> Tensor:
        """(B, h, w, 2): where in the image each of the h × w parts of the picture lies, from -1 to 1.

        Places are counted from the middle of the image, where float32 has the most digits.
        like: a batch of as many images, on the device of the result
        """
        scale, (rows, columns) = self.scale, self.given
        (ux, uy), (vx, vy) = ((part / scale for part in axis) for axis in (self.across, self.down))
        left, top = self.origin[0] - columns / 2, self.origin[1] - rows / 2
        corner = round(left * vx + top * vy, 6), round(left * ux + top * uy, 6)  # y, x along the axes of the text
        y, x = (
            (torch.arange(parts, device=like.device) + 0.5) * (extent * scale / parts) + begin
            for parts, extent, begin in zip(grid, self.size, corner)
        )
        across, down = x * ux + y[:, None] * vx, x * uy + y[:, None] * vy
        return torch.stack([across * (2 / columns), down * (2 / rows)], -1)[None].expand(len(like), -1, -1, -1)


def upright_frame(texture: Texture, angle: float, times: int = 1) -> Frame:
    """The frame of an image's upright picture: all of it, or after other than quarter turns the part that is not blank.

    A page that lies askew has blank corners around it, which would make the picture up to four times as large.
    times: that the picture is enlarged
    """
    frame = _upright_frame(texture, angle)
    if times == 1:
        return frame
    return frame.compose(Frame.stretch((frame.size[0] * times, frame.size[1] * times), frame.size))


def _upright_frame(texture: Texture, angle: float) -> Frame:
    whole = Frame.turned(texture.size, angle)
    if angle % QUARTER == 0:
        return whole
    coarse = _coarse(texture)
    rows, columns = (coarse - _paper(texture)[..., None, None]).abs().mean(1).amax(0).gt(_INK).nonzero().unbind(1)
    if not len(rows):
        return whole
    cell = texture.size[0] / coarse.shape[2], texture.size[1] / coarse.shape[3]
    x, y = ((columns + 0.5) * cell[1] - texture.size[1] / 2), ((rows + 0.5) * cell[0] - texture.size[0] / 2)
    own = turn_vectors(torch.stack([x, y], -1).float(), -angle)
    margin = max(cell) / 2  # no more: a picture larger than the page costs tokens, or has coarser cells
    low, high = (own.amin(0) - margin).floor().tolist(), (own.amax(0) + margin).ceil().tolist()
    height, width = whole.size
    box = max(-width / 2, low[0]), max(-height / 2, low[1]), min(width / 2, high[0]), min(height / 2, high[1])
    return Frame.turned(texture.size, angle, box)


class TextRegion(NamedTuple):
    """A part of a picture whose text has an angle of its own.

    angle: in degrees; cells: (n, 4), boxes on it, xyxy in pixels
    """

    angle: float
    cells: Tensor

    def holds(self, points: Tensor) -> Tensor:
        """(…, 2) → (…): which points lie in the least box around the cells along the axes of the text."""
        cells = self.cells.to(points)
        middle, half = (cells[:, :2] + cells[:, 2:]) / 2, (cells[:, 2:] - cells[:, :2]).amax(0) / 2
        own, places = (turn_vectors(vectors, -self.angle) for vectors in (middle, points))
        return ((places >= own.amin(0) - half) & (places <= own.amax(0) + half)).all(-1)


def following(allocation: Allocation, regions: Sequence[TextRegion]) -> Allocation:
    """Turn the footprints in regions with their text, in place; each still covers what it covered.

    A footprint that is larger than a region stays as it is: most of it shows something else.
    """
    if not regions:
        return allocation
    ddx, ddy = allocation.ddx.clone(), allocation.ddy.clone()
    extent = torch.maximum(ddx.norm(dim=-1), ddy.norm(dim=-1)) * allocation.patch
    for region in regions:
        cells = region.cells.to(allocation.centre)
        small = extent <= (cells[:, 2:].amax(0) - cells[:, :2].amin(0)).amax()
        follows = (region.holds(allocation.centre) & small)[..., None]
        (cosine, sine), _ = axes(region.angle)
        cover = abs(cosine) + abs(sine)  # of a turned square around an upright one
        ddx = torch.where(follows, turn_vectors(ddx, region.angle) * cover, ddx)
        ddy = torch.where(follows, turn_vectors(ddy, region.angle) * cover, ddy)
    return replace(allocation, ddx=ddx, ddy=ddy)


def upright_size(size: tuple[int, int], angle: float) -> tuple[int, int]:
    """(height, width) of the least upright box around an image of `size` that was turned back."""
    if angle % QUARTER == 0:
        return size if angle % 180 == 0 else (size[1], size[0])
    (height, width), ((cosine, sine), _) = size, axes(angle)
    cosine, sine = abs(cosine), abs(sine)
    return math.ceil(width * sine + height * cosine - 1e-6), math.ceil(width * cosine + height * sine - 1e-6)


def turn_vectors(vectors: Tensor, angle: float) -> Tensor:
    """(…, 2) vectors along the axes of a text in the axes of the image."""
    return vectors @ vectors.new_tensor(axes(angle))


def axes(angle: float) -> tuple[Vector, Vector]:
    """The axes of a text in the image, along its lines and down, of length 1; exact for quarter turns."""
    cosine, sine = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    if angle % QUARTER == 0:
        cosine, sine = float(round(cosine)), float(round(sine))
    return (cosine, sine), (-sine, cosine)


def within(angle: float) -> float:
    """The same angle from -180 up to 180 degrees."""
    return (angle + 180) % 360 - 180


def _coarse(texture: Texture) -> Tensor:
    """(B, C, h, w): the finest level of few texels."""
    levels = texture.mipmapped().levels
    return next(level for level in levels if level.shape[2] * level.shape[3] <= _FEW_TEXELS).float()


def _paper(texture: Texture) -> Tensor:
    """(B, C): the median of each channel."""
    return _coarse(texture).flatten(2).median(2).values
