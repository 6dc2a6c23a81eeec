"""Dag and quadtree: what their hierarchies are made of."""

import dataclasses

import numpy as np
import pytest

from tests.allocate.test_hierarchies import photo, relevance_at
from texturevlm.allocate.cells import Cells
from texturevlm.allocate.quadtree import quadtree, tile_tree
from texturevlm.allocate.search import finest_span, ladder
from texturevlm.allocate.value import expected_value
from texturevlm_lab.allocators.dag import dag, group_prices, grouped, hierarchy, tight
from texturevlm_lab.allocators.search import cracks, lay, shown_scale, tightened, value_of

CELLS = Cells.of(relevance_at((20, 30)), 0, patch=16)
SPANS = ladder(20, CELLS.finest, 1.5)


def test_groups_have_several_parents_and_share_them():
    found = hierarchy(CELLS, SPANS)
    above = 1
    for own in found:
        assert set(own.label.tolist()) == set(
            range(len(own.gain))
        )  # every cell with ink has a group, no group is empty
        assert np.bincount(own.child, own.share) == pytest.approx(np.ones(len(own.gain)))
        assert set(own.parent.tolist()) == set(range(above))
        above = len(own.gain)
    parents = [np.bincount(own.child).max() for own in found]
    assert parents[0] == 1 and max(parents) > 1 and max(np.bincount(own.parent).max() for own in found[1:]) > 1


def test_refining_all_groups_gains_what_the_coarsest_scale_loses_and_costs_what_the_finest_takes():
    found = hierarchy(CELLS, SPANS)
    lost = [cells.lost(cells.scale(span))[cells.ink].sum() for cells in [CELLS] for span in (SPANS[0], SPANS[-1])]
    assert sum(own.gain.sum() for own in found) == pytest.approx(lost[0] - lost[1])
    assert all((own.gain >= -1e-12).all() and (own.extra > 0).all() for own in found)


def test_no_price_is_below_that_of_a_group_under_it_so_any_price_cuts():
    found = hierarchy(CELLS, SPANS)
    prices = group_prices(found)
    assert max(price.max() for price in prices) > 0
    for above, below, own in zip(prices, prices[1:], found[1:]):
        assert (above[own.parent] >= below[own.child]).all()
    each = np.stack([price[own.label] for price, own in zip(prices, found)])
    assert (np.diff(each, axis=0) <= 0).all()  # so a cell at a fine scale is refined to all coarser ones, too


def test_a_price_is_what_a_token_of_the_best_descent_gains():
    """Print that is legible at the finest scale only: the first steps gain nothing by themselves, and are paid for."""
    cells = dataclasses.replace(CELLS, legible_scale=np.full(CELLS.ink.shape, 0.2, dtype=np.float32))
    found = hierarchy(cells, SPANS)
    first, *_, last = group_prices(found)
    alone = (found[0].gain / found[0].extra).max()
    assert first.max() > 10 * alone and first.max() == pytest.approx(last.max(), rel=1)


def test_borders_of_one_scale_are_not_those_of_the_next():
    ink = np.ones((96, 96), dtype=bool)
    borders = []
    for shifted in (False, True):
        label, tokens = grouped(ink, 16, shifted=shifted)
        label = label.reshape(ink.shape)
        borders.append(set((np.flatnonzero(np.diff(label[0])) + 1).tolist()))
        assert tokens.sum() == pytest.approx(36) and len(tokens) in (36, 49)
    assert borders[0] == {16, 32, 48, 64, 80} and borders[0].isdisjoint(borders[1])


def test_groups_follow_content_across_the_borders_of_cells():
    """Lines of ink that stand anywhere: no group joins two of them, where a gap is as wide as half a token."""
    ink = np.zeros((80, 60), dtype=bool)
    tops = [3, 10, 19, 26, 37, 50, 55, 62]
    for top in tops:
        ink[top : top + 3, 7:50] = True
    label = np.full(ink.shape, -1)
    label[ink], _ = grouped(ink, 3, shifted=False)
    for top in tops:
        own = set(label[top : top + 3][ink[top : top + 3]].tolist())
        assert own.isdisjoint(set(label[:top][ink[:top]].tolist()))


def test_a_box_is_made_tight():
    mask = np.zeros((12, 30), dtype=bool)
    mask[1:3, 2:9] = mask[8:11, 2:28] = True
    assert tight(mask, (0, 0, 12, 30)) == (1, 2, 11, 28)


def test_squares_shrink_to_the_ink_that_is_left_to_them():
    ink = np.zeros((40, 40), dtype=bool)
    ink[4:8, 4:8] = ink[20:24, 20:30] = True
    cells = dataclasses.replace(CELLS, ink=ink, mass=ink / ink.sum(), legible_scale=np.full(ink.shape, 2.5, np.float32))
    rough = lay(cells, np.where(ink, 16, 0), 100)
    found = tightened(cells, rough)
    assert [(layer.span[0], layer.squares) for layer in found] == [(4, [(4, 4)]), (10, [(20, 20)])]
    assert value_of(cells, found) > value_of(cells, rough)
    assert np.isfinite(shown_scale(cells, found)[ink]).all()
    idle = [*found, *rough]  # nothing is left to the squares of the last layers
    assert sum(len(layer.squares) for layer in tightened(cells, idle)) == 2


def test_cracks_are_neighbours_of_which_one_is_twice_as_fine():
    scale = np.array([[1.0, 2.0, 3.9], [1.0, 1.0, np.inf]])
    ink = np.array([[True, True, True], [True, True, False]])
    assert cracks(scale, ink) == pytest.approx(2 / 5)  # 1 | 2, and 2 over 1; not 2 | 3.9, and no pair with blank cells
    assert cracks(scale, np.zeros_like(ink)) == 0


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
