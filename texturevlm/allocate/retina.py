"""The patterns of `logpolar`: cells are grouped into rings of sectors, or around the seeds of a golden-angle spiral.

Rings are round if footprints may be rotated, square if they stay upright. Each cell with ink belongs to the nearest
fixation, and there to one sector or to the nearest seed. A footprint is the box around one group of cells.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from texturevlm.allocate.cells import Array, Cells, inside
from texturevlm.allocate.footprints import Box
from texturevlm.allocate.search import BISECTIONS, blank_boxes
from texturevlm.types import Allocation

_GOLDEN = math.pi * (3 - math.sqrt(5))
_MOST_STRETCHED = 2.0  # a footprint's longer side over its shorter one

Group = Array  # the numbers of a token's cells, row by row


@dataclass(frozen=True)
class Oriented:
    """A footprint: centre, sides along its own axes in pixels, the angle of its first axis, and its mass."""

    centre: tuple[float, float]
    sides: tuple[float, float]
    angle: float
    mass: float

    @property
    def box(self) -> Box:
        """The upright box around it."""
        (x, y), (first, second) = self.centre, self.sides
        cos, sin = abs(math.cos(self.angle)), abs(math.sin(self.angle))
        wide, tall = (first * cos + second * sin) / 2, (first * sin + second * cos) / 2
        return x - wide, y - tall, x + wide, y + tall


class Retina:
    """The cells of one image that have ink, each with its fixation and its offset from it."""

    def __init__(self, cells: Cells, points: Array, *, e0: float, spiral: bool, rotated: bool) -> None:
        self.cells, self.points, self.patch = cells, points, cells.patch
        self.e0 = e0 * max(cells.size)  # in pixels
        self.spiral, self.rotated = spiral, rotated
        rows, columns = np.indices(cells.ink.shape).reshape(2, -1)
        self.x, self.y = (columns + 0.5) * cells.cell[1], (rows + 0.5) * cells.cell[0]
        self.ink = np.flatnonzero(cells.ink)
        dx, dy = (place[self.ink, None] - points[:, axis] for axis, place in enumerate((self.x, self.y)))
        # Upright boxes fill square rings without overlap; the distance in a square ring is the longer offset.
        distance = np.hypot(dx, dy) if rotated or spiral else np.maximum(np.abs(dx), np.abs(dy))
        self.owner = distance.argmin(1)
        mine = np.arange(len(self.ink)), self.owner
        self.dx, self.dy, self.radius = dx[mine], dy[mine], distance[mine]

    def tokens(self, budget: int) -> list[Oriented]:
        """As fine as the budget allows; leftover tokens cut the heaviest groups in two, then show blank parts."""
        low = math.log(self._gain_of_area(budget))  # partly filled tokens can only need more
        high = math.log(8 + 8 * max(self.cells.size) / self.e0)
        groups = self._groups(math.exp(high))
        for _ in range(BISECTIONS):
            middle = low + (high - low) / 4  # the answer lies near the low end
            tried = self._groups(math.exp(middle))
            if len(tried) <= budget:
                groups, high = tried, middle
            else:
                low = middle
        tokens, done = self._cut(groups, budget)
        if done and len(tokens) < budget:
            boxes = [token.box for token in tokens]
            for (x0, y0, x1, y1), mass in blank_boxes(self.cells, boxes, budget - len(tokens)):
                tokens.append(Oriented(((x0 + x1) / 2, (y0 + y1) / 2), (x1 - x0, y1 - y0), 0.0, mass))
        return sorted(tokens, key=lambda token: -token.mass)

    def _gain_of_area(self, budget: int) -> float:
        """The gain at which `budget` tokens fill the area of the ink, or all tokens are a patch wide."""
        area = self.cells.cell[0] * self.cells.cell[1]
        low, high = 1e-3 * self.patch / max(self.cells.size), 8 + 8 * max(self.cells.size) / self.e0
        for _ in range(2 * BISECTIONS):
            middle = math.sqrt(low * high)
            enough = area * (self._width(self.radius, middle) ** -2.0).sum() <= budget
            low, high = (low, middle) if enough else (middle, high)
        return low

    def _groups(self, gain: float) -> list[Group]:
        """The cells of each token, if tokens are gain · (distance + e0) wide, and at least a patch."""
        if self.spiral:
            number = self._seeds(gain)
        else:
            number = self._round_sectors(gain) if self.rotated else self._square_sectors(gain)
        name = self.owner.astype(np.int64) << 40 | number
        order = np.argsort(name, kind="stable")
        cuts = np.flatnonzero(np.diff(name[order])) + 1
        return list(np.split(self.ink[order], cuts))

    def _width(self, radius: Array, gain: float) -> Array:
        return np.asarray(np.maximum(gain * (radius + self.e0), self.patch))

    def _ring(self, gain: float) -> tuple[Array, Array, Array]:
        """Each cell's ring, and its inner and outer radius. Rings are as deep as tokens are wide; ring 0 is a disc."""
        even = max(0.0, self.patch / gain - self.e0)  # up to this radius tokens are a patch wide
        depth = np.minimum(self.radius, even) / self.patch
        depth += np.log((np.maximum(self.radius, even) + self.e0) / (even + self.e0)) / gain
        ring = np.floor(depth + 0.5)

        def at(depth: Array) -> Array:
            beyond = np.maximum(depth - even / self.patch, 0) * gain
            return np.asarray(np.minimum(np.maximum(depth, 0) * self.patch, even) + (even + self.e0) * np.expm1(beyond))

        return ring, at(ring - 0.5), at(ring + 0.5)

    def _round_sectors(self, gain: float) -> Array:
        """A number for each cell's ring and sector."""
        ring, inner, outer = self._ring(gain)
        middle = (inner + outer) / 2
        around = np.maximum(1, np.round(2 * math.pi * middle / self._width(middle, gain)))
        turns = np.arctan2(self.dy, self.dx) / (2 * math.pi) + np.where(ring % 2 == 1, 0.5, 0.0) / around  # as bricks
        sector = np.where(ring == 0, 0, np.floor(np.mod(turns, 1.0) * around))
        return np.asarray(ring.astype(np.int64) << 20 | sector.astype(np.int64))

    def _square_sectors(self, gain: float) -> Array:
        """The same for square rings: four sides, each with one corner, like a pinwheel."""
        ring, inner, outer = self._ring(gain)
        dx, dy = self.dx, self.dy
        sides = [(dx >= inner) & (dy < inner), (dy >= inner) & (dx > -inner), (dx <= -inner) & (dy > -inner)]
        side = np.select(sides, [0, 1, 2], 3)
        along = np.select(sides, [dy, -dx, -dy], dx) + outer
        count = np.maximum(1, np.round((inner + outer) / self._width((inner + outer) / 2, gain)))
        part = np.clip(np.floor(along / (inner + outer) * count), 0, count - 1)
        sector = np.where(ring == 0, 0, side * count + part)
        return np.asarray(ring.astype(np.int64) << 20 | sector.astype(np.int64))

    def _seeds(self, gain: float) -> Array:
        """The nearest seed of a spiral to each cell: seed n lies at n times the golden angle."""
        radii = np.linspace(0, self.radius.max() + 2 * self.patch, 2048)
        density = self._width(radii, gain) ** -2.0
        within = np.concatenate([[0], np.cumsum(np.pi * np.diff(radii**2) * (density[1:] + density[:-1]) / 2)])
        rank = np.floor(np.interp(self.radius, radii, within)).astype(np.int64)
        # The nearest seed is at most one ring further in or out.
        reach = 2 + math.ceil(float((2 * math.pi * self.radius / self._width(self.radius, gain)).max()))
        seeds = np.arange(max(1, round(float(within[-1]))))
        at = np.interp(seeds + 0.5, within, radii)
        seed_x, seed_y = at * np.cos(seeds * _GOLDEN), at * np.sin(seeds * _GOLDEN)
        nearest, best = np.zeros_like(rank), np.full(len(rank), math.inf)
        for offset in range(-reach, reach + 1):
            seed = np.clip(rank + offset, 0, len(seeds) - 1)
            distance = (self.dx - seed_x[seed]) ** 2 + (self.dy - seed_y[seed]) ** 2
            closer = distance < best
            nearest[closer], best[closer] = seed[closer], distance[closer]
        return np.asarray(nearest)

    def _cut(self, groups: list[Group], budget: int) -> tuple[list[Oriented], bool]:
        """The heaviest groups cut in two until there are `budget`; and whether all show the image's own pixels."""
        heap = [(-self._mass(group), number, group) for number, group in enumerate(groups)]
        heapq.heapify(heap)
        whole: list[Group] = []
        while heap and len(heap) + len(whole) < budget:
            _, _, group = heapq.heappop(heap)
            parts = self._in_two(group)
            if parts is None:
                whole.append(group)
                continue
            for part in parts:
                heapq.heappush(heap, (-self._mass(part), len(self.x) + int(part[0]), part))
        return [self._token(group) for group in [*whole, *(group for _, _, group in heap)]], not heap

    def _in_two(self, group: Group) -> tuple[Group, Group] | None:
        """Cut across the longer side; None if a token shows the group's own pixels."""
        spans = self._spans(group, self._angle(group))
        longest = int(np.argmax([high - low for low, high, _ in spans]))
        low, high, along = spans[longest]
        first = along <= (along.min() + along.max()) / 2
        if high - low <= self.patch * 1.001 or first.all():
            return None
        return group[first], group[~first]

    def _mass(self, group: Group) -> float:
        return float(self.cells.mass.flat[group].sum())

    def _angle(self, group: Group) -> float:
        """The angle of the radius through the group's centre; 0 at a fixation and for upright footprints."""
        if not self.rotated:
            return 0.0
        x, y = self.x[group].mean(), self.y[group].mean()
        offset = self.points - (x, y)
        dx, dy = -offset[np.hypot(offset[:, 0], offset[:, 1]).argmin()]
        return math.atan2(dy, dx) if math.hypot(dx, dy) > self.patch / 2 else 0.0

    def _spans(self, group: Group, angle: float) -> list[tuple[float, float, Array]]:
        """Along each axis of a rotated box: where the group's cells begin and end, and their centres."""
        found = []
        for ux, uy in ((math.cos(angle), math.sin(angle)), (-math.sin(angle), math.cos(angle))):
            along = self.x[group] * ux + self.y[group] * uy
            reach = (abs(ux) * self.cells.cell[1] + abs(uy) * self.cells.cell[0]) / 2
            found.append((float(along.min() - reach), float(along.max() + reach), along))
        return found

    def _token(self, group: Group) -> Oriented:
        """The box around a group's cells, no finer than the pixels and not too long; upright ones stay in the image."""
        angle = self._angle(group)
        spans = [(low, high) for low, high, _ in self._spans(group, angle)]
        shorter = max(high - low for low, high in spans) / _MOST_STRETCHED
        middles, sides = [], []
        for (low, high), extent in zip(spans, (self.cells.size[1], self.cells.size[0])):
            side, middle = max(high - low, float(self.patch), shorter), (low + high) / 2
            if not self.rotated:
                middle = inside(middle - side / 2, side, extent) + side / 2
            middles.append(middle)
            sides.append(side)
        cos, sin = math.cos(angle), math.sin(angle)
        centre = (middles[0] * cos - middles[1] * sin, middles[0] * sin + middles[1] * cos)
        return Oriented(centre, (sides[0], sides[1]), angle, self._mass(group))


def allocation_of_oriented(
    images: Sequence[Sequence[Oriented]], size: tuple[int, int], budget: int, patch: int
) -> Allocation:
    """An Allocation of `budget` slots; unused ones are a patch at the corner."""
    rows = torch.zeros(len(images), budget, 8)  # centre, ddx, ddy, score, valid
    rows[..., 2] = rows[..., 5] = 1.0
    for image, tokens in enumerate(images):
        for slot, token in enumerate(tokens):
            cos, sin = math.cos(token.angle), math.sin(token.angle)
            across, down = token.sides[0] / patch, token.sides[1] / patch
            axes = (across * cos, across * sin, -down * sin, down * cos)
            rows[image, slot] = torch.tensor([*token.centre, *axes, token.mass, 1.0])
    centre, ddx, ddy = (rows[..., first : first + 2].clone() for first in (0, 2, 4))
    source = torch.zeros(rows.shape[:2], dtype=torch.int64)
    return Allocation(centre, ddx, ddy, rows[..., 6].clone(), rows[..., 7] > 0, source, size, patch)
