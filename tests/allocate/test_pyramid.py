"""Pyramid: shares of levels, whole and fractional."""

import numpy as np
import pytest
import torch

from tests.allocate.test_hierarchies import photo, relevance_at
from texturevlm.allocate.cells import Cells
from texturevlm.relevance.maps import Relevance
from texturevlm_lab.allocators.pyramid import by_shares, level_shares, needs, pyramid

SIDES = [16.0, 32.0, 64.0, 128.0]


def two_kinds(fine: float, coarse: float) -> Relevance:
    """Content that needs fine samples on the left and coarse ones on the right, as likely asked for."""
    relevance = relevance_at()
    legible_scale = torch.full_like(relevance.legible_scale, coarse)
    legible_scale[:, :, :30] = fine
    return Relevance(relevance.mass, legible_scale, relevance.ink, relevance.size)


def test_each_cell_needs_the_coarsest_level_at_which_it_is_legible():
    cells = Cells.of(two_kinds(1.2, 4.5), 0, patch=16)
    needed = needs(cells, SIDES, 1.0)
    assert (needed[:, :30] == 0).all() and (needed[:, 30:] == 2).all()
    assert (needs(cells, SIDES, 0.5)[:, 30:] == 1).all()
    assert (needs(cells, SIDES, 0.1) == 0).all()


def test_shares_follow_difficulty_and_each_is_spent_on_its_own_cells():
    cells = Cells.of(two_kinds(1.2, 4.5), 0, patch=16)
    needed = needs(cells, SIDES, 1.0)
    split = level_shares(cells, needed, SIDES)
    assert split.sum() == pytest.approx(1) and split[1] == 0 and split[0] > split[2] > 0
    found = by_shares(cells, needed, SIDES, 80)
    used = [len(layer.squares) for layer in found]
    assert sum(used) <= 80 and used[1] == 0 and used[0] <= split[0] * 80
    assert all(column < 30 for _, column in found[0].squares)
    covered = np.logical_or.reduce([layer.covered(cells) for layer in found])
    assert covered[cells.ink].all()


def test_levels_are_an_octave_apart_and_may_lie_between_whole_ones():
    sides = pyramid(photo(), two_kinds(1.5, 3.1), budget=120, patch=16).ddy[0, :, 1].log2()
    assert not torch.allclose(sides, sides.round(), atol=1e-4)
