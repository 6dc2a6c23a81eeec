"""One image's relevance as arrays over a grid of cells, and the geometry of footprints that cover whole cells.

`worth` and `masses` are integers made by single float32 operations in a fixed order, so that the kernel of `layers`
(ops/cover.cu) finds bit for bit the same squares.

A run is 16 cells in a row with their maximum, so that one look skips all of them, like Hi-Z with a depth buffer. Lines
of text run along rows, so that a run is mostly all print or all blank.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from texturevlm.allocate.footprints import Box
from texturevlm.relevance import STEEPNESS, UNIT, Relevance

Array = np.ndarray
Square = tuple[int, int]  # row and column of a square's first cell
RUN = 16  # on train pages fewer cells are read than with runs of 8 or 32


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

    @cached_property
    def live(self) -> Array:
        """(n,): the runs with any mass in ink. Whatever is multiplied by the mass is 0 in all others."""
        return np.flatnonzero(runs_of(self.inked_mass).max(1) > 0)

    def worth(self, scale: float) -> Array:
        """(n, RUN) of the live runs, integers in 1 / UNIT: mass × legibility at `scale` pixels per sample."""
        mass, legible_scale = self.live_maps
        ratio = np.float32(scale) / legible_scale
        square = ratio * ratio
        legible = np.float32(1) / (np.float32(1) + square * square * ratio * np.sqrt(ratio))
        return _units(mass, legible)

    @cached_property
    def live_maps(self) -> tuple[Array, Array]:
        """(n, RUN) twice: the inked mass and the legible scale of the live runs, float32; 1 beyond the image's edge."""
        mass, scale = (runs_of(one)[self.live].astype(np.float32) for one in (self.inked_mass, self.legible_scale))
        return mass, np.where(mass > 0, scale, np.float32(1))

    def masses(self) -> Array:
        """(h, w), integers in 1 / UNIT."""
        return _units(self.mass, np.float32(1))

    def legible(self, scale: float) -> Array:
        """(h, w), float64: what `worth` rounds. For searches that have no kernel."""
        if scale not in self._legible:
            mass, fineness = self._live_fineness
            self._legible[scale] = cells_of(mass / (1 + fineness * scale**STEEPNESS), self.live, self.ink.shape)
        return self._legible[scale]

    @cached_property
    def _live_fineness(self) -> tuple[Array, Array]:
        """(n, RUN) twice, float64: of the live runs the inked mass, and a power of the legible scale."""
        mass, scale = (runs_of(one)[self.live].astype(np.float64) for one in (self.inked_mass, self.legible_scale))
        return mass, np.where(mass > 0, scale, 1.0) ** -STEEPNESS

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


def runs_of(values: Array) -> Array:
    """(h, w) → (h · words, RUN): the runs of each row, the last one filled up with zeros."""
    rows, columns = values.shape
    padded = np.zeros((rows, -(-columns // RUN) * RUN), dtype=values.dtype)
    padded[:, :columns] = values
    return padded.reshape(-1, RUN)


def cells_of(runs: Array, some: Array, shape: tuple[int, ...]) -> Array:
    """(n, RUN), the runs of these numbers (n,) → (h, w); 0, or False, in the others."""
    rows, columns = shape
    words = -(-columns // RUN)
    every = np.zeros((rows * words, RUN), dtype=runs.dtype)
    every[some] = runs
    return every.reshape(rows, words * RUN)[:, :columns]


def places_in(some: Array, shape: tuple[int, ...]) -> Array:
    """(n, RUN): the place of each cell of these runs among all cells of the grid, row by row."""
    words = -(-shape[1] // RUN)
    row, word = np.divmod(some, words)
    return np.asarray((row * shape[1] + word * RUN)[:, None] + np.arange(RUN))
