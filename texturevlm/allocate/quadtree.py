"""Quadtree: square tiles, each halved both ways where that gains most.

The sides of one tree differ by powers of two, so several trees are tried whose roots differ by fractions of an octave.

A forest is cut by a budget: start with the roots, and replace parents by their children where that gains most. The
error of a node is what it loses. A split gains the parent's error less its children's errors, and costs their tokens
less the parent's. A split may gain nothing by itself but much together with splits below it (small print stays
illegible at half of a much too coarse scale). So a node is ranked by its slope: the most gain per token of any set of
splits that begins with its own. This is cost-complexity pruning (Breiman), read from the root.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from texturevlm.allocate.allocator import per_image
from texturevlm.allocate.cells import Array, Cells
from texturevlm.allocate.footprints import Boxes
from texturevlm.allocate.search import NATIVE, OVERVIEW, blank_boxes, floor_budget

_ROOTS = 6  # trees that are tried, their sides evenly spread over an octave
_PRICES = 40  # prices of a token at which the gain of a subtree is computed; slopes between two are interpolated
_PRICE_RANGE = 1e-5  # the lowest price over the greatest slope
_LEAST_COST = 0.1  # tokens: a split that costs less counts as this
_ROUNDING = 1e-6  # tokens: costs may be fractions


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


@dataclass(frozen=True)
class Forest:
    """A hierarchy as columns: nodes are numbered, parents before children.

    parent: (N,), the number of a node's parent; -1 for a root
    cost:   (N,), tokens
    given:  (N,), the measured error of each node
    """

    parent: Array
    cost: Array
    given: Array

    @cached_property
    def generations(self) -> list[Array]:
        """The numbers of the roots, of their children, and so on."""
        found, ahead = [np.flatnonzero(self.parent < 0)], np.flatnonzero(self.parent >= 0)
        while len(ahead):
            born = np.isin(self.parent[ahead], found[-1])
            found.append(ahead[born])
            ahead = ahead[~born]
        return found

    @cached_property
    def error(self) -> Array:
        """(N,): the measured error, or the children's bounds together if that is more: no split has a negative gain."""
        bound = self.given.astype(np.float64)
        for nodes in reversed(self.generations[1:]):
            below = np.bincount(self.parent[nodes], bound[nodes], len(bound))
            np.maximum(bound, below, out=bound)
        return bound

    @cached_property
    def slope(self) -> Array:
        """(N,): the most gain per token of any set of splits that begins with the node's own; 0 for a leaf."""
        has_children = self._over_children(np.ones(len(self.parent))) > 0
        gain = np.where(has_children, self.error - self._over_children(self.error), 0.0)
        extra = np.where(has_children, np.maximum(self._over_children(self.cost) - self.cost, _LEAST_COST), 0.0)
        greatest = float((gain / np.maximum(extra, _LEAST_COST)).max(initial=0.0))
        if greatest <= 0:
            return np.zeros(len(gain))
        price = price_ladder(greatest)
        # The surplus of a node's splits at each price of a token: its own, and those of its descendants that pay.
        surplus = gain[:, None] - extra[:, None] * price
        for nodes in reversed(self.generations[1:]):
            np.add.at(surplus, self.parent[nodes], np.maximum(surplus[nodes], 0) * has_children[nodes, None])
        return np.where(has_children & (gain + surplus[:, -1] > 0), break_even(surplus, price), 0.0)

    def cut(self, budget: int) -> Array:
        """The numbers of the nodes of the best cut that a budget allows; the roots are kept at any cost.

        The node of the greatest slope is split first. A split that no longer fits is passed over for the next best.
        """
        slope, cost = self.slope.tolist(), self.cost.tolist()
        roots = self.generations[0].tolist()
        heap = [(-slope[root], number, root) for number, root in enumerate(roots)]
        heapq.heapify(heap)
        number, spent = len(roots), sum(cost[root] for root in roots)
        done: list[int] = []
        while heap:
            steepness, _, node = heapq.heappop(heap)
            parts = self._children[node] if steepness < 0 else []
            extra = sum(cost[part] for part in parts) - cost[node]
            if not parts or spent + extra > budget + _ROUNDING:
                done.append(node)
                continue
            spent += extra
            for part in parts:
                heapq.heappush(heap, (-slope[part], number, part))
                number += 1
        return np.array(done)

    @cached_property
    def _children(self) -> list[list[int]]:
        below: list[list[int]] = [[] for _ in self.parent]
        for node, parent in enumerate(self.parent.tolist()):
            if parent >= 0:
                below[parent].append(node)
        return below

    def _over_children(self, values: Array) -> Array:
        """(N,): the sum of a column over each node's children."""
        inner = self.parent >= 0
        return np.bincount(self.parent[inner], values[inner], len(values))


def price_ladder(greatest: float) -> Array:
    """Prices of a token at which surpluses are computed, from the greatest down."""
    return np.asarray(greatest * np.geomspace(1.0, _PRICE_RANGE, _PRICES))


def break_even(surplus: Array, price: Array) -> Array:
    """(N,): the price at which each node's surplus (N, prices) is 0, which grows as the price falls; 0: none."""
    after = (surplus < 0).sum(1)  # the first price at which it pays
    low = np.minimum(after, len(price) - 1)
    high = np.maximum(low - 1, 0)
    nodes = np.arange(len(surplus))
    short, over = surplus[nodes, high], surplus[nodes, low]
    share = np.divide(over, over - short, out=np.zeros(len(surplus)), where=over > short)
    between = price[low] + (price[high] - price[low]) * np.clip(share, 0, 1)
    return np.where(after == len(price), 0.0, between)
