"""Dag and quadtree: what their hierarchies are made of."""

import dataclasses

import numpy as np
import pytest

from tests.allocate.test_hierarchies import photo, relevance_at
from texturevlm.allocate.cells import Cells
from texturevlm.allocate.dag import cut, dag, hierarchy, tight
from texturevlm.allocate.quadtree import quadtree, tile_tree
from texturevlm.allocate.search import finest_span, ladder, lay, value_of
from texturevlm.allocate.value import expected_value

CELLS = Cells.of(relevance_at((20, 30)), 0, patch=16)


def clusters(cells=CELLS, reach=1):
    return hierarchy(cells, ladder(20, cells.finest, 2.0), reach=reach)


def test_clusters_nest_tightly_and_lose_no_ink():
    found = clusters()
    children = {}
    for node, parent in enumerate(found.forest.parent.tolist()):
        children.setdefault(parent, []).append(node)
    for parent, nodes in children.items():
        outer = found.boxes[parent] if parent >= 0 else (0, 0, *CELLS.ink.shape)
        covered = np.zeros(CELLS.ink.shape, dtype=int)
        for node in nodes:
            top, left, bottom, right = found.boxes[node]
            covered[top:bottom, left:right] += 1
            part = CELLS.ink[top:bottom, left:right]
            assert part[0].any() and part[-1].any() and part[:, 0].any() and part[:, -1].any()
            assert parent < 0 or found.spans[node] < found.spans[parent]
        top, left, bottom, right = outer
        assert (covered[top:bottom, left:right] <= 1).all() and covered.sum() == covered[top:bottom, left:right].sum()
        inside = np.zeros_like(CELLS.ink)
        inside[top:bottom, left:right] = CELLS.ink[top:bottom, left:right]
        assert (covered[inside] == 1).all()


def test_clusters_follow_content_across_the_borders_of_cells():
    """Lines of ink that stand anywhere: each is a cluster, as a whole, though no grid has its borders there."""
    ink = np.zeros((80, 60), dtype=bool)
    tops = [3, 10, 19, 26, 37, 50, 55, 62]
    for top in tops:
        ink[top : top + 3, 7:50] = True
    found = clusters(dataclasses.replace(CELLS, ink=ink), reach=20)
    assert {(top, 7, top + 3, 50) for top in tops} <= set(found.boxes)


def test_a_box_is_cut_at_its_gaps_or_where_the_least_ink_is():
    mask = np.zeros((12, 30), dtype=bool)
    mask[1:3, 2:9] = mask[1:3, 14:20] = mask[8:11, 2:28] = True
    mask[8:10, 14] = False
    assert tight(mask, (0, 0, 12, 30)) == (1, 2, 11, 28)
    assert cut(mask, (1, 2, 11, 28), 4, 100) == [(1, 2, 3, 9), (1, 14, 3, 20), (8, 2, 11, 28)]
    assert cut(mask, (8, 2, 11, 28), 4, 20) == [(8, 2, 11, 14), (8, 14, 11, 28)]


def test_pieces_laid_together_take_fewer_squares_and_the_price_of_a_token_is_kept():
    rough = np.where(CELLS.ink, 8, 0)
    rough[:40][CELLS.ink[:40]] = 2
    everything = lay(CELLS, rough, 10_000)
    priced = lay(CELLS, rough, 10_000, price=0.01)
    assert [layer.sides for layer in everything] == [(16, 16), (64, 64)]
    assert 0 < len(priced[0].squares) < len(everything[0].squares)
    for found in (everything, priced):
        covered = np.logical_or.reduce([layer.covered(CELLS) for layer in found])
        assert covered[CELLS.ink].all()
    lost = value_of(CELLS, everything) - value_of(CELLS, priced)
    assert 0 <= lost <= 0.01 * (len(everything[0].squares) - len(priced[0].squares))
    assert lay(CELLS, rough, 10) is None


def test_the_finest_span_that_a_budget_covers():
    for budget in (1, 5, 50):
        span = finest_span(CELLS, CELLS.ink, budget)
        assert lay(CELLS, np.where(CELLS.ink, span, 0), budget) is not None
        assert span == 2 or lay(CELLS, np.where(CELLS.ink, span - 1, 0), budget) is None


def test_tiles_are_halved_both_ways_and_hold_all_mass():
    tree = tile_tree(CELLS, 20.0, 6)
    parent = tree.forest.parent
    inner = parent >= 0
    assert 1 <= (~inner).sum() <= 6
    assert np.allclose(np.bincount(parent[inner], tree.mass[inner], len(parent))[np.unique(parent[inner])],
                       tree.mass[np.unique(parent[inner])])  # fmt: skip
    assert tree.mass[~inner].sum() == pytest.approx(CELLS.inked_mass.sum())
    ratio = tree.side[parent[inner]] / tree.side[inner]
    assert set(np.round(ratio, 6)) <= {2.0, round(20 / 16, 6)}  # no finer than the pixels


def test_dag_is_worth_more_than_its_baseline_where_content_does_not_follow_cells():
    relevance = relevance_at((37, 22), legible_scale=1.6)
    values = [expected_value(relevance, name(photo(), relevance, budget=24, patch=16)) for name in (dag, quadtree)]
    assert values[0] > values[1]
