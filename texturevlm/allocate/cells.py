"""One image's relevance as arrays over a grid of cells, and the geometry of footprints that cover whole cells.

`worth` and `masses` are integers made by single float32 operations in a fixed order, so that the kernel of `layers`
(ops/cover.cu) finds bit for bit the same squares.
"""

from __future__ import annotations

import math
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

    @property
    def inked_mass(self) -> Array:
        """(h, w): the mass, 0 where the image is blank."""
        return np.where(self.ink, self.mass, 0.0)

    def inside(self, x: float, y: float, wide: float, tall: float) -> Box:
        """The box at a corner (x, y), moved inside the image; centred along an axis where it is longer."""
        x, y = (
            min(max(start, 0.0), extent - side) if side < extent else (extent - side) / 2
            for start, side, extent in ((x, wide, self.size[1]), (y, tall, self.size[0]))
        )
        return x, y, x + wide, y + tall


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
