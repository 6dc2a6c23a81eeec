"""What every allocator that traverses a hierarchy promises, and crops: budget, overview, relevance, odd input."""

import pytest
import torch

from texturevlm import Texture
from texturevlm.allocate import ALLOCATORS
from texturevlm.allocate.value import delivered_scale, expected_value
from texturevlm.relevance.maps import Relevance

NAMES = ("quadtree", "dag", "pyramid", "atlas", "crops")
SIZE = (640, 480)


def relevance_at(*spots, size=SIZE, cell=8, legible_scale=2.5) -> Relevance:
    """Lines of ink with a blank margin; mass even over the ink, or about one cell (row, column) an image."""
    grid = (max(1, size[0] // cell), max(1, size[1] // cell))
    y, x = torch.meshgrid(*(torch.arange(extent) for extent in grid), indexing="ij")
    ink = (y % 4 < 2) & (x > grid[1] // 8) & (x < grid[1] - grid[1] // 8)
    ink = ink if ink.any() else torch.ones_like(ink)
    about = [torch.exp(-((y - r) ** 2 + (x - c) ** 2) / 30.0) for r, c in spots] or [torch.ones(grid)]
    mass = torch.stack(about) * ink + 1e-6
    mass = mass / mass.sum((1, 2), keepdim=True)
    batch = len(about)
    return Relevance(mass, torch.full((batch, *grid), legible_scale), ink.expand(batch, -1, -1), size)


def photo(size=SIZE, batch=1) -> Texture:
    return Texture.open(torch.rand(batch, 3, *size))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("budget", [1, 2, 3, 7, 32, 97, 150])
def test_the_budget_is_used_and_all_ink_is_delivered(name, budget):
    relevance = relevance_at((20, 30))
    found = ALLOCATORS[name](photo(), relevance, budget=budget, patch=16)
    assert found.budget == budget and found.valid.all()
    assert delivered_scale(found, relevance.grid)[relevance.ink].isfinite().all()
    assert min(found.ddx[..., 0].min(), found.ddy[..., 1].min()) > 1 - 1e-5  # nothing finer than the pixels


@pytest.mark.parametrize("name", NAMES)
def test_tokens_follow_relevance_and_beat_one_scale(name):
    texture = photo()
    spots = [(16, 16), (60, 44)]
    for spot, other in (spots, spots[::-1]):
        found = ALLOCATORS[name](texture, relevance_at(spot), budget=48, patch=16)
        scale = delivered_scale(found, (80, 60))[0]
        assert scale[spot] < 0.7 * scale[other]
        plain = ALLOCATORS["resize"](texture, relevance_at(spot), budget=48, patch=16)
        assert expected_value(relevance_at(spot), found) > expected_value(relevance_at(spot), plain) + 0.2


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_is_its_images_and_nothing_is_random(name):
    texture = photo(batch=2)
    spots = [(16, 16), (60, 44)]
    together = ALLOCATORS[name](texture, relevance_at(*spots), budget=40, patch=16)
    for index, spot in enumerate(spots):
        one = Texture.open(texture.levels[0][index : index + 1])
        alone = ALLOCATORS[name](one, relevance_at(spot), budget=40, patch=16)
        assert torch.equal(alone.boxes[0], together.boxes[index])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [(1, 1), (1, 500), (333, 7), (90, 100)])
@pytest.mark.parametrize("budget", [1, 6, 3000])
def test_any_size(name, size, budget):
    found = ALLOCATORS[name](photo(size), relevance_at(size=size, cell=4), budget=budget, patch=16)
    used = found.valid[0]
    assert 1 <= used.sum() <= budget and used[: used.sum()].all()
    assert found.coverage.item() == 1 or budget < 3000  # with tokens to spare the blank parts are shown too


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("budget", [1, 24])
def test_a_blank_image_is_covered(name, budget):
    blank = relevance_at()
    blank = Relevance(blank.mass, blank.legible_scale, blank.ink & False, blank.size)
    found = ALLOCATORS[name](Texture.open(torch.ones(3, *SIZE)), blank, budget=budget, patch=16)
    assert found.coverage.item() == 1 and found.valid.all()


@pytest.mark.parametrize("name", NAMES)
def test_the_overview_sets_the_floor_of_scale(name):
    relevance = relevance_at((20, 30))
    coarsest = []
    for overview in (0.1, 0.6):
        found = ALLOCATORS[name](photo(), relevance, budget=60, patch=16, overview=overview)
        coarsest.append(delivered_scale(found, relevance.grid)[relevance.ink].max())
    assert coarsest[1] < coarsest[0]
    with pytest.raises(ValueError, match=f"{name}: overview must be above 0 and at most 1, got 0"):
        ALLOCATORS[name](photo(), relevance, overview=0)
