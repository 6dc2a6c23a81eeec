"""Frequency: the image's own bands decide which way footprints are stretched and how many octaves they span.

Where detail changes along one direction only, samples may be long in the other: the same budget shows it at a finer
scale. Each cell gets the shape of sample that keeps most of its bands, and a whole number of octaves more where what
stands there is so much coarser; the rest is as in `layers`: the best cells finely, the others coarsely, whatever is
expected to show most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from texturevlm.allocate.bands import RATIOS, SQUARE, band_energy, bias_of, stretch_gain
from texturevlm.allocate.cells import Cells
from texturevlm.allocate.footprints import Box, allocation_of, use_all
from texturevlm.allocate.layers import BISECTIONS, OVERVIEW, SCALES_AN_OCTAVE, finest_side
from texturevlm.allocate.spans import NATIVE, blank_parts
from texturevlm.check import check_count
from texturevlm.ops.cover import rows_of
from texturevlm.relevance.maps import STEEPNESS, Relevance
from texturevlm.types import Allocation, Texture

WORTH_STRETCHING = 1.1  # times as large a sample: less does not pay for footprints that fit together less well
MOST_OCTAVES = 2  # by which a cell may be sampled coarser than the finest text
FINE = 0.3  # of the mass is as fine as what sets the finest scale, or finer

Rectangle = tuple[int, int, int, int]  # first row, first column, rows, columns


def frequency(
    texture: Texture,
    relevance: Relevance,
    *,
    budget: int = 273,
    patch: int = 32,
    bias: str | float = "auto",
    local: bool = True,
    overview: float = OVERVIEW,
) -> Allocation:
    """Footprints stretched as the steerable bands ask, between 4 times as tall as wide and the reverse.

    bias:     what the question says of orientation: "reading" keeps detail across, "standing" detail down, "none";
              "auto" is reading where the question's words were matched; or a number, above 0 for across
    local:    each cell by its own bands; otherwise one shape for the whole image, by its mean band
    overview: as in `layers`
    """
    check_count("frequency", "budget", budget, 1)
    check_count("frequency", "patch", patch, 1)
    if not 0 < overview <= 1:
        raise ValueError(f"frequency: overview must be above 0 and at most 1, got {overview!r}")
    shape, gain = shapes(texture, relevance, bias=bias, local=local)
    images = []
    for image in range(texture.batch):
        cells = Cells.of(relevance, image)
        found = Stretched(cells, shape[image], gain[image], budget, patch, overview).boxes()
        images.append(use_all(found, budget=budget, patch=patch))
    return allocation_of(images, texture.size, budget=budget, patch=patch, device=texture.device)


def shapes(
    texture: Texture, relevance: Relevance, *, bias: str | float = "auto", local: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """(B, h, w) twice: which of the RATIOS each cell is sampled at, and how much larger samples may be for it."""
    energy = band_energy(texture, relevance.grid)
    if not local:
        mean = (energy * relevance.mass[:, None, None].to(energy)).sum((3, 4), keepdim=True)
        energy = mean.expand_as(energy)
    gain = stretch_gain(energy)
    ratio = torch.tensor(RATIOS, dtype=gain.dtype, device=gain.device)[:, None, None]
    tilted = gain * ratio ** -bias_of(bias, relevance)
    best = tilted.argmax(1)
    top = tilted.gather(1, best[:, None])[:, 0]
    best = torch.where(top >= WORTH_STRETCHING, best, SQUARE)
    return best.cpu().numpy(), gain.gather(1, best[:, None])[:, 0].cpu().numpy()


def cover_rectangles(rows: list[int], tall: int, wide: int, most: int) -> list[tuple[int, int]]:
    """`texturevlm.ops.cover` for rectangles of tall × wide cells: the first cell of each, more than `most` if too few."""
    rows = list(rows)
    found: list[tuple[int, int]] = []
    full = (1 << wide) - 1
    for top in range(len(rows)):
        if not rows[top]:
            continue
        shelf = 0
        for row in rows[top : top + tall]:
            shelf |= row
        while shelf:
            column = (shelf & -shelf).bit_length() - 1
            window = full << column
            first = top
            while not rows[first] & window:
                first += 1
            found.append((first, column))
            if len(found) > most:
                return found
            for row in range(first, min(first + tall, len(rows))):
                rows[row] &= ~window
            shelf &= ~window
    return found


@dataclass(frozen=True)
class Shape:
    """The height and width of footprints in pixels."""

    tall: float
    wide: float

    def span(self, cells: Cells) -> tuple[int, int]:
        """Whole cells that it covers, wherever it starts on a cell's edge."""
        return (
            max(1, math.floor(self.tall / cells.side[0] + 1e-6)),
            max(1, math.floor(self.wide / cells.side[1] + 1e-6)),
        )

    def box(self, cells: Cells, row: int, column: int) -> Box:
        """Centred on its cells, moved inside the image where it fits."""
        low = []
        for first, count, cell, side, extent in zip(
            (row, column), self.span(cells), cells.side, (self.tall, self.wide), cells.size
        ):
            start = first * cell - (side - count * cell) / 2
            low.append(min(max(start, 0.0), extent - side) if side < extent else (extent - side) / 2)
        return low[1], low[0], low[1] + self.wide, low[0] + self.tall


class Stretched:
    """The search for one image: how fine the fine layer is, how far it reaches, and whether octaves pay."""

    def __init__(
        self, cells: Cells, shape: np.ndarray, gain: np.ndarray, budget: int, patch: int, overview: float
    ) -> None:
        self.cells, self.shape, self.budget, self.patch = cells, shape, budget, patch
        self.half = cells.half * gain
        self.floor = finest_side(cells, cells.ink, max(1, int(budget * overview)), patch)
        order = np.argsort(self.half, axis=None)
        mass = np.cumsum(np.where(cells.ink, cells.mass, 0).flat[order])
        fine = self.half.flat[order[min(int(np.searchsorted(mass, FINE * mass[-1])), len(order) - 1)]]
        self.octave = np.clip(np.floor(np.log2(self.half / fine)), 0, MOST_OCTAVES).astype(int)

    def boxes(self) -> list[tuple[Box, float]]:
        """The footprints that are expected to show most, with their mass, best first."""
        side = max(finest_side(self.cells, self.cells.ink, self.budget, self.patch), float(self.patch))
        square, flat = np.full_like(self.shape, SQUARE), np.zeros_like(self.octave)
        best, most = self._attempt(np.argsort(-self._gain(side, flat), axis=None), 0, self.floor, square, flat), -1.0
        assert best is not None  # the coarse layer alone fits
        while True:
            for octave in (flat, self.octave) if self.octave.any() else (flat,):
                found, worth = self._reach(side, octave)
                if found is not None and worth > most:
                    best, most = found, worth
            if side <= self.patch:
                break
            side = max(float(self.patch), side / 2 ** (1 / SCALES_AN_OCTAVE))
        return self._scored(best)

    def _gain(self, side: float, octave: np.ndarray) -> np.ndarray:
        """(h, w): what a cell adds when it is in the fine layer and not in the coarse one."""
        fine = 1 / (1 + (side * 2.0**octave / self.patch / self.half) ** STEEPNESS)
        coarse = self.cells.readable(max(self.floor, side) / self.patch)
        return np.where(self.cells.ink, self.cells.mass * (fine - coarse), 0.0)

    def _reach(self, side: float, octave: np.ndarray) -> tuple[list[tuple[Shape, list[tuple[int, int]]]] | None, float]:
        """As many of the best cells as the budget covers at `side`, and what that is worth."""
        gain = self._gain(side, octave)
        a_token = gain * 4.0**octave  # a coarser cell costs less
        order = np.argsort(-a_token, axis=None, kind="stable")[: np.count_nonzero(gain > 0)]
        low, high = 0, len(order)
        reached, best = len(order), self._attempt(order, len(order), side, self.shape, octave)
        if best is None:
            for _ in range(BISECTIONS):
                middle = (low + high) // 2
                tried = self._attempt(order, middle, side, self.shape, octave)
                if tried is None:
                    high = middle
                else:
                    low, reached, best = middle, middle, tried
        coarse = self.cells.readable(max(self.floor, side) / self.patch)
        return best, float((self.cells.mass * coarse)[self.cells.ink].sum() + gain.flat[order[:reached]].sum())

    def _attempt(
        self, order: np.ndarray, count: int, side: float, shape: np.ndarray, octave: np.ndarray
    ) -> list[tuple[Shape, list[tuple[int, int]]]] | None:
        """Rectangles over the first cells of an order, each class of shape and octave its own, and squares over the
        rest; None if they are more than the budget. Small ones first: what they cover needs no larger one.
        """
        chosen = np.zeros(self.cells.ink.shape, dtype=bool)
        chosen.flat[order[:count]] = True
        rest, left = self.cells.ink.copy(), self.budget
        found = []
        classes = sorted({*zip(octave[chosen].tolist(), shape[chosen].tolist())})
        for step, kind in classes:
            stretch = math.sqrt(RATIOS[kind])
            one = self._shape(side * 2.0**step, stretch)
            left = self._lay(one, chosen & rest & (octave == step) & (shape == kind), rest, left, found)
            if left < 0:
                return None
        left = self._lay(self._shape(max(self.floor, side), 1.0), rest, rest, left, found)
        return None if left < 0 else found

    def _shape(self, side: float, stretch: float) -> Shape:
        return Shape(max(float(self.patch), side / stretch), max(float(self.patch), side * stretch))

    def _lay(
        self,
        shape: Shape,
        mask: np.ndarray,
        rest: np.ndarray,
        left: int,
        found: list[tuple[Shape, list[tuple[int, int]]]],
    ) -> int:
        """Cover a mask, and strike what is covered off the rest; the tokens that are left, below 0 if too few."""
        tall, wide = shape.span(self.cells)
        corners = cover_rectangles(rows_of(mask), tall, wide, left)
        for row, column in corners:
            rest[row : row + tall, column : column + wide] = False
        found.append((shape, corners))
        return left - len(corners)

    def _scored(self, found: list[tuple[Shape, list[tuple[int, int]]]]) -> list[tuple[Box, float]]:
        rows = []
        for shape, corners in found:
            tall, wide = shape.span(self.cells)
            for row, column in corners:
                mass = self.cells.mass[row : row + tall, column : column + wide].sum()
                rows.append((shape.box(self.cells, row, column), float(mass)))
        if all(max(shape.tall, shape.wide) <= NATIVE * self.patch for shape, corners in found if corners):
            rows += blank_parts(self.cells, [box for box, _ in rows], self.budget - len(rows), self.patch)
        return sorted(rows, key=lambda pair: -pair[1])
