"""Cuts through a hierarchy: budgets, error bounds, and cuts as good as any."""

import itertools

import numpy as np
import pytest

from texturevlm.allocate.quadtree import Forest


def random_forest(seed: int, nodes: int = 12) -> Forest:
    """Two roots; what a node loses is more than a random share of it that its children lose."""
    generator = np.random.default_rng(seed)
    parent = np.array([-1, -1, *(generator.integers(0, number) for number in range(2, nodes))])
    cost = np.ones(nodes, dtype=int)
    error = np.zeros(nodes)
    error[:2] = generator.uniform(0.5, 1, 2)
    for node in range(nodes):
        below = np.flatnonzero(parent == node)
        error[below] = error[node] * generator.uniform(0, 1) * generator.dirichlet(np.ones(len(below)))
        if len(below) == 1:
            cost[below] = cost[node] + 1
    return Forest(parent, cost, error)


def cuts(forest: Forest, node: int) -> list[list[int]]:
    """All sets of nodes that can stand for a node."""
    below = np.flatnonzero(forest.parent == node).tolist()
    if not below:
        return [[node]]
    parts = itertools.product(*(cuts(forest, child) for child in below))
    return [[node], *([*itertools.chain(*part)] for part in parts)]


def test_a_parents_error_bound_is_never_below_its_childrens():
    generator = np.random.default_rng(0)
    parent = np.array([-1, *(generator.integers(0, number) for number in range(1, 200))])
    forest = Forest(parent, np.ones(200), generator.random(200))
    children = np.arange(1, 200)
    assert (forest.given[parent[1:]] < forest.given[children]).any()  # as measured it was
    assert (forest.error[parent[1:]] >= forest.error[children]).all()
    assert (forest.error >= forest.given).all()
    together = np.bincount(parent[1:], forest.error[1:], 200)
    assert (forest.error >= together - 1e-12).all()  # no split seems to lose


@pytest.mark.parametrize("seed", range(30))
def test_a_cut_is_as_good_as_any_of_its_cost(seed):
    forest = random_forest(seed)
    every = [[*a, *b] for a in cuts(forest, 0) for b in cuts(forest, 1)]
    most = max(sum(forest.cost[cut]) for cut in every)
    for budget in range(2, most + 1):
        cut = forest.cut(budget)
        spent = forest.cost[cut].sum()
        assert spent <= budget and sorted(cut.tolist()) in map(sorted, every)
    # At the corners of the convex hull of cost and error the greedy cut is the best there is.
    points = sorted((int(forest.cost[cut].sum()), float(forest.error[cut].sum())) for cut in every)
    best = {cost: min(error for other, error in points if other <= cost) for cost, _ in points}
    for cost, error in best.items():
        slopes_before = [(best[c] - error) / (cost - c) for c in best if c < cost]
        slopes_after = [(error - best[c]) / (c - cost) for c in best if c > cost]
        if slopes_before and min(slopes_before) > max(slopes_after, default=0) * 1.3:
            assert forest.error[forest.cut(cost)].sum() == pytest.approx(error)


def test_a_split_that_gains_nothing_by_itself_is_made_for_what_lies_below_it():
    # Left: nothing at first, then all at once. Right: a little at once, and no more.
    parent = np.array([-1, -1, 0, 0, 1, 1, 2, 2, 3, 3])
    error = np.array([1.0, 0.4, 0.5, 0.5, 0.15, 0.15, 0, 0, 0, 0])
    forest = Forest(parent, np.ones(10, dtype=int), error)
    assert forest.cut(5).tolist() != [] and set(forest.cut(5).tolist()) == {6, 7, 8, 9, 1}
    assert set(forest.cut(6).tolist()) == {6, 7, 8, 9, 4, 5}


def test_a_split_that_does_not_fit_is_passed_over():
    parent = np.array([-1, -1, *[0] * 9, 1, 1])
    error = np.array([18.0, 1.0, *[0.0] * 11])
    forest = Forest(parent, np.ones(13, dtype=int), error)
    assert forest.slope[0] > forest.slope[1] > 0
    assert set(forest.cut(4).tolist()) == {0, 11, 12}


def test_nodes_without_gain_are_kept():
    forest = Forest(np.array([-1, 0, 0]), np.ones(3, dtype=int), np.array([1.0, 0.5, 0.5]))
    assert forest.cut(10).tolist() == [0]
