"""layers and fit: within the budget, all of it used, nothing but blank left out, and detail where it matters."""

import numpy as np
import pytest
import torch

from texturevlm.allocate import ALLOCATORS
from texturevlm.allocate.cells import Cells, cells_of, runs_of
from texturevlm.allocate.footprints import use_all
from texturevlm.allocate.layers import CellRanking
from texturevlm.allocate.plain import tiling
from texturevlm.allocate.search import finest_span, ladder
from texturevlm.ops.cover import cover, rows_of
from texturevlm.placement import choose_tokens
from texturevlm.relevance import Relevance
from texturevlm.relevance.maps import UNIT, legibility
from texturevlm.types import Texture

BUDGETS = (1, 2, 7, 64, 273)


def page(height=400, width=300):
    """A white page with lines of strokes in its upper half."""
    image = torch.ones(3, height, width)
    for top in range(20, height // 2, 24):
        image[:, top : top + 12, 20 : width - 20] = (torch.arange(width - 40) // 3 % 2).float()
    return image


def flat(size, *, mass=None, legible_scale=4.0, ink=None):
    rows, columns = size[0] // 4, size[1] // 4
    mass = torch.ones(1, rows, columns) if mass is None else mass
    ink = torch.ones(1, rows, columns, dtype=torch.bool) if ink is None else ink
    return Relevance(mass / mass.sum(), torch.full((1, rows, columns), legible_scale), ink, size)


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("name", ["fit", "layers", "resize", "grid"])
def test_the_budget_holds(name, budget):
    texture = Texture.open(page())
    allocation = choose_tokens(texture, budget=budget, patch=16, allocator=name)
    assert allocation.budget == budget and 1 <= allocation.valid.sum() <= budget
    if name in ("fit", "layers", "grid"):
        assert allocation.valid.all(), "this page has enough to give"
    assert (allocation.level[allocation.valid] > -1e-3).all(), "finer than the pixels"
    used = allocation.valid[0].long()
    assert (used.diff() <= 0).all(), "used slots come first"


@pytest.mark.parametrize("name", ["fit", "layers"])
@pytest.mark.parametrize("budget", BUDGETS)
def test_all_that_is_not_blank_is_delivered(name, budget):
    size = (160, 240)
    ink = torch.rand(1, 40, 60) < 0.1
    relevance = flat(size, ink=ink, mass=torch.rand(1, 40, 60))
    texture = Texture.open(torch.rand(3, *size))
    allocation = ALLOCATORS[name](texture, relevance, budget=budget, patch=8)
    seen = torch.zeros(40, 60, dtype=torch.bool)
    for x0, y0, x1, y1 in allocation.boxes[0][allocation.valid[0]].tolist():
        rows, columns = torch.arange(40) * 4 + 2, torch.arange(60) * 4 + 2
        seen |= ((rows > y0) & (rows < y1))[:, None] & ((columns > x0) & (columns < x1))
    assert (seen | ~ink[0]).all()


def test_blank_space_buys_detail():
    size = (320, 320)
    ink = torch.zeros(1, 80, 80, dtype=torch.bool)
    ink[:, 10:30] = True
    texture = Texture.open(torch.rand(3, *size))
    level = {
        name: ALLOCATORS[name](texture, flat(size, ink=ink), budget=25, patch=16).level.median()
        for name in ("fit", "resize")
    }
    assert level["fit"] < level["resize"] - 0.7


def test_detail_goes_where_the_mass_is():
    size = (320, 320)
    texture = Texture.open(torch.rand(3, *size))
    for row, column in ((5, 5), (60, 5), (40, 70)):
        mass = torch.full((1, 80, 80), 1e-3)
        mass[:, row : row + 8, column : column + 8] = 1
        allocation = ALLOCATORS["layers"](texture, flat(size, mass=mass, legible_scale=1.5), budget=25, patch=8)
        finest = allocation.level[0].argmin()
        x, y = allocation.centre[0, finest].tolist()
        assert abs(x - 4 * (column + 4)) < 40 and abs(y - 4 * (row + 4)) < 40


def test_large_print_needs_no_detail():
    """Where everything is legible at a coarse scale, finer tokens on some of it gain nothing."""
    size = (320, 320)
    texture = Texture.open(torch.rand(3, *size))
    allocation = ALLOCATORS["layers"](texture, flat(size, legible_scale=40.0), budget=25, patch=8)
    assert allocation.level.max() - allocation.level.min() <= 1.01


@pytest.mark.parametrize("size", [(1, 1), (1, 50), (50, 1), (31, 33), (40, 400), (427, 640)])
@pytest.mark.parametrize("name", ["fit", "layers", "resize", "grid"])
def test_any_image(name, size):
    for budget in (1, 9):
        for image in (torch.rand(3, *size), torch.ones(3, *size)):
            allocation = choose_tokens(Texture.open(image), budget=budget, patch=16, allocator=name)
            assert allocation.valid.any()
            if name != "grid":
                assert allocation.coverage.item() == 1.0 or image.std() > 0


@pytest.mark.parametrize("name", ["fit", "layers"])
def test_a_blank_page_is_covered(name):
    allocation = choose_tokens(Texture.open(torch.ones(3, 200, 150)), budget=12, patch=16, allocator=name)
    assert allocation.coverage.item() == 1.0 and allocation.valid.sum() <= 12


def test_a_batch_is_its_images():
    images = torch.stack([page(), torch.rand(3, 400, 300)])
    together = choose_tokens(Texture.open(images), budget=30, patch=16)
    for index, image in enumerate(images):
        alone = choose_tokens(Texture.open(image), budget=30, patch=16)
        torch.testing.assert_close(together.boxes[index], alone.boxes[0])


def test_the_finest_span_is_the_finest():
    relevance = flat((320, 320), ink=torch.rand(1, 80, 80) < 0.02)
    cells = Cells.of(relevance, 0, patch=8)
    rows = rows_of(cells.ink)
    for budget in (1, 5, 30, 200):
        span = finest_span(cells, cells.ink, budget)
        assert len(cover(rows, span, budget)) <= budget
        assert span == 2 or len(cover(rows, span - 1, budget)) > budget
        assert cells.width(span) == max(8, span * 4)


def test_a_ladder_goes_down_to_the_pixels_by_thirds_of_an_octave():
    assert ladder(64, 8) == [64, 50, 40, 32, 25, 20, 16, 12, 10, 8]
    assert ladder(9, 4) == [9, 7, 5, 4] and ladder(4, 4) == [4] and ladder(1, 1) == [1]
    for span in range(1, 289):
        steps = ladder(span, 3 if span > 3 else 1)
        assert steps == sorted(set(steps), reverse=True) and steps[0] == span


def test_worth_is_the_curve_in_whole_numbers():
    mass = torch.rand(1, 40, 60)
    relevance = flat((160, 240), mass=mass, ink=torch.rand(1, 40, 60) < 0.7)
    cells = Cells.of(relevance, 0, patch=8)
    for scale in (1.0, 3.3, 20.0):
        wanted = np.where(cells.ink, cells.mass * legibility(cells.legible_scale.astype(np.float64), scale), 0)
        found = cells_of(cells.worth(scale), cells.live, cells.ink.shape)
        assert np.abs(found / UNIT - wanted).max() < 1e-6


def test_a_ranking_takes_the_best_cells_and_equal_ones_in_order():
    gain = torch.randint(0, 1 << 20, (30, 40)).numpy()
    cells = Cells.of(flat((120, 160)), 0, patch=8)
    ranking = CellRanking(cells, runs_of(gain))
    before = np.zeros(gain.shape, dtype=bool)
    for count in (0, 1, 100, 700, ranking.total):
        chosen = ranking.first(count)
        assert abs(chosen.sum() - count) < 20 and (chosen | ~before).all() and not (chosen & (gain == 0)).any()
        if chosen.any() and not chosen.all():
            assert gain[chosen].min() * 1.01 + 1 > gain[~chosen].max()
        before = chosen
    assert before.sum() == ranking.total == (gain > 0).sum()
    even = CellRanking(cells, runs_of(np.full((30, 40), 77))).first(100)
    assert even.ravel()[:100].all() and even.sum() == 100


def test_left_over_tokens_are_used_without_going_below_the_pixels():
    found = use_all([((0.0, 0.0, 48.0, 48.0), 1.0), ((100.0, 0.0, 132.0, 32.0), 9.0)], budget=7, patch=32)
    assert len(found) == 5  # the second has nothing to give, the first has two each way
    assert all(x1 - x0 >= 32 and y1 - y0 >= 32 for (x0, y0, x1, y1), _ in found)


def test_tilings_are_nearly_square():
    assert tiling((1000, 1000), 16, 10) == (4, 4)
    assert tiling((1000, 500), 8, 10) == (4, 2)
    assert tiling((20, 1000), 50, 10) == (1, 50)
    assert tiling((5, 5), 50, 10) == (1, 1)


def test_bad_options_are_named():
    texture = Texture.open(page())
    with pytest.raises(ValueError, match="auto: overview must be above 0"):
        choose_tokens(texture, overview=0.0)
    with pytest.raises(ValueError, match="choose_tokens: allocator must be one of resize, grid, fit"):
        choose_tokens(texture, allocator="best")
    with pytest.raises(ValueError, match="choose_tokens: budget must be"):
        choose_tokens(texture, budget=0)
