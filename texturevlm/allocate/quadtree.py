"""Quadtree: square cells of the image, each halved both ways where that pays most. The plain baseline of `dag`.

Only powers of two lie between the sides of one tree, so several trees are tried, whose roots differ by fractions of an
octave, and the one that is expected to let most be made out is kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from texturevlm.allocate.cells import Cells, each_image
from texturevlm.allocate.detail import Detail
from texturevlm.allocate.footprints import Box
from texturevlm.allocate.spans import NATIVE, blank_parts
from texturevlm.allocate.traverse import Forest
from texturevlm.check import check_count
from texturevlm.relevance.maps import Relevance
from texturevlm.types import Allocation, Texture

ROOTS = 6  # trees that are tried, their sides evenly spread over an octave
OVERVIEW = 0.1


def quadtree(
    texture: Texture,
    relevance: Relevance,
    *,
    budget: int = 273,
    patch: int = 32,
    overview: float = OVERVIEW,
    roots: int = ROOTS,
) -> Allocation:
    """Square cells halved both ways, again and again, where the most is gained a token.

    overview: the share of the budget that the roots may cost: they set the floor of scale under which no part of the
              image falls that is not blank
    roots:    how many sizes of root are tried; with 1 every scale is a power of two
    """
    check_count("quadtree", "roots", roots, 1)
    if not 0 < overview <= 1:
        raise ValueError(f"quadtree: overview must be above 0 and at most 1, got {overview!r}")
    return each_image(texture, relevance, budget, patch, lambda cells: halved(cells, budget, patch, overview, roots))


def halved(cells: Cells, budget: int, patch: int, overview: float, roots: int) -> list[tuple[Box, float]]:
    """`quadtree` for one image."""
    detail = Detail(cells)
    trees = [tiles(cells, detail, patch * 2 ** (k / roots), budget, patch, overview) for k in range(roots)]
    cuts = [tree.forest.cut(budget) for tree in trees]
    tree, cut = min(zip(trees, cuts), key=lambda pair: float(pair[0].forest.error[pair[1]].sum()))
    found = [(tree.box(node, cells), float(tree.mass[node])) for node in cut.tolist()]
    if (tree.side[cut] <= NATIVE * patch).all():
        found += blank_parts(cells, [box for box, _ in found], budget - len(found), patch)
    return sorted(found, key=lambda pair: -pair[1])


@dataclass(frozen=True)
class Tiles:
    """Nested square tiles that are not blank, as columns (N,): left upper corners and sides in pixels, and mass."""

    forest: Forest
    x: np.ndarray
    y: np.ndarray
    side: np.ndarray
    mass: np.ndarray

    def box(self, node: int, cells: Cells) -> Box:
        """The footprint of a tile: no finer than the pixels, moved inside the image where it fits."""
        low = []
        for start, extent in ((self.x[node], cells.size[1]), (self.y[node], cells.size[0])):
            side = self.side[node]
            low.append(min(max(start, 0.0), extent - side) if side < extent else (extent - side) / 2)
        return low[0], low[1], low[0] + self.side[node], low[1] + self.side[node]


def tiles(cells: Cells, detail: Detail, finest: float, budget: int, patch: int, overview: float) -> Tiles:
    """All tiles of sides finest · 2^k, from roots of which a share of the budget suffices down to the pixels."""
    origin, extent = _content(cells)
    side = finest * 2 ** max(0, math.ceil(math.log2(max(extent) / finest)))
    fewest = max(1, int(budget * overview))
    while side > patch and np.count_nonzero(_tiled(cells.ink, cells, origin, extent, side / 2)) <= fewest:
        side /= 2
    columns: list[np.ndarray] = []
    numbers, total = np.zeros((0, 0), dtype=np.int64), 0
    while True:
        row, column = np.nonzero(_tiled(cells.ink, cells, origin, extent, side))
        parent = numbers[row // 2, column // 2] if columns else np.full(len(row), -1)
        width = max(side, float(patch))
        inside = [_tiled(values, cells, origin, extent, side) for values in (detail.lost(width / patch), detail.mass)]
        corner = origin[0] + row * side - (width - side) / 2, origin[1] + column * side - (width - side) / 2
        error, mass = (values[row, column] for values in inside)
        columns.append(np.stack([parent, error, mass, *corner, np.full(len(row), width)]))
        if side <= NATIVE * patch:
            break
        numbers = np.full((row.max() + 1, column.max() + 1), -1)
        numbers[row, column] = total + np.arange(len(row))
        total, side = total + len(row), side / 2
    parent, error, mass, y, x, width = np.concatenate(columns, 1)
    return Tiles(Forest(parent.astype(np.int64), np.ones(len(parent), dtype=np.int64), error), x, y, width, mass)


def _content(cells: Cells) -> tuple[tuple[float, float], tuple[float, float]]:
    """Where what is not blank begins, and how far it reaches from there: (y, x) in pixels."""
    used = [np.flatnonzero(cells.ink.any(1 - axis)) for axis in (0, 1)]
    origin = used[0][0] * cells.side[0], used[1][0] * cells.side[1]
    end = (used[0][-1] + 1) * cells.side[0], (used[1][-1] + 1) * cells.side[1]
    return origin, (end[0] - origin[0], end[1] - origin[1])


def _tiled(
    values: np.ndarray, cells: Cells, origin: tuple[float, float], extent: tuple[float, float], side: float
) -> np.ndarray:
    """The sum of a map over each tile of a grid; a cell that lies in several gives each its share."""
    shares = []
    for axis in (0, 1):
        count = max(1, math.ceil(extent[axis] / side - 1e-6))
        edges = (origin[axis] + side * np.arange(count + 1)) / cells.side[axis]
        place = np.arange(values.shape[axis])
        overlap = np.minimum(edges[1:, None], place + 1) - np.maximum(edges[:-1, None], place)
        shares.append(np.where(overlap > 1e-6, overlap, 0.0))
    return np.asarray(shares[0] @ values @ shares[1].T)
