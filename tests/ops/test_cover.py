"""Squares hold every marked cell, few of them, and blank rows and columns cost nothing."""

import numpy as np
import pytest
import torch

from texturevlm.ops.cover import cover, rows_of


def covered(shape, squares, side):
    mask = np.zeros(shape, dtype=bool)
    for row, column in squares:
        mask[row : row + side, column : column + side] = True
    return mask


@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (40, 1), (37, 70), (64, 300)])
@pytest.mark.parametrize("side", [1, 3, 8, 400])
@pytest.mark.parametrize("density", [0.0, 0.02, 0.5, 1.0])
def test_every_marked_cell_is_covered(shape, side, density):
    mask = torch.rand(shape) < density
    squares = cover(rows_of(mask), side, mask.numel())
    assert not (mask.numpy() & ~covered(shape, squares, side)).any()
    assert len(set(squares)) == len(squares) and bool(squares) == bool(mask.any())


def test_a_full_grid_takes_as_many_squares_as_it_must():
    assert len(cover(rows_of(torch.ones(30, 50)), 10, 1000)) == 15


def test_lines_of_text_are_covered_where_they_stand():
    mask = torch.zeros(100, 100)
    for top in (3, 27, 51):  # no grid of 10 has these lines in one row of cells each
        mask[top : top + 8, 5:45] = 1
    assert len(cover(rows_of(mask), 10, 1000)) == 12


def test_a_square_slides_down_to_what_it_covers():
    mask = torch.zeros(20, 20)
    mask[0, 0] = 1
    mask[8:16, 10:18] = 1  # begins inside the first shelf of 10, ends below it
    assert cover(rows_of(mask), 10, 9) == [(0, 0), (8, 10)]


def test_it_stops_when_there_are_too_many():
    assert len(cover(rows_of(torch.ones(50, 50)), 1, 7)) == 8


def test_what_it_was_given_stays():
    rows = rows_of(torch.ones(5, 5))
    cover(rows, 2, 99)
    assert rows == [31] * 5


def test_a_side_of_nothing_is_refused():
    with pytest.raises(ValueError, match="cover: side must be"):
        cover([1], 0, 1)
