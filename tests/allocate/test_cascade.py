"""Cascade: exact budgets, an overview that is kept, and options that do what they say."""

import pytest
import torch

from texturevlm import Texture
from texturevlm.allocate import ALLOCATORS
from texturevlm.allocate.plain import resize
from texturevlm.relevance.maps import Relevance, legibility
from texturevlm_lab.allocators.cascade import PLAN_FAMILIES, cascade, plans_for


def page(height=600, width=480, *, batch=1) -> Texture:
    """White, with lines of strokes in the upper left."""
    image = torch.ones(batch, 3, height, width)
    for top in range(40, height // 2, 24):
        image[..., top : top + 10, 30 : width // 2] = (torch.arange(width // 2 - 30) // 2 % 2).float()
    return Texture.open(image)


def relevance_of(size, cell=4, *, at=None, batch=1, legible_scale=3.0) -> Relevance:
    """Ink in the left half; mass even over it, or about a cell."""
    grid = (max(1, size[0] // cell), max(1, size[1] // cell))
    ink = torch.zeros(batch, *grid, dtype=torch.bool)
    ink[:, :, : (grid[1] + 1) // 2] = True
    mass = ink.float()
    if at is not None:
        y, x = torch.meshgrid(*(torch.arange(extent) for extent in grid), indexing="ij")
        mass = mass * torch.exp(-((y - at[0]) ** 2 + (x - at[1]) ** 2) / 50)
    return Relevance(mass / mass.sum((1, 2), keepdim=True), torch.full((batch, *grid), legible_scale), ink, size)


def value(relevance, allocation) -> float:
    """The expected legibility: each cell at the finest scale of any token over its centre."""
    rows, columns = relevance.grid
    x = (torch.arange(columns) + 0.5) * relevance.size[1] / columns
    y = (torch.arange(rows) + 0.5) * relevance.size[0] / rows
    x0, y0, x1, y1 = allocation.boxes[0].unbind(-1)
    holds = ((y0 <= y[:, None]) & (y[:, None] <= y1))[:, None] & ((x0 <= x[:, None]) & (x[:, None] <= x1))
    scale = torch.maximum(allocation.ddx[0, :, 0], allocation.ddy[0, :, 1])
    finest = torch.where(holds & allocation.valid[0], scale, float("inf")).amin(-1)
    return float((relevance.mass[0] * legibility(relevance.legible_scale[0], finest)).sum())


@pytest.mark.parametrize("stages", PLAN_FAMILIES)
@pytest.mark.parametrize("budget", [1, 2, 5, 32, 97, 273])
def test_the_budget_is_used_and_everything_is_covered(stages, budget):
    texture, relevance = page(), relevance_of((600, 480))
    found = cascade(texture, relevance, budget=budget, patch=16, stages=stages)
    assert found.budget == budget and found.valid.all() and found.coverage.item() == 1


@pytest.mark.parametrize("size", [(1, 1), (1, 700), (33, 31), (400, 3), (64, 64)])
@pytest.mark.parametrize("budget", [1, 9, 5000])
def test_any_size(size, budget):
    found = cascade(Texture.open(torch.rand(3, *size)), relevance_of(size, 1), budget=budget, patch=16)
    assert found.coverage.item() == 1 and 1 <= found.valid.sum() <= budget
    used = found.valid[0]
    assert used[: used.sum()].all()
    assert (found.ddx[0, used, 0] > 1 - 1e-5).all() or size[1] < 16  # no finer than the pixels


def test_a_blank_image_is_covered():
    texture = Texture.open(torch.ones(3, 500, 400))
    blank = relevance_of((500, 400))
    blank = Relevance(blank.mass, blank.legible_scale, blank.ink & False, blank.size)
    found = cascade(texture, blank, budget=60, patch=16)
    assert found.coverage.item() == 1 and 1 <= found.valid.sum() <= 60


def test_tokens_follow_relevance_and_a_batch_is_its_images():
    size = (800, 800)
    spots = [(30, 30), (160, 60)]
    alone = [cascade(Texture.open(torch.rand(3, *size)), relevance_of(size, at=at), budget=64) for at in spots]
    for at, found in zip(spots, alone):
        finest = found.centre[0][found.level[0] == found.level[0].min()] / 4
        assert (finest - torch.tensor([at[1], at[0]])).norm(dim=-1).median() < 30
    both = [relevance_of(size, at=at) for at in spots]
    together = Relevance(
        *(torch.cat([getattr(r, name) for r in both]) for name in ("mass", "legible_scale", "ink")), size
    )
    batch = cascade(Texture.open(torch.rand(2, 3, *size)), together, budget=64)
    for index, found in enumerate(alone):
        assert torch.equal(batch.boxes[index], found.boxes[0])


@pytest.mark.parametrize("stages", PLAN_FAMILIES)
def test_it_shows_more_than_resizing(stages):
    size = (1600, 1200)
    for at in (None, (50, 40)):
        relevance = relevance_of(size, 8, at=at)
        texture = Texture.open(torch.zeros(3, *size))
        ours, plain = (value(relevance, by(texture, relevance, budget=96)) for by in (cascade, resize))
        assert ours > plain + 0.1


def test_plans_adapt_to_the_image_and_can_be_fixed():
    size = (1600, 1200)
    texture = Texture.open(torch.zeros(3, *size))
    focused, spread = relevance_of(size, 8, at=(50, 40)), relevance_of(size, 8)
    for relevance in (focused, spread):
        adapted = value(relevance, cascade(texture, relevance, budget=64))
        fixed = [
            value(relevance, cascade(texture, relevance, budget=64, survivors=survivors))
            for survivors in (0.15, 0.3, 0.6)
        ]
        assert adapted > max(fixed) - 0.03
    few, many = (plans_for(size, budget=64, patch=32, survivors=survivors) for survivors in (0.1, 0.9))
    assert len(few) <= len(PLAN_FAMILIES[3]) and few[0].stages[0].survivors > many[0].stages[0].survivors


def test_scans_may_go_by_another_map():
    size = (1600, 1600)
    texture = Texture.open(torch.zeros(3, *size))
    question, elsewhere = relevance_of(size, 8, at=(40, 40)), relevance_of(size, 8, at=(160, 60))
    plain = cascade(texture, question, budget=64)
    assert torch.equal(plain.boxes, cascade(texture, question, budget=64, scan=question).boxes)
    misled = cascade(texture, question, budget=64, scan=elsewhere)
    assert value(question, misled) < value(question, plain)
    with pytest.raises(ValueError, match=r"cascade: scan must be \(B, h, w\), got \(1, 100, 100\) \(B=1"):
        cascade(texture, question, budget=64, scan=relevance_of(size, 16))


def test_it_is_deterministic_and_registered():
    texture, relevance = page(), relevance_of((600, 480))
    first, again = (ALLOCATORS["cascade"](texture, relevance, budget=60) for _ in range(2))
    assert torch.equal(first.boxes, again.boxes) and torch.equal(first.score, again.score)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"stages": 4}, r"stages must be one of 3, 5, continuous, got 4"),
        ({"survivors": 1.5}, r"survivors must be above 0 and at most 1, got 1.5"),
        ({"budget": 0}, r"budget must be at least 1, got 0"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=f"cascade: {message}"):
        cascade(page(), relevance_of((600, 480)), **options)
