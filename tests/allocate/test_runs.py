"""Maxima of runs skip cells: fewer are read, and not one token changes."""

import numpy as np
import pytest
import torch

from texturevlm.allocate import ALLOCATORS
from texturevlm.allocate.cells import Cells, cells_of, places_in, runs_of
from texturevlm.allocate.layers import CellRanking
from texturevlm.relevance import Relevance
from texturevlm.relevance.maps import legibility
from texturevlm.types import Texture


def lines_of_print(rows=250, columns=190, *, share=0.1, seed=0):
    """A relevance with ink in lines of words, about this share of the cells; each word has a mass of its own."""
    random = np.random.default_rng(seed)
    ink = np.zeros((rows, columns), dtype=bool)
    mass = np.zeros((rows, columns))
    while ink.mean() < share:
        top, left = random.integers(0, rows - 3), random.integers(0, columns - 40)
        for word in range(5):
            wide = random.integers(3, 8)
            begin = left + 8 * word
            ink[top : top + 3, begin : begin + wide] = True
            mass[top : top + 3, begin : begin + wide] = random.random() ** 4
    scale = random.uniform(1, 8, (rows, columns))
    maps = (torch.tensor(one)[None] for one in (np.float32(mass / mass.sum()), np.float32(scale), ink))
    return Relevance(*maps, (4 * rows, 4 * columns))


@pytest.mark.parametrize("shape", [(1, 1), (3, 31), (4, 32), (5, 33), (7, 190)])
def test_runs_and_back(shape):
    values = np.arange(1, 1 + shape[0] * shape[1]).reshape(shape)
    runs = runs_of(values)
    every = np.arange(len(runs))
    assert (cells_of(runs, every, shape) == values).all()
    inside = runs > 0
    assert (runs[inside] == 1 + places_in(every, shape)[inside]).all() and inside.sum() == values.size
    some = every[::2]
    found = cells_of(runs[some], some, shape)
    assert set(np.unique(found)) <= {0, *runs[some].ravel().tolist()}


def flat_first(keys, beyond, count):
    """What a ranking takes, by a look at every cell."""
    key = len(beyond) - 1 - int(np.searchsorted(beyond[::-1], count))
    above, here = int(beyond[key + 1]), int(beyond[key])
    place = np.arange(keys.size).reshape(keys.shape)
    return (keys > key) | ((keys == key) & (place < (count - above) * keys.size // (here - above)))


def test_a_ranking_takes_what_a_look_at_every_cell_takes():
    cells = Cells.of(lines_of_print(), 0, patch=16)
    ranking = CellRanking(cells, cells.worth(2.0) - cells.worth(9.0))
    keys = cells_of(ranking.keys, cells.live, cells.ink.shape)
    for count in (1, 2, 40, ranking.total // 3, ranking.total - 1, ranking.total):
        assert (ranking.first(count) == flat_first(keys, ranking.beyond, count)).all()


def test_maps_are_those_of_every_cell():
    cells = Cells.of(lines_of_print(), 0, patch=16)
    for scale in (1.0, 4.4):
        wanted = np.where(cells.ink, cells.mass, 0) * legibility(cells.legible_scale.astype(np.float64), scale)
        np.testing.assert_allclose(cells.legible(scale), wanted, rtol=1e-12)


def unpruned(monkeypatch):
    """Every run is live, and passes."""
    monkeypatch.setattr(Cells, "live", property(lambda cells: np.arange(len(runs_of(cells.ink)))))

    begin = CellRanking.__init__

    def every_run_passes(ranking, *given):
        begin(ranking, *given)
        ranking.highest = np.full(len(ranking.keys), ranking.KEYS)

    monkeypatch.setattr(CellRanking, "__init__", every_run_passes)


@pytest.mark.parametrize("name", ["layers", "dag", "atlas", "pyramid", "crops", "quadtree"])
def test_no_token_changes(name, monkeypatch):
    relevance = lines_of_print(60, 90, share=0.15)
    texture = Texture.open(torch.rand(3, *relevance.size)).mipmapped()
    pruned = ALLOCATORS[name](texture, relevance, budget=60, patch=16)
    unpruned(monkeypatch)
    whole = ALLOCATORS[name](texture, relevance, budget=60, patch=16)
    for part in ("centre", "ddx", "ddy", "score", "valid"):
        assert torch.equal(getattr(pruned, part), getattr(whole, part))
