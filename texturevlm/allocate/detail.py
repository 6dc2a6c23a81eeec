"""How much of what matters can be made out at a scale, cell by cell and over boxes: the currency of allocators."""

from __future__ import annotations

import numpy as np

from texturevlm.allocate.cells import Cells
from texturevlm.ops.legibility import STEEPNESS


class Detail:
    """One image's expected value: the sum over cells of mass · readable(half, scale); blank cells have none."""

    def __init__(self, cells: Cells) -> None:
        self.mass = np.where(cells.ink, cells.mass, 0.0)
        self._fineness = cells.legible_scale.astype(np.float64) ** -STEEPNESS
        self._seen: dict[float, np.ndarray] = {}
        self._tables: dict[float, np.ndarray] = {}

    def seen(self, scale: float) -> np.ndarray:
        """(h, w): what is made out where a sample is `scale` pixels wide."""
        if scale not in self._seen:
            self._seen[scale] = self.mass / (1 + self._fineness * scale**STEEPNESS)
        return self._seen[scale]

    def lost(self, scale: float) -> np.ndarray:
        """(h, w): what is not."""
        return self.mass - self.seen(scale)

    def lost_in(self, box: tuple[int, int, int, int], scale: float) -> float:
        """What is lost over a box of whole cells (top, left, bottom, right)."""
        if scale not in self._tables:
            self._tables[scale] = summed(self.lost(scale))
        table, (top, left, bottom, right) = self._tables[scale], box
        return float(table[bottom, right] - table[top, right] - table[bottom, left] + table[top, left])


def summed(values: np.ndarray) -> np.ndarray:
    """(h, w) → (h + 1, w + 1): sums of all above and to the left, from which the sum over any box is four numbers."""
    table = np.zeros((values.shape[0] + 1, values.shape[1] + 1))
    table[1:, 1:] = values.cumsum(0).cumsum(1)
    return table
