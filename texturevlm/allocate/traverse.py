"""A budgeted traversal: start with the roots of a hierarchy, let children replace their parent where that pays most.

What a node loses is its error; a split gains the parent's error less its children's, and costs their tokens less the
parent's. A split may gain nothing by itself and much together with those below it (small print is as unreadable at half
of a hopeless scale), so a node is ranked by the best that can be made of all below it: its slope, the most gain a token
of any set of splits that begins with its own. That is the pruning of Breiman's trees, read from the root.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import numpy as np

PRICES = 40  # at which the gain of a subtree is known exactly; slopes between two prices are interpolated
RANGE = 1e-5  # of the greatest slope is the least that is told apart

LEAST = 0.1  # tokens: a split that costs less counts as if it cost that
ROUNDING = 1e-6  # tokens: costs may be shares of one

Node = TypeVar("Node")


def traverse(
    roots: Iterable[Node],
    children: Callable[[Node], Sequence[Node]],
    *,
    cost: Callable[[Node], float],
    slope: Callable[[Node], float],
    budget: int,
) -> list[Node]:
    """A cut through any hierarchy, as fine as the budget allows where it matters most.

    roots:    together they are the whole; they are delivered even where they cost more than the budget
    children: of a node; together they replace it; none for a leaf
    cost:     tokens of a node
    slope:    of a node: those of the greatest slope are split first; a node without one above 0 is kept
    budget:   tokens; a split that no longer fits is passed over for the next best
    returns   the nodes of the cut
    """
    heap, number, spent = [], 0, 0.0
    done: list[Node] = []
    for root in roots:
        heap.append((-slope(root), number, root))
        number, spent = number + 1, spent + cost(root)
    heapq.heapify(heap)
    while heap:
        steepness, _, node = heapq.heappop(heap)
        parts = children(node) if steepness < 0 else ()
        extra = sum(cost(part) for part in parts) - cost(node)
        if not parts or spent + extra > budget + ROUNDING:
            done.append(node)
            continue
        spent += extra
        for part in parts:
            heapq.heappush(heap, (-slope(part), number, part))
            number += 1
    return done


@dataclass(frozen=True)
class Forest:
    """A hierarchy as columns: nodes are numbered, a parent before its children.

    parent: (N,), the number of a node's parent; -1 for a root
    cost:   (N,), tokens
    given:  (N,), the error measured for each node
    """

    parent: np.ndarray
    cost: np.ndarray
    given: np.ndarray
    generations: list[np.ndarray] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        assert (self.parent < np.arange(len(self.parent))).all()
        found, ahead = [np.flatnonzero(self.parent < 0)], np.flatnonzero(self.parent >= 0)
        while len(ahead):
            last = np.zeros(len(self.parent), dtype=bool)
            last[found[-1]] = True
            born = last[self.parent[ahead]]
            found.append(ahead[born])
            ahead = ahead[~born]
        object.__setattr__(self, "generations", found)

    @cached_property
    def error(self) -> np.ndarray:
        """(N,): an error bound, what was measured or what all children lose together, whichever is more.

        So a parent's bound is never below its children's, and no split ever seems to lose anything.
        """
        bound = self.given.astype(np.float64)
        for nodes in reversed(self.generations[1:]):
            below = np.bincount(self.parent[nodes], bound[nodes], len(bound))
            np.maximum(bound, below, out=bound)
        return bound

    @cached_property
    def slope(self) -> np.ndarray:
        """(N,): the most gain a token of any set of splits that begins with the node's own; 0 for a leaf."""
        inner = self.parent[self.parent >= 0]
        has_children = np.bincount(inner, minlength=len(self.parent)) > 0
        gain = np.where(has_children, self.error - self._over_children(self.error), 0.0)
        extra = np.where(has_children, np.maximum(self._over_children(self.cost) - self.cost, LEAST), 0.0)
        greatest = float((gain / np.maximum(extra, LEAST)).max(initial=0.0))
        if greatest <= 0:
            return np.zeros(len(gain))
        price = greatest * np.geomspace(1.0, RANGE, PRICES)
        # What a node's splits bring at each price of a token: its own, and those of its descendants that pay.
        surplus = gain[:, None] - extra[:, None] * price
        for nodes in reversed(self.generations[1:]):
            np.add.at(surplus, self.parent[nodes], np.maximum(surplus[nodes], 0) * has_children[nodes, None])
        return np.where(has_children & (gain + surplus[:, -1] > 0), _root(surplus, price), 0.0)

    def cut(self, budget: int) -> np.ndarray:
        """The numbers of the nodes of the best cut that a budget allows."""
        slope, cost = self.slope.tolist(), self.cost.tolist()
        roots = self.generations[0].tolist()
        return np.array(
            traverse(roots, self._children.__getitem__, cost=cost.__getitem__, slope=slope.__getitem__, budget=budget)
        )

    @cached_property
    def _children(self) -> list[list[int]]:
        below: list[list[int]] = [[] for _ in self.parent]
        for node, parent in enumerate(self.parent.tolist()):
            if parent >= 0:
                below[parent].append(node)
        return below

    def _over_children(self, values: np.ndarray) -> np.ndarray:
        """(N,): the sum of a column over each node's children."""
        inner = self.parent >= 0
        return np.bincount(self.parent[inner], values[inner], len(values))


def _root(surplus: np.ndarray, price: np.ndarray) -> np.ndarray:
    """(N,): the price at which each node's surplus (N, PRICES) is 0; it grows as the price falls."""
    after = (surplus < 0).sum(1)  # the first price at which it pays
    low = np.minimum(after, len(price) - 1)
    high = np.maximum(low - 1, 0)
    nodes = np.arange(len(surplus))
    short, over = surplus[nodes, high], surplus[nodes, low]
    share = np.divide(over, over - short, out=np.zeros(len(surplus)), where=over > short)
    between = price[low] + (price[high] - price[low]) * np.clip(share, 0, 1)
    return np.where(after == len(price), 0.0, between)
