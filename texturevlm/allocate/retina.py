"""Cells into tokens around fixations: by rings of sectors, or by the seeds of a golden-angle spiral.

Rings are round where footprints may lie along the radius, and square where they must stay upright. Each cell that is
not blank belongs to the nearest fixation, and there to one sector or to the nearest seed. Its footprint is the box
around the cells of one, so that nothing is left out.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from texturevlm.allocate.cells import Cells
from texturevlm.allocate.footprints import Box
from texturevlm.allocate.spans import blank_parts
from texturevlm.types import Allocation

BISECTIONS = 10
GOLDEN = math.pi * (3 - math.sqrt(5))
MOST_STRETCHED = 2.0  # a footprint's longer side over its shorter one

Group = np.ndarray  # the numbers of a token's cells, row by row


@dataclass(frozen=True)
class Token:
    """An oriented footprint: centre, sides along its own axes in pixels, the turn of its first axis, and its mass."""

    centre: tuple[float, float]
    sides: tuple[float, float]
    turn: float
    mass: float

    @property
    def box(self) -> Box:
        """The upright box around it."""
        (x, y), (first, second) = self.centre, self.sides
        cos, sin = abs(math.cos(self.turn)), abs(math.sin(self.turn))
        wide, tall = (first * cos + second * sin) / 2, (first * sin + second * cos) / 2
        return x - wide, y - tall, x + wide, y + tall


class Retina:
    """The cells of one image that are not blank, each with its fixation and its place about it."""

    def __init__(self, cells: Cells, points: np.ndarray, *, patch: int, e0: float, spiral: bool, rotated: bool) -> None:
        self.cells, self.points, self.patch = cells, points, patch
        self.start = e0 * max(cells.size)  # e0 in pixels
        self.spiral, self.rotated = spiral, rotated
        rows, columns = np.indices(cells.ink.shape).reshape(2, -1)
        self.x, self.y = (columns + 0.5) * cells.side[1], (rows + 0.5) * cells.side[0]
        self.ink = np.flatnonzero(cells.ink)
        dx, dy = (place[self.ink, None] - points[:, axis] for axis, place in enumerate((self.x, self.y)))
        # Upright boxes fill square rings without overlap, round ones not: there distance is the longer of two sides.
        distance = np.hypot(dx, dy) if rotated or spiral else np.maximum(np.abs(dx), np.abs(dy))
        self.owner = distance.argmin(1)
        mine = np.arange(len(self.ink)), self.owner
        self.dx, self.dy, self.radius = dx[mine], dy[mine], distance[mine]

    def tokens(self, budget: int) -> list[Token]:
        """As fine as the budget allows; what is left cuts the heaviest tokens in two, then shows what is blank."""
        low = math.log(self._gain_of_area(budget))  # tokens that hold but a part of their width only make it more
        high = math.log(8 + 8 * max(self.cells.size) / self.start)
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
            for (x0, y0, x1, y1), mass in blank_parts(self.cells, boxes, budget - len(tokens), self.patch):
                tokens.append(Token(((x0 + x1) / 2, (y0 + y1) / 2), (x1 - x0, y1 - y0), 0.0, mass))
        return sorted(tokens, key=lambda token: -token.mass)

    def _gain_of_area(self, budget: int) -> float:
        """The gain at which the area of what is not blank holds `budget` tokens, or all of them are a patch wide."""
        area = self.cells.side[0] * self.cells.side[1]
        low, high = 1e-3 * self.patch / max(self.cells.size), 8 + 8 * max(self.cells.size) / self.start
        for _ in range(2 * BISECTIONS):
            middle = math.sqrt(low * high)
            enough = area * (self._width(self.radius, middle) ** -2.0).sum() <= budget
            low, high = (low, middle) if enough else (middle, high)
        return low

    def _groups(self, gain: float) -> list[Group]:
        """The cells of each token, when tokens at a distance are gain · (distance + e0) wide, and at least a patch."""
        if self.spiral:
            number = self._seeds(gain)
        else:
            number = self._round_sectors(gain) if self.rotated else self._square_sectors(gain)
        name = self.owner.astype(np.int64) << 40 | number
        order = np.argsort(name, kind="stable")
        cuts = np.flatnonzero(np.diff(name[order])) + 1
        return np.split(self.ink[order], cuts)

    def _width(self, radius: np.ndarray, gain: float) -> np.ndarray:
        return np.maximum(gain * (radius + self.start), self.patch)

    def _ring(self, gain: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Each cell's ring, and where that begins and ends. Rings are as deep as tokens are wide; 0 is a disc."""
        even = max(0.0, self.patch / gain - self.start)  # up to here tokens are as fine as the pixels
        depth = np.minimum(self.radius, even) / self.patch
        depth += np.log((np.maximum(self.radius, even) + self.start) / (even + self.start)) / gain
        ring = np.floor(depth + 0.5)

        def at(depth: np.ndarray) -> np.ndarray:
            beyond = np.maximum(depth - even / self.patch, 0) * gain
            return np.minimum(np.maximum(depth, 0) * self.patch, even) + (even + self.start) * np.expm1(beyond)

        return ring, at(ring - 0.5), at(ring + 0.5)

    def _round_sectors(self, gain: float) -> np.ndarray:
        """A number for each cell's ring and sector of it."""
        ring, inner, outer = self._ring(gain)
        middle = (inner + outer) / 2
        around = np.maximum(1, np.round(2 * math.pi * middle / self._width(middle, gain)))
        turns = np.arctan2(self.dy, self.dx) / (2 * math.pi) + np.where(ring % 2 == 1, 0.5, 0.0) / around  # as bricks
        sector = np.where(ring == 0, 0, np.floor(np.mod(turns, 1.0) * around))
        return ring.astype(np.int64) << 20 | sector.astype(np.int64)

    def _square_sectors(self, gain: float) -> np.ndarray:
        """The same for square rings: four sides, each reaching round one corner like the vanes of a pinwheel."""
        ring, inner, outer = self._ring(gain)
        dx, dy = self.dx, self.dy
        sides = [(dx >= inner) & (dy < inner), (dy >= inner) & (dx > -inner), (dx <= -inner) & (dy > -inner)]
        side = np.select(sides, [0, 1, 2], 3)
        along = np.select(sides, [dy, -dx, -dy], dx) + outer
        count = np.maximum(1, np.round((inner + outer) / self._width((inner + outer) / 2, gain)))
        part = np.clip(np.floor(along / (inner + outer) * count), 0, count - 1)
        sector = np.where(ring == 0, 0, side * count + part)
        return ring.astype(np.int64) << 20 | sector.astype(np.int64)

    def _seeds(self, gain: float) -> np.ndarray:
        """The nearest seed of a spiral to each cell: seed n is turned n times by the golden angle."""
        radii = np.linspace(0, self.radius.max() + 2 * self.patch, 2048)
        density = self._width(radii, gain) ** -2.0
        within = np.concatenate([[0], np.cumsum(np.pi * np.diff(radii**2) * (density[1:] + density[:-1]) / 2)])
        rank = np.floor(np.interp(self.radius, radii, within)).astype(np.int64)
        # Of the seeds of a ring's depth inwards and outwards one is the nearest.
        reach = 2 + math.ceil(float((2 * math.pi * self.radius / self._width(self.radius, gain)).max()))
        seeds = np.arange(max(1, round(float(within[-1]))))
        at = np.interp(seeds + 0.5, within, radii)
        seed_x, seed_y = at * np.cos(seeds * GOLDEN), at * np.sin(seeds * GOLDEN)
        nearest, best = np.zeros_like(rank), np.full(len(rank), math.inf)
        for offset in range(-reach, reach + 1):
            seed = np.clip(rank + offset, 0, len(seeds) - 1)
            distance = (self.dx - seed_x[seed]) ** 2 + (self.dy - seed_y[seed]) ** 2
            closer = distance < best
            nearest[closer], best[closer] = seed[closer], distance[closer]
        return nearest

    def _cut(self, groups: list[Group], budget: int) -> tuple[list[Token], bool]:
        """The heaviest groups cut in two until there are `budget`; and whether none has detail left to give."""
        heap = [(-self._mass(group), number, group) for number, group in enumerate(groups)]
        heapq.heapify(heap)
        whole: list[Group] = []
        while heap and len(heap) + len(whole) < budget:
            _, _, group = heapq.heappop(heap)
            halves = self._halves(group)
            if halves is None:
                whole.append(group)
                continue
            for half in halves:
                heapq.heappush(heap, (-self._mass(half), len(self.x) + int(half[0]), half))
        return [self._token(group) for group in [*whole, *(group for _, _, group in heap)]], not heap

    def _halves(self, group: Group) -> tuple[Group, Group] | None:
        """Cut across the longer side; None if a token shows the group's own pixels."""
        turn = self._turn(group)
        spans = self._spans(group, turn)
        longest = int(np.argmax([high - low for low, high, _ in spans]))
        low, high, along = spans[longest]
        first = along <= (along.min() + along.max()) / 2
        if high - low <= self.patch * 1.001 or first.all():
            return None
        return group[first], group[~first]

    def _mass(self, group: Group) -> float:
        return float(self.cells.mass.flat[group].sum())

    def _turn(self, group: Group) -> float:
        """Of the radius through the group's middle; 0 at a fixation and for upright footprints."""
        if not self.rotated:
            return 0.0
        x, y = self.x[group].mean(), self.y[group].mean()
        offset = self.points - (x, y)
        dx, dy = -offset[np.hypot(offset[:, 0], offset[:, 1]).argmin()]
        return math.atan2(dy, dx) if math.hypot(dx, dy) > self.patch / 2 else 0.0

    def _spans(self, group: Group, turn: float) -> list[tuple[float, float, np.ndarray]]:
        """Along each axis of a turned box: where the group's cells begin and end, and their centres."""
        found = []
        for ux, uy in ((math.cos(turn), math.sin(turn)), (-math.sin(turn), math.cos(turn))):
            along = self.x[group] * ux + self.y[group] * uy
            reach = (abs(ux) * self.cells.side[1] + abs(uy) * self.cells.side[0]) / 2
            found.append((float(along.min() - reach), float(along.max() + reach), along))
        return found

    def _token(self, group: Group) -> Token:
        """The box around a group's cells, no finer than the pixels and not too long; upright ones stay in the image."""
        turn = self._turn(group)
        spans = [(low, high) for low, high, _ in self._spans(group, turn)]
        shorter = max(high - low for low, high in spans) / MOST_STRETCHED
        middles, sides = [], []
        for (low, high), extent in zip(spans, (self.cells.size[1], self.cells.size[0])):
            side, middle = max(high - low, float(self.patch), shorter), (low + high) / 2
            if not self.rotated:
                middle = min(max(middle, side / 2), extent - side / 2) if side < extent else extent / 2
            middles.append(middle)
            sides.append(side)
        cos, sin = math.cos(turn), math.sin(turn)
        centre = (middles[0] * cos - middles[1] * sin, middles[0] * sin + middles[1] * cos)
        return Token(centre, (sides[0], sides[1]), turn, self._mass(group))


def allocation_of_tokens(
    images: Sequence[Sequence[Token]], size: tuple[int, int], *, budget: int, patch: int, device: torch.device
) -> Allocation:
    """An Allocation of the budget's shape; unused slots are some patch at the corner."""
    shape = (len(images), budget)
    centre, score, valid = torch.zeros(*shape, 2), torch.zeros(shape), torch.zeros(shape, dtype=torch.bool)
    ddx, ddy = torch.tensor([1.0, 0.0]).expand(*shape, 2).clone(), torch.tensor([0.0, 1.0]).expand(*shape, 2).clone()
    for image, tokens in enumerate(images):
        for slot, token in enumerate(tokens):
            cos, sin = math.cos(token.turn), math.sin(token.turn)
            across, down = token.sides[0] / patch, token.sides[1] / patch
            centre[image, slot] = torch.tensor(token.centre)
            ddx[image, slot] = torch.tensor([across * cos, across * sin])
            ddy[image, slot] = torch.tensor([-down * sin, down * cos])
            score[image, slot], valid[image, slot] = token.mass, True
    source = torch.zeros(shape, dtype=torch.int64)
    return Allocation(centre, ddx, ddy, score, valid, source, size, patch).to(device)
