"""Layers: the most relevant cells covered finely, the rest of what is not blank covered coarsely.

Two numbers make an allocation out of relevance maps: how fine the fine layer is, and how far down the ranking of cells
it reaches. Fine samples on few cells or coarser ones on more: whichever is expected to let more of what matters be made
out. For each of a few scales the reach is found by bisection, since it is what the budget allows; a reach of everything
is `fit`, and then nothing is left for the coarse layer to cover.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from texturevlm.ops.cover import cover, rows_of

STEPS = 9  # of bisection over the reach
SCALES_AN_OCTAVE = 3

Square = tuple[float, float, float]  # x, y and side in pixels


@dataclass(frozen=True)
class Cells:
    """One image's relevance as arrays (h, w), with the cell's height and width in pixels."""

    mass: np.ndarray
    half: np.ndarray
    ink: np.ndarray
    side: tuple[float, float]


@dataclass(frozen=True)
class Layers:
    """What a choice of scale and reach comes to."""

    worth: float
    fine: list[tuple[int, int]]
    coarse: list[tuple[int, int]]
    scale: float
    floor: float


def readable(half: np.ndarray, scale: float) -> np.ndarray:
    return 1 / (1 + (scale / half) ** 5.5)


def cells_a_side(scale: float, patch: int, cells: Cells) -> int:
    """How many whole cells a token covers; it needs at least one."""
    return max(1, math.floor(scale * patch / max(cells.side)))


def covered(shape: tuple[int, int], squares: list[tuple[int, int]], side: int) -> np.ndarray:
    mask = np.zeros(shape, dtype=bool)
    for row, column in squares:
        mask[row : row + side, column : column + side] = True
    return mask


def coarsest(cells: Cells, budget: int, patch: int, top: float) -> float:
    """The finest scale at which `budget` squares cover everything that is not blank."""
    rows = rows_of(cells.ink)
    low, high = 1.0, top
    if len(cover(rows, cells_a_side(low, patch, cells), budget)) <= budget:
        return low
    for _ in range(12):
        middle = math.sqrt(low * high)
        fits = len(cover(rows, cells_a_side(middle, patch, cells), budget)) <= budget
        low, high = (low, middle) if fits else (middle, high)
    return high


def layered(cells: Cells, budget: int, patch: int, *, overview: float = 0.15, finest: float = 1.0) -> Layers:
    shape = cells.ink.shape
    top = max(shape[0] * cells.side[0], shape[1] * cells.side[1]) / patch
    fit = coarsest(cells, budget, patch, top)
    floor = coarsest(cells, max(1, int(budget * overview)), patch, top)
    best: Layers | None = None
    scale = fit
    while True:
        tried = _at_scale(cells, budget, patch, scale, max(floor, scale))
        if best is None or tried.worth > best.worth:
            best = tried
        if scale <= finest:
            break
        scale = max(finest, scale / 2 ** (1 / SCALES_AN_OCTAVE))
    return best


def _at_scale(cells: Cells, budget: int, patch: int, scale: float, floor: float) -> Layers:
    gain = cells.mass * (readable(cells.half, scale) - readable(cells.half, floor))
    order = np.argsort(-gain, axis=None)
    order = order[: int(((gain > 0) & cells.ink).sum())]
    shape = cells.ink.shape
    side, coarse_side = cells_a_side(scale, patch, cells), cells_a_side(floor, patch, cells)

    def attempt(count: int) -> tuple[list, list, np.ndarray] | None:
        mask = np.zeros(shape, dtype=bool)
        mask.flat[order[:count]] = True
        fine = cover(rows_of(mask), side, budget)
        if len(fine) > budget:
            return None
        seen = covered(shape, fine, side)
        coarse = cover(rows_of(cells.ink & ~seen), coarse_side, budget - len(fine))
        if len(fine) + len(coarse) > budget:
            return None
        return fine, coarse, seen

    low, high = 0, len(order)
    best = attempt(high)
    if best is None:
        best = attempt(0)
        for _ in range(STEPS):
            middle = (low + high) // 2
            found = attempt(middle)
            if found is None:
                high = middle
            else:
                low, best = middle, found
    if best is None:
        return Layers(-1.0, [], [], scale, floor)
    fine, coarse, seen = best
    worth = (cells.mass * np.where(seen, readable(cells.half, scale), readable(cells.half, floor))).sum()
    return Layers(float(worth), fine, coarse, scale, floor)
