"""Squares hold every marked cell, few of them, blank rows and columns cost nothing, and the kernels find the same."""

import numpy as np
import pytest
import torch

from tests.conftest import poison
from texturevlm.allocate import ALLOCATORS
from texturevlm.allocate.cells import RUN
from texturevlm.allocate.footprints import ROUNDING
from texturevlm.allocate.layers import CellRanking, layers_by_kernel
from texturevlm.allocate.search import BISECTIONS, ladder
from texturevlm.cuda.struct import definitions
from texturevlm.ops import cover as kernels
from texturevlm.ops.cover import cover, rows_of
from texturevlm.relevance import Relevance
from texturevlm.relevance.maps import MOST_CELLS_ALONG, UNIT
from texturevlm.types import Texture


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


# The kernels, against the search in Python: grid of cells, image size, budget, patch, share of cells that are blank
SEARCHES = [
    ((1, 1), (1, 1), 1, 16, 0.5),
    ((1, 1), (50, 50), 5, 32, 0.0),
    ((1, 40), (8, 320), 9, 16, 0.8),
    ((37, 1), (296, 8), 9, 16, 0.8),
    ((14, 19), (117, 155), 7, 32, 0.5),
    ((14, 19), (117, 155), 26, 16, 0.3),
    ((12, 12), (96, 96), 12, 32, 1.0),
    ((12, 12), (96, 96), 12, 32, 0.0),
    ((31, 17), (31, 17), 30, 4, 0.6),
    ((20, 33), (320, 528), 1, 64, 0.6),
    ((9, 70), (73, 561), 64, 32, 0.7),
    ((36, 66), (288, 528), 40, 32, 0.6),  # more rows than warps, three words per row
]
LARGE = [
    ((275, 212), (2200, 1700), 273, 32, 0.5),
    ((275, 212), (2200, 1700), 64, 32, 0.2),
    ((256, 256), (1024, 1024), 1024, 32, 0.6),
    ((288, 288), (2304, 2304), 100, 32, 0.0),
    ((1, 288), (8, 2304), 40, 32, 0.9),
    ((211, 7), (1690, 59), 1, 32, 1.0),
]


def maps_of(batch, grid, size, blank, device="cpu", *, even=False):
    """Masses in blobs, or even, content of mixed fineness, and blank parts."""
    blobs = torch.nn.functional.interpolate(torch.rand(batch, 1, 7, 7) ** 4, grid, mode="bilinear")[:, 0]
    mass = torch.ones(batch, *grid) if even else blobs * torch.rand(batch, *grid) + 1e-6
    fineness = torch.nn.functional.interpolate(torch.rand(batch, 1, 5, 5) * 4, grid, mode="bilinear")[:, 0]
    ink = torch.nn.functional.interpolate(torch.rand(batch, 1, 9, 9), grid)[:, 0] >= blank
    parts = (mass / mass.sum((1, 2), keepdim=True), torch.exp2(fineness), ink)
    return Relevance(*(part.to(device) for part in parts), size)


def agree(name, relevance, **options):
    """The kernels choose the same squares, to the last bit, as the search in Python."""
    texture = Texture((torch.zeros(len(relevance.mass), 3, *relevance.size, device=relevance.mass.device),))
    got, wanted = (ALLOCATORS[name](texture, relevance, **options, backend=way) for way in ("cuda", "reference"))
    for column in ("valid", "score", "centre", "ddx", "ddy", "source"):
        assert torch.equal(getattr(got, column), getattr(wanted, column)), column
    return got


@pytest.mark.parametrize("grid, size, budget, patch, blank", SEARCHES)
def test_the_kernels_choose_the_same_squares(emulated, grid, size, budget, patch, blank, monkeypatch):
    for name, many in (("fit", 16), ("layers", 16), ("layers", 1)):
        monkeypatch.setattr(kernels, "MANY", many)
        agree(name, maps_of(1, grid, size, blank), budget=budget, patch=patch)


@pytest.mark.parametrize("budget", [1, 7, 40])
def test_the_kernels_fit_wide_grids(emulated, budget):
    agree("fit", maps_of(2, (1, 288), (8, 2304), 0.9), budget=budget, patch=64)
    agree("fit", maps_of(1, (100, 65), (800, 520), 0.7), budget=budget, patch=256)


def test_equal_cells_are_ranked_the_same(emulated):
    agree("layers", maps_of(1, (12, 20), (96, 160), 0.0, even=True), budget=9, patch=32)


def test_images_that_are_skipped_get_no_tokens(emulated):
    relevance = maps_of(3, (12, 12), (96, 96), 0.4)
    skipped = torch.tensor([False, True, False])
    some = layers_by_kernel("layers", relevance, 9, 32, 0.1, "auto", skipped)
    every = layers_by_kernel("layers", relevance, 9, 32, 0.1, "auto")
    assert not some.valid[1].any() and torch.equal(some.centre[~skipped], every.centre[~skipped])


def test_skipped_may_be_strided(emulated):
    relevance = maps_of(3, (24, 33), (200, 264), 0.5)
    every = layers_by_kernel("fit", relevance, budget=20, patch=16, overview=None, skipped=None)
    skipped = torch.tensor([False, True, False, True, False, True])[::2]
    got = layers_by_kernel("fit", relevance, budget=20, patch=16, overview=None, skipped=skipped)
    assert torch.equal(got.valid, every.valid) and got.valid.any(1).all()


def test_what_is_too_large_for_the_kernels_is_searched_in_python(emulated):
    relevance = maps_of(1, (300, 20), (300, 20), 0.5)
    texture = Texture((torch.zeros(1, 3, 300, 20),))
    assert ALLOCATORS["fit"](texture, relevance, budget=5, patch=8).valid.any()
    with pytest.raises(ValueError, match=r"fit: backend 'cuda' cannot run here: the kernels take up to 288 cells"):
        ALLOCATORS["fit"](texture, relevance, budget=5, patch=8, backend="cuda")
    with pytest.raises(ValueError, match=r"layers: backend 'cuda' cannot .* up to 1024 tokens, not 1025"):
        agree("layers", maps_of(1, (3, 3), (24, 24), 0.5), budget=1025, patch=8)


def test_the_kernels_constants_are_the_references():
    known = definitions("cover.cu").constants
    wanted = {"MOST_CELLS": MOST_CELLS_ALONG, "KEYS": CellRanking.KEYS, "UNIT": UNIT, "LEAST": CellRanking.LEAST}
    wanted |= {"BISECTIONS": BISECTIONS, "ROUNDING": ROUNDING, "RUN": RUN}
    assert {name: known[name] for name in wanted} == wanted and known["ALL"] == 1 << BISECTIONS
    assert all(parts**rounds == 1 << BISECTIONS for parts, rounds in (kernels.SHARES, kernels.SHARES_OF_MANY))


def test_every_ladder_fits_the_kernels():
    for coarsest in range(1, MOST_CELLS_ALONG + 1):
        for finest in (1, 2, 3, 5, 8, coarsest):
            if finest <= coarsest:
                scales = kernels._scales(finest, coarsest)
                assert scales <= 32 and len(ladder(coarsest, finest)) <= scales
                last = coarsest * int(2 ** (20 - (scales - 1) / 3)) >> 20
                assert last <= finest


@pytest.mark.gpu
@pytest.mark.parametrize("grid, size, budget, patch, blank", [*SEARCHES, *LARGE])
@pytest.mark.parametrize("batch", [1, 3, 16])
def test_on_the_gpu(grid, size, budget, patch, blank, batch):
    poison()
    for name in ("fit", "layers"):
        agree(name, maps_of(batch, grid, size, blank, "cuda"), budget=budget, patch=patch)


@pytest.mark.gpu
def test_equal_cells_on_the_gpu():
    for blank in (0.0, 1.0):
        agree("layers", maps_of(1, (256, 200), (2048, 1600), blank, "cuda", even=True), budget=273, patch=32)
