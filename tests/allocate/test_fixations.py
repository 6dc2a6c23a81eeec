"""Several looks: each adds to the last, the overview comes first, and detail goes where the looks so far ask for it."""

import math

import pytest
import torch

from texturevlm.allocate.value import delivered_scale, expected_value
from texturevlm.relevance import Relevance
from texturevlm.types import Allocation, Texture
from texturevlm_lab.allocators.fixations import fixations, tokens_by_look

SIZE = (400, 560)


def picture(size: tuple[int, int] = SIZE, batch: int = 1) -> Texture:
    return Texture.open(torch.rand(batch, 1, *size, generator=torch.Generator().manual_seed(0)))


def relevance(size=SIZE, *, spot=(0.3, 0.6), blank=False, batch=1, cell=8) -> Relevance:
    rows, columns = max(1, size[0] // cell), max(1, size[1] // cell)
    y, x = torch.meshgrid((torch.arange(rows) + 0.5) / rows, (torch.arange(columns) + 0.5) / columns, indexing="ij")
    mass = torch.exp(-((x - spot[0]) ** 2 + (y - spot[1]) ** 2) / 0.01) + 1e-4
    ink = torch.ones(rows, columns, dtype=torch.bool)
    if blank:
        ink[:, 2 * columns // 3 :] = False
    mass = (mass / mass.sum()).expand(batch, -1, -1)
    return Relevance(mass, torch.full_like(mass, 1.5), ink.expand(batch, -1, -1).clone(), size)


def prefix(allocation: Allocation, count: int) -> Allocation:
    return allocation.each(lambda column: column[:, :count])


@pytest.mark.parametrize("budget", [1, 2, 9, 64])
@pytest.mark.parametrize("looks", [1, 2, 3, 4])
@pytest.mark.parametrize("blank", [False, True])
def test_the_budget_is_used_and_the_first_look_shows_everything(budget, looks, blank):
    maps = relevance(blank=blank, batch=2)
    allocation = fixations(picture(batch=2), maps, budget=budget, patch=16, looks=looks)
    assert allocation.valid.sum(1).tolist() == [budget, budget]
    first = prefix(allocation, tokens_by_look(budget, looks=looks)[0])
    assert not bool((maps.ink & torch.isinf(delivered_scale(first, maps.grid))).any())


def test_each_look_is_worth_more():
    maps = relevance()
    allocation = fixations(picture(), maps, budget=90, patch=16, looks=4)
    values = [float(expected_value(maps, prefix(allocation, count))) for count in tokens_by_look(90, looks=4)]
    assert values == sorted(values) and values[-1] > values[0] + 0.2


def test_detail_goes_where_the_mass_is():
    for spot in ((0.2, 0.3), (0.8, 0.7)):
        allocation = fixations(picture(), relevance(spot=spot), budget=40, patch=16)
        later = allocation.centre[0, 4:] / torch.tensor([SIZE[1], SIZE[0]])
        assert float((later.mean(0) - torch.tensor(spot)).norm()) < 0.12


@pytest.mark.parametrize("size", [(1, 1), (1, 300), (300, 1), (64, 64), (37, 411)])
@pytest.mark.parametrize("budget", [1, 5, 40, 5000])
def test_awkward_sizes(size, budget):
    maps = relevance(size, cell=4)
    allocation = fixations(picture(size), maps, budget=budget, patch=8, looks=3)
    tiles = math.ceil(size[0] / 8) * math.ceil(size[1] / 8)
    assert int(allocation.valid.sum()) >= min(budget, tiles)
    if budget > 2 * tiles:
        assert float(allocation.coverage) == 1  # blank or not: there were tokens enough
    assert not bool(torch.isinf(delivered_scale(allocation, maps.grid)).any())


def test_a_blank_image_is_covered():
    maps = relevance()
    maps.ink.zero_()
    allocation = fixations(picture(), maps, budget=30, patch=16)
    assert int(allocation.valid.sum()) == 30 and float(allocation.coverage) == 1


def test_tokens_by_look_rise_to_the_budget():
    assert tokens_by_look(273) == [27, 273]
    assert tokens_by_look(100, looks=4, first=0.1) == [10, 40, 70, 100]
    assert tokens_by_look(1, looks=4) == [1, 1, 1, 1]
    assert tokens_by_look(50, looks=1) == [50]


def test_it_is_deterministic():
    first, second = (fixations(picture(), relevance(), budget=50, patch=16, looks=3) for _ in range(2))
    assert torch.equal(first.boxes, second.boxes)


def test_bad_options_are_named():
    with pytest.raises(ValueError, match="fixations: looks must be between 1 and 4, got 5"):
        fixations(picture(), relevance(), looks=5)
    with pytest.raises(ValueError, match="fixations: first must be above 0 and at most 1, got 0"):
        fixations(picture(), relevance(), first=0)
