"""Quadtree: square tiles, each halved both ways where that gains most. The baseline of `dag`.

The sides of one tree differ by powers of two, so several trees are tried whose roots differ by fractions of an octave.
"""

import math
from typing import NamedTuple

import numpy as np

from texturevlm.allocate.allocator import per_image
from texturevlm.allocate.cells import Array, Cells
from texturevlm.allocate.footprints import Boxes
from texturevlm.allocate.forest import Forest
from texturevlm.allocate.search import NATIVE, OVERVIEW, blank_boxes, floor_budget

_ROOTS = 6  # trees that are tried, their sides evenly spread over an octave


@per_image()
def quadtree(cells: Cells, budget: int, *, overview: float = OVERVIEW) -> Boxes:
    """Square tiles halved both ways, again and again, where the gain per token is greatest."""
    sides = [cells.patch * 2 ** (step / _ROOTS) for step in range(_ROOTS)]
    trees = [tile_tree(cells, side, floor_budget(budget, overview)) for side in sides]
    cuts = [tree.forest.cut(budget) for tree in trees]
    tree, cut = min(zip(trees, cuts), key=lambda pair: float(pair[0].forest.error[pair[1]].sum()))
    columns = (column[cut].tolist() for column in (tree.x, tree.y, tree.side, tree.mass))
    found = [(cells.inside(x, y, side, side), mass) for x, y, side, mass in zip(*columns)]
    if (tree.side[cut] <= NATIVE * cells.patch).all():
        found += blank_boxes(cells, found, budget)
    return sorted(found, key=lambda pair: -pair[1])


class TileTree(NamedTuple):
    """Nested square tiles that are not blank, as columns (N,): upper left corners and sides in pixels, and mass."""

    forest: Forest
    x: Array
    y: Array
    side: Array
    mass: Array


def tile_tree(cells: Cells, finest: float, most_roots: int) -> TileTree:
    """All tiles of sides finest · 2^k, from at most `most_roots` roots down to the pixels."""
    used = [np.flatnonzero(cells.ink.any(1 - axis)) for axis in (0, 1)]
    origin = [float(place[0] * cell) for place, cell in zip(used, cells.cell)]  # where the ink begins: y, x in pixels
    extent = [float((place[-1] + 1) * cell - low) for place, cell, low in zip(used, cells.cell, origin)]

    def tiled(values: Array, side: float) -> Array:
        """The sum of a map over each tile of a grid; a cell in several tiles is divided among them."""
        shares = []
        for axis, cell in enumerate(cells.cell):
            count = max(1, math.ceil(extent[axis] / side - 1e-6))
            edges = (origin[axis] + side * np.arange(count + 1)) / cell
            place = np.arange(values.shape[axis])
            overlap = np.minimum(edges[1:, None], place + 1) - np.maximum(edges[:-1, None], place)
            shares.append(np.where(overlap > 1e-6, overlap, 0.0))
        return np.asarray(shares[0] @ values @ shares[1].T)

    side = finest * 2 ** max(0, math.ceil(math.log2(max(extent) / finest)))
    while side > cells.patch and np.count_nonzero(tiled(cells.ink, side / 2)) <= most_roots:
        side /= 2
    columns: list[Array] = []
    numbers, total = np.zeros((0, 0), dtype=np.int64), 0
    while True:
        row, column = np.nonzero(tiled(cells.ink, side))
        parent = numbers[row // 2, column // 2] if columns else np.full(len(row), -1)
        width = max(side, float(cells.patch))
        maps = (cells.lost(width / cells.patch), cells.inked_mass)
        error, mass = (tiled(values, side)[row, column] for values in maps)
        y, x = (start + place * side - (width - side) / 2 for start, place in zip(origin, (row, column)))
        columns.append(np.stack([parent, error, mass, y, x, np.full(len(row), width)]))
        if side <= NATIVE * cells.patch:
            break
        numbers = np.full((row.max() + 1, column.max() + 1), -1)
        numbers[row, column] = total + np.arange(len(row))
        total, side = total + len(row), side / 2
    parent, error, mass, y, x, width = np.concatenate(columns, 1)
    return TileTree(Forest(parent.astype(np.int64), np.ones(len(parent), dtype=np.int64), error), x, y, width, mass)
