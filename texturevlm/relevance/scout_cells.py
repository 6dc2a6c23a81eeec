"""The scout's chances on the grid of cells, with a question or with none."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.scout.question import Question, encode


@lru_cache(maxsize=None)  # never dropped: graphs read it at every replay
def nothing_asked(device: torch.device) -> Question:
    """The empty question, on a device: a graph cannot copy it there."""
    return Question(*(part.to(device) for part in encode([""])))


def on_cells(chance: Tensor, ink: Tensor) -> Tensor:
    """The chances of spots (B, rows, columns) on the grid of `ink` (B, h, w); their sum stays."""
    rows, columns = chance.shape[1:]
    grid = ink.shape[1:]
    wide = chance[:, None]
    if grid[0] < rows or grid[1] < columns:  # a long page: several spots per cell, none is lost
        wide = functional.interpolate(wide, (min(rows, grid[0]), min(columns, grid[1])), mode="area")
    # A spot's chance is shared by its cells; a blank cell takes nothing.
    wide = functional.interpolate(wide, grid, mode="nearest-exact")[:, 0] * ink
    return wide * (chance.sum((1, 2)) / wide.sum((1, 2)).clamp(min=1e-30))[:, None, None]
