"""One image's relevance as arrays over a grid of cells, and the geometry of footprints that cover whole cells.

`worth` and `masses` are integers made by single float32 operations in a fixed order, so that the kernel of `layers`
(ops/cover.cu) finds bit for bit the same squares.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from texturevlm.allocate.footprints import Box
from texturevlm.ops.legibility import STEEPNESS
from texturevlm.ops.select import UNIT
from texturevlm.relevance.maps import Relevance

Array = np.ndarray
Square = tuple[int, int]  # row and column of a square's first cell
CellBox = tuple[int, int, int, int]  # top, left, bottom, right, in cells


@dataclass(frozen=True, eq=False)
class Cells:
    """What an allocator knows of one image.

    mass, legible_scale, ink: (h, w), see Relevance; a blank image has ink everywhere, since all of it must be covered
    cell:  height and width of a cell in pixels
    size:  height and width of the image in pixels
    patch: the side of a token in samples; no footprint is narrower than this many pixels
    """

    mass: Array
    legible_scale: Array
    ink: Array
    cell: tuple[float, float]
    size: tuple[int, int]
    patch: int
    _legible: dict[float, Array] = field(default_factory=dict, init=False, repr=False)
    _lost_sums: dict[float, Array] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, relevance: Relevance, image: int, patch: int) -> Cells:
        """The cells of one image of a batch."""
        maps = (relevance.mass, relevance.legible_scale, relevance.ink)
        mass, legible_scale, ink = (tensor[image].detach().cpu().numpy() for tensor in maps)
        rows, columns = relevance.grid
        cell = (relevance.size[0] / rows, relevance.size[1] / columns)
        ink = ink if ink.any() else np.ones_like(ink)
        return cls(mass.astype(np.float64), legible_scale, ink, cell, relevance.size, patch)

    @property
    def coarsest(self) -> float:
        """The side, in pixels, of a square that holds every cell."""
        return float(max(self.ink.shape) * max(self.cell))

    def span(self, side: float) -> int:
        """How many whole cells a footprint `side` pixels wide covers, if it starts on a cell's edge."""
        return max(1, math.floor(side / max(self.cell) + 1e-6))

    @property
    def finest(self) -> int:
        """The span of a footprint at the image's own resolution."""
        return self.span(self.patch)

    def width(self, span: int) -> float:
        """The side, in pixels, of a footprint over `span` cells; no finer than the image's pixels."""
        return max(float(self.patch), span * max(self.cell))

    def scale(self, span: int) -> float:
        """Pixels per sample of a footprint over `span` cells."""
        return self.width(span) / self.patch

    def worth(self, scale: float) -> Array:
        """(h, w), integers in 1 / UNIT: mass × legibility at `scale` pixels per sample; 0 where the image is blank."""
        ratio = np.float32(scale) / self.legible_scale.astype(np.float32)
        square = ratio * ratio
        legible = np.float32(1) / (np.float32(1) + square * square * ratio * np.sqrt(ratio))
        return _units(np.where(self.ink, self.mass, 0), legible)

    def masses(self) -> Array:
        """(h, w), integers in 1 / UNIT."""
        return _units(self.mass, np.float32(1))

    def legible(self, scale: float) -> Array:
        """(h, w), float64: what `worth` rounds. For searches that have no kernel."""
        if scale not in self._legible:
            fineness = self.legible_scale.astype(np.float64) ** -STEEPNESS
            self._legible[scale] = self.inked_mass / (1 + fineness * scale**STEEPNESS)
        return self._legible[scale]

    def lost(self, scale: float) -> Array:
        """(h, w): the mass that is not legible at `scale` pixels per sample."""
        return np.asarray(self.inked_mass - self.legible(scale))

    def lost_in(self, box: CellBox, scale: float) -> float:
        """The sum of `lost` over a box."""
        if scale not in self._lost_sums:
            self._lost_sums[scale] = summed(self.lost(scale))
        return float(sum_in(self._lost_sums[scale], *box))

    @property
    def inked_mass(self) -> Array:
        """(h, w): the mass, 0 where the image is blank."""
        return np.where(self.ink, self.mass, 0.0)

    def mass_in(self, boxes: Sequence[Box] | Array) -> Array:
        """(K,): the mass inside boxes in pixels, to the nearest whole cell."""
        tall, wide = self.cell
        rows, columns = self.ink.shape
        edges = np.rint(np.asarray(boxes) / (wide, tall, wide, tall)).astype(int)
        left, top, right, bottom = np.clip(edges, 0, (columns, rows, columns, rows)).T
        return np.asarray(sum_in(summed(self.mass), top, left, bottom, right))

    def covered(self, squares: Sequence[Square], span: int | tuple[int, int]) -> Array:
        """(h, w) bool: the cells in squares of `span` cells, or rectangles of (rows, columns)."""
        tall, wide = span if isinstance(span, tuple) else (span, span)
        mask = np.zeros(self.ink.shape, dtype=bool)
        for row, column in squares:
            mask[row : row + tall, column : column + wide] = True
        return mask

    def held(self, boxes: Sequence[Box]) -> Array:
        """(h, w) bool: the cells whose centre lies in some box, in pixels."""
        mask = np.zeros(self.ink.shape, dtype=bool)
        tall, wide = self.cell
        for x0, y0, x1, y1 in boxes:
            top, bottom = (max(0, math.ceil(y / tall - 0.5 - 1e-6)) for y in (y0, y1))
            left, right = (max(0, math.ceil(x / wide - 0.5 - 1e-6)) for x in (x0, x1))
            mask[top:bottom, left:right] = True
        return mask

    def box(self, first: Square, span: tuple[int, int], sides: tuple[float, float]) -> Box:
        """The footprint of a rectangle of cells: centred on them, moved inside the image where it fits.

        first: its first cell; span: rows and columns; sides: height and width of the footprint in pixels
        """
        y, x = (
            inside(start * cell - (side - count * cell) / 2, side, extent)
            for start, cell, count, side, extent in zip(first, self.cell, span, sides, self.size)
        )
        return x, y, x + sides[1], y + sides[0]


def inside(start: float, side: float, extent: float) -> float:
    """Move an interval of length `side` inside 0 … extent; centre it if it is longer. Returns the new start."""
    return min(max(start, 0.0), extent - side) if side < extent else (extent - side) / 2


def summed(values: Array) -> Array:
    """(h, w) → (h + 1, w + 1): a summed-area table."""
    table = np.zeros((values.shape[0] + 1, values.shape[1] + 1))
    table[1:, 1:] = values.cumsum(0).cumsum(1)
    return table


def sum_in(table: Array, top: Array | int, left: Array | int, bottom: Array | int, right: Array | int) -> Array:
    """The sum over boxes of cells, from a summed-area table."""
    return np.asarray(table[bottom, right] - table[top, right] - table[bottom, left] + table[top, left])


def _units(mass: Array, share: Array | np.float32) -> Array:
    return np.rint(mass.astype(np.float32) * share * np.float32(UNIT)).astype(np.int64)
