"""Runs: 16 cells in a row with their maximum, so that one look skips all of them, like Hi-Z with a depth buffer.

Lines of text run along rows, so that a run is mostly all print or all blank.
"""

from dataclasses import dataclass, field

import numpy as np

Array = np.ndarray
RUN = 16  # on train pages fewer cells are read than with runs of 8 or 32


@dataclass
class CellsRead:
    """How many values of cells a search has read, and how many it would have read without maxima.

    cuts: per question which cells are above a threshold: the share that is, and the share that was read
    """

    read: int = 0
    of: int = 0
    cuts: list[tuple[float, float]] = field(default_factory=list)

    def add(self, read: int, of: int) -> None:
        self.read += read
        self.of += of

    def cut(self, passing: int, read: int, of: int) -> None:
        """A question which cells are above a threshold."""
        self.add(read, of)
        self.cuts.append((passing / of, read / of))

    @property
    def share(self) -> float:
        return self.read / max(1, self.of)


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
