"""One image's relevance as plain arrays, and what squares of cells are in pixels.

What is summed or ranked is whole numbers, made by single float32 operations in a fixed order: a kernel that does the
same comes to the same squares.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from texturevlm.allocate.footprints import Box, allocation_of, use_all
from texturevlm.check import check_count
from texturevlm.ops.legibility import legibility
from texturevlm.relevance.maps import Relevance
from texturevlm.types import Allocation, Texture

UNIT = 1 << 30  # the value of a whole image, of which a cell's is a whole number
Square = tuple[int, int]  # row and column of a square's first cell


@dataclass(frozen=True)
class Cells:
    """mass, half, ink: (h, w), see Relevance; a blank image has ink everywhere, since all of it must be covered.

    side: the height and width of a cell in pixels
    """

    mass: np.ndarray
    legible_scale: np.ndarray
    ink: np.ndarray
    side: tuple[float, float]
    size: tuple[int, int]

    @classmethod
    def of(cls, relevance: Relevance, image: int) -> Cells:
        mass, half, ink = (
            tensor[image].detach().cpu().numpy() for tensor in (relevance.mass, relevance.legible_scale, relevance.ink)
        )
        rows, columns = relevance.grid
        side = (relevance.size[0] / rows, relevance.size[1] / columns)
        return cls(mass.astype(np.float64), half, ink if ink.any() else np.ones_like(ink), side, relevance.size)

    @property
    def coarsest(self) -> float:
        """The side, in pixels, of a square that holds every cell."""
        return max(self.ink.shape) * max(self.side)

    def legibility(self, scale: float) -> np.ndarray:
        """(h, w): how much of each cell can be made out when a sample is `scale` pixels wide."""
        return legibility(self.legible_scale, scale)

    def span(self, side: float) -> int:
        """How many whole cells a footprint `side` pixels wide covers, wherever it starts on a cell's edge."""
        return max(1, math.floor(side / max(self.side) + 1e-6))

    def width(self, span: int, patch: int) -> float:
        """The side, in pixels, of a footprint over `span` cells: as fine as they and the image's pixels allow."""
        return max(float(patch), span * max(self.side))

    def worth(self, scale: float) -> np.ndarray:
        """(h, w), whole numbers of 1 / UNIT: what can be made out of each cell that is not blank; see `readable`."""
        ratio = np.float32(scale) / self.legible_scale.astype(np.float32)
        square = ratio * ratio
        seen = np.float32(1) / (np.float32(1) + square * square * ratio * np.sqrt(ratio))
        return self._units(np.where(self.ink, self.mass, 0), seen)

    def masses(self) -> np.ndarray:
        """(h, w), whole numbers of 1 / UNIT."""
        return self._units(self.mass, np.float32(1))

    @staticmethod
    def _units(mass: np.ndarray, share: np.ndarray | np.float32) -> np.ndarray:
        return np.rint(mass.astype(np.float32) * share * np.float32(UNIT)).astype(np.int64)

    def covered(self, squares: list[Square], span: int) -> np.ndarray:
        """(h, w): which cells lie in some square."""
        mask = np.zeros(self.ink.shape, dtype=bool)
        for row, column in squares:
            mask[row : row + span, column : column + span] = True
        return mask

    def box(self, square: Square, side: float) -> Box:
        """The footprint of a square: centred on its cells, moved inside the image where it fits."""
        span = self.span(side)
        low = []
        for first, cell, extent in zip(square, self.side, self.size):
            start = first * cell - (side - span * cell) / 2
            low.append(min(max(start, 0.0), extent - side) if side < extent else (extent - side) / 2)
        return low[1], low[0], low[1] + side, low[0] + side


def each_image(
    texture: Texture,
    relevance: Relevance,
    budget: int,
    patch: int,
    choose: Callable[[Cells], list[tuple[Box, float]]],
) -> Allocation:
    """An Allocation from a function that gives one image's boxes with their scores, at most `budget` of them."""
    check_count("allocate", "budget", budget, 1)
    check_count("allocate", "patch", patch, 1)
    images = [use_all(choose(Cells.of(relevance, index)), budget=budget, patch=patch) for index in range(texture.batch)]
    return allocation_of(images, texture.size, budget=budget, patch=patch, device=texture.device)
