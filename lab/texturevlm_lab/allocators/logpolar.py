"""Logpolar: tokens around fixations, coarser with distance as cortical magnification M(e) = M0 / (e + e0) falls.

Tokens at eccentricity e are proportional to 1 / M(e) wide. Each cell with ink belongs to the nearest fixation, and
there to a sector of a ring or to the nearest seed of a golden-angle spiral; a footprint is the box around one such
group. Rings are square, since upright boxes fill those without overlap. M0 is as large as the budget allows, but no
token is finer than the image's pixels. Fixations are peaks of the smoothed relevance, with inhibition of return.
"""

import heapq
import math
from functools import partial

import numpy as np

from texturevlm.allocate.allocator import per_image
from texturevlm.allocate.cells import Array, Cells
from texturevlm.allocate.footprints import ROUNDING, Box, Boxes
from texturevlm.allocate.plain import TokenGrid, fits_whole
from texturevlm.allocate.search import BISECTIONS, blank_boxes
from texturevlm.check import check_choice, check_count
from texturevlm_lab.allocators.search import value_of_boxes

PATTERNS = ("rings", "spiral")
_E0_TRIED = (0.05, 0.2, 0.8)
_INHIBITION = 0.15  # the least distance between two fixations, in units of the image's longer side
_LEAST_PEAK = 0.1  # of the greatest peak: a lower one gets no fixation
_GOLDEN = math.pi * (3 - math.sqrt(5))
_MOST_STRETCHED = 2.0  # a footprint's longer side over its shorter one

Group = Array  # the numbers of a token's cells, row by row


@per_image(cut_leftover=False)
def logpolar(
    cells: Cells, budget: int, *, fixations: int = 4, pattern: str = "rings", e0: float | None = None
) -> Boxes:
    """Tokens around fixations; all ink lies in some token.

    fixations: how many at most; chosen by relevance
    pattern:   rings or spiral
    e0:        the eccentricity at which tokens are twice as wide as at the fixation, in units of the image's longer
               side; None: of a few values, the one with the highest expected value
    """
    check_choice("logpolar", "pattern", pattern, PATTERNS)
    check_count("logpolar", "fixations", fixations, 1)
    if e0 is not None and not 1e-6 <= e0 <= 1e6:
        raise ValueError(f"logpolar: e0 must be between 1e-6 and 1e6, got {e0!r}")
    if fits_whole(cells.size, budget, cells.patch):
        return [(box, 1.0) for box in TokenGrid.whole(cells.size, budget, cells.patch).boxes]
    radius = max(0.5, _INHIBITION * max(cells.size) / max(cells.cell))
    points = (np.array(peaks(cells.mass * cells.ink, fixations, radius)) + 0.5) * cells.cell
    retina = Retina(cells, points[:budget], pattern == "spiral")
    tried = [retina.boxes(budget, one) for one in (_E0_TRIED if e0 is None else (e0,))]
    return max(tried, key=partial(value_of_boxes, cells))


def peaks(mass: Array, count: int, radius: float) -> list[tuple[int, int]]:
    """Up to `count` peaks (row, column) of the smoothed mass (h, w), none within `radius` cells of another.

    Inhibition of return: the mass around each choice is reduced smoothly. Peaks that are much lower are left out.
    """
    down, across = (_blur(extent, radius / 2) for extent in mass.shape)
    smooth = down @ mass @ across
    y, x = np.indices(mass.shape)
    chosen: list[tuple[int, int]] = []
    least = _LEAST_PEAK * smooth.max()
    while len(chosen) < count and smooth.max() > least:
        row, column = divmod(int(smooth.argmax()), mass.shape[1])
        chosen.append((row, column))
        squared = (y - row) ** 2 + (x - column) ** 2
        near = np.exp(-squared / (2 * (radius / 2) ** 2))
        smooth = np.where(squared <= radius**2, 0.0, smooth * (1 - near))
    return chosen or [(mass.shape[0] // 2, mass.shape[1] // 2)]


def _blur(extent: int, deviation: float) -> Array:
    """(extent, extent): the matrix of a Gaussian blur; 0 beyond the border."""
    position = np.arange(extent)
    weights = np.exp(-((position[:, None] - position[None, :]) ** 2) / (2 * max(deviation, 1e-3) ** 2))
    return np.asarray(weights / (weights.max(0) * max(deviation, 1.0)))


class Retina:
    """The cells of one image that have ink, each with its fixation and its offset from it."""

    def __init__(self, cells: Cells, points: Array, spiral: bool) -> None:
        """points: (F, 2), y and x in pixels."""
        self.cells, self.patch, self.spiral, self.e0 = cells, cells.patch, spiral, 0.0
        rows, columns = np.indices(cells.ink.shape).reshape(2, -1)
        self.x, self.y = (columns + 0.5) * cells.cell[1], (rows + 0.5) * cells.cell[0]
        self.ink = np.flatnonzero(cells.ink)
        dx, dy = (place[self.ink, None] - points[:, axis] for axis, place in ((1, self.x), (0, self.y)))
        distance = np.hypot(dx, dy) if spiral else np.maximum(np.abs(dx), np.abs(dy))
        self.owner = distance.argmin(1)
        mine = np.arange(len(self.ink)), self.owner
        self.dx, self.dy, self.radius = dx[mine], dy[mine], distance[mine]

    def boxes(self, budget: int, e0: float) -> Boxes:
        """As fine as the budget allows; leftover tokens cut the heaviest groups in two, then show blank parts."""
        self.e0 = e0 * max(self.cells.size)  # in pixels
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
        groups, done = self._cut(groups, budget)
        found = [(self._box(group), self._mass(group)) for group in groups]
        if done:
            found += blank_boxes(self.cells, found, budget)
        return sorted(found, key=lambda pair: -pair[1])

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
        number = self._seeds(gain) if self.spiral else self._sectors(gain)
        name = self.owner.astype(np.int64) << 40 | number
        order = np.argsort(name, kind="stable")
        cuts = np.flatnonzero(np.diff(name[order])) + 1
        return list(np.split(self.ink[order], cuts))

    def _width(self, radius: Array, gain: float) -> Array:
        return np.asarray(np.maximum(gain * (radius + self.e0), self.patch))

    def _sectors(self, gain: float) -> Array:
        """A number for each cell's ring (as deep as its tokens are wide) and sector: four sides, like a pinwheel."""
        even = max(0.0, self.patch / gain - self.e0)  # up to this radius tokens are a patch wide
        depth = np.minimum(self.radius, even) / self.patch
        depth += np.log((np.maximum(self.radius, even) + self.e0) / (even + self.e0)) / gain
        ring = np.floor(depth + 0.5)

        def radius_at(depth: Array) -> Array:
            beyond = np.maximum(depth - even / self.patch, 0) * gain
            return np.asarray(np.minimum(np.maximum(depth, 0) * self.patch, even) + (even + self.e0) * np.expm1(beyond))

        inner, outer = radius_at(ring - 0.5), radius_at(ring + 0.5)
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

    def _cut(self, groups: list[Group], budget: int) -> tuple[list[Group], bool]:
        """The heaviest groups cut in two until there are `budget`; and whether all show the image's own pixels."""
        heap = [(-self._mass(group), number, group) for number, group in enumerate(groups)]
        heapq.heapify(heap)
        whole: list[Group] = []
        while heap and len(heap) + len(whole) < budget:
            _, _, group = heapq.heappop(heap)
            low, high, along = max(self._spans(group), key=lambda span: span[1] - span[0])
            first = along <= (along.min() + along.max()) / 2
            if high - low <= self.patch * ROUNDING or first.all():
                whole.append(group)
                continue
            for part in (group[first], group[~first]):
                heapq.heappush(heap, (-self._mass(part), len(self.x) + int(part[0]), part))
        return [*whole, *(group for _, _, group in heap)], not heap

    def _mass(self, group: Group) -> float:
        return float(self.cells.mass.flat[group].sum())

    def _spans(self, group: Group) -> list[tuple[float, float, Array]]:
        """Across and down: where the group's cells begin and end, and their centres."""
        axes = ((self.x[group], self.cells.cell[1] / 2), (self.y[group], self.cells.cell[0] / 2))
        return [(float(along.min() - reach), float(along.max() + reach), along) for along, reach in axes]

    def _box(self, group: Group) -> Box:
        """The box around a group's cells, no finer than the pixels and not too long, inside the image."""
        spans = self._spans(group)
        shorter = max(high - low for low, high, _ in spans) / _MOST_STRETCHED
        wide, tall = (max(high - low, float(self.patch), shorter) for low, high, _ in spans)
        (left, right, _), (top, bottom, _) = spans
        return self.cells.inside((left + right) / 2 - wide / 2, (top + bottom) / 2 - tall / 2, wide, tall)
