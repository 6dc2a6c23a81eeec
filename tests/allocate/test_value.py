"""Expected value: against a plain loop over cells, for upright and rotated footprints, and what must move it."""

import math
from dataclasses import replace

import pytest
import torch

from texturevlm.allocate.layers import layers
from texturevlm.allocate.plain import resize
from texturevlm.allocate.value import delivered_scale, expected_value, reading_scale, stretch_cost
from texturevlm.relevance import Relevance
from texturevlm.types import Allocation, Texture


def some_relevance(grid=(9, 13), size=(90, 127), batch=2, seed=0) -> Relevance:
    generator = torch.Generator().manual_seed(seed)
    mass = torch.rand(batch, *grid, generator=generator) ** 4
    legible_scale = 1 + 4 * torch.rand(batch, *grid, generator=generator)
    return Relevance(
        mass / mass.sum((1, 2), keepdim=True), legible_scale, torch.ones(batch, *grid, dtype=torch.bool), size
    )


def turned(size=(90, 127), batch=2, count=40, patch=8, seed=1) -> Allocation:
    generator = torch.Generator().manual_seed(seed)
    angle = torch.rand(batch, count, generator=generator) * math.pi
    along = torch.stack([angle.cos(), angle.sin()], -1)
    across = torch.stack([-angle.sin(), angle.cos()], -1)
    steps = 0.5 + 3 * torch.rand(2, batch, count, 1, generator=generator)
    centre = torch.rand(batch, count, 2, generator=generator) * torch.tensor([size[1], size[0]])
    valid = torch.rand(batch, count, generator=generator) > 0.2
    source = torch.zeros(batch, count, dtype=torch.int64)
    return Allocation(centre, along * steps[0], across * steps[1], valid.float(), valid, source, size, patch)


def plain_scale(allocation: Allocation, grid: tuple[int, int]) -> torch.Tensor:
    """The definition: cell by cell, token by token."""
    found = torch.full((allocation.batch, *grid), math.inf)
    scale = reading_scale(allocation)
    for image, slot in allocation.valid.nonzero().tolist():
        axes = torch.stack([allocation.ddx[image, slot], allocation.ddy[image, slot]], -1).double()
        for row in range(grid[0]):
            for column in range(grid[1]):
                x = (column + 0.5) * allocation.size[1] / grid[1]
                y = (row + 0.5) * allocation.size[0] / grid[0]
                offset = torch.tensor([x, y]).double() - allocation.centre[image, slot].double()
                if (torch.linalg.solve(axes, offset).abs() <= allocation.patch / 2).all():
                    found[image, row, column] = min(found[image, row, column], scale[image, slot])
    return found


@pytest.mark.parametrize("seed", [1, 2])
def test_the_scale_of_rotated_footprints_is_that_of_the_definition(seed):
    allocation = turned(seed=seed)
    torch.testing.assert_close(delivered_scale(allocation, (9, 13)), plain_scale(allocation, (9, 13)))


def test_the_scale_is_the_same_however_many_are_tested_at_once(monkeypatch):
    allocation = turned()
    whole = delivered_scale(allocation, (9, 13))
    monkeypatch.setattr("texturevlm.allocate.value._AT_ONCE", 1)
    assert torch.equal(delivered_scale(allocation, (9, 13)), whole)


def test_one_scale_everywhere_is_worth_what_readable_says():
    relevance = some_relevance()
    texture = Texture.open(torch.rand(2, 3, 90, 127))
    allocation = resize(texture, relevance, budget=12, patch=8)
    scale = reading_scale(allocation)[:, :1, None]
    expected = (relevance.mass / (1 + (scale / relevance.legible_scale) ** 5.5)).sum((1, 2))
    torch.testing.assert_close(expected_value(relevance, allocation), expected)


def test_what_no_footprint_shows_is_worth_nothing():
    relevance = some_relevance()
    allocation = turned()
    nothing = replace(allocation, valid=torch.zeros_like(allocation.valid))
    assert expected_value(relevance, nothing).tolist() == [0, 0]
    flat = replace(allocation, ddx=torch.zeros_like(allocation.ddx))
    assert expected_value(relevance, flat).tolist() == [0, 0]


def test_more_tokens_are_worth_more_and_the_wrong_place_less():
    relevance = some_relevance()
    texture = Texture.open(torch.rand(2, 3, 90, 127))
    few, many = (expected_value(relevance, layers(texture, relevance, budget=k, patch=8)) for k in (6, 60))
    assert (many > few).all() and (many <= 1 + 1e-6).all()
    elsewhere = replace(relevance, mass=relevance.mass.flip(1, 2))
    moved = expected_value(relevance, layers(texture, elsewhere, budget=6, patch=8))
    assert (moved < few).all()


def test_stretching_costs_what_was_measured():
    ratio = torch.tensor([1 / 4, 1 / 2, 2 / 3, 1.0, 2.0, 4.0])
    cost = stretch_cost(ratio)
    assert cost[2] == cost[3] == 1 and cost[4] == pytest.approx(2**0.35)
    assert cost[0] > cost[1] > 1 and cost[5] > cost[4] > cost[1]


def test_another_image_is_refused():
    with pytest.raises(ValueError, match=r"expected_value: allocation must be for 2 images of \(90, 127\), got 1 of"):
        expected_value(some_relevance(), turned(batch=1))
