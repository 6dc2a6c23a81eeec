"""The retina: within the budget, finest at the fixations, nothing that is not blank left out, in every pattern."""

import math

import numpy as np
import pytest
import torch

from texturevlm.allocate.value import delivered_scale
from texturevlm.relevance import Relevance
from texturevlm.types import Allocation, Texture
from texturevlm_lab.allocators.logpolar import PATTERNS, logpolar, peaks


def picture(size: tuple[int, int], batch: int = 1) -> Texture:
    return Texture.open(torch.rand(batch, 1, *size, generator=torch.Generator().manual_seed(0)))


def relevance(size, *, spots=((0.3, 0.6),), blank=False, batch=1, cell=8) -> Relevance:
    """Mass in small spots (x, y as shares of the size); the right third is blank if asked."""
    rows, columns = max(1, size[0] // cell), max(1, size[1] // cell)
    y, x = torch.meshgrid((torch.arange(rows) + 0.5) / rows, (torch.arange(columns) + 0.5) / columns, indexing="ij")
    mass = sum(torch.exp(-((x - a) ** 2 + (y - b) ** 2) / 0.002) for a, b in spots) + 1e-4
    ink = torch.ones(rows, columns, dtype=torch.bool)
    if blank:
        ink[:, 2 * columns // 3 :] = False
    mass = (mass / mass.sum()).expand(batch, -1, -1)
    return Relevance(mass, torch.full_like(mass, 2.0), ink.expand(batch, -1, -1).clone(), size)


def uncovered_ink(allocation: Allocation, maps: Relevance) -> int:
    return int((maps.ink & torch.isinf(delivered_scale(allocation, maps.grid))).sum())


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("budget", [1, 2, 7, 60])
@pytest.mark.parametrize("blank", [False, True])
def test_the_budget_is_used_and_everything_is_covered(pattern, budget, blank):
    size = (400, 560)
    maps = relevance(size, blank=blank, batch=2)
    allocation = logpolar(picture(size, 2), maps, budget=budget, patch=16, pattern=pattern)
    assert allocation.valid.sum(1).tolist() == [budget, budget]
    assert uncovered_ink(allocation, maps) == 0
    assert float(allocation.level.min()) >= -1e-4
    assert bool(allocation.upright[allocation.valid].all())


@pytest.mark.parametrize("pattern", PATTERNS)
def test_tokens_grow_with_distance_from_the_fixation(pattern):
    size, point = (800, 800), (300.0, 500.0)
    maps = relevance(size, spots=[(point[0] / 800, point[1] / 800)])
    allocation = logpolar(picture(size), maps, budget=120, patch=8, fixations=1, e0=0.05, pattern=pattern)
    scale = delivered_scale(allocation, (100, 100))[0]
    y, x = torch.meshgrid(torch.arange(100) * 8 + 4.0, torch.arange(100) * 8 + 4.0, indexing="ij")
    distance = torch.hypot(x - point[0], y - point[1])
    near, middle, far = (
        scale[distance < 60].mean(),
        scale[(distance > 150) & (distance < 250)].mean(),
        scale[distance > 400],
    )
    assert near < 0.6 * middle and middle < 0.8 * far.mean()
    # 1 / M is a straight line in the distance: from 200 to 450 pixels it rises from 240 to 490.
    assert float(far.mean() / middle) == pytest.approx(490 / 240, rel=0.35)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_tokens_follow_the_relevance(pattern):
    size = (600, 600)
    for spot in ((0.2, 0.3), (0.8, 0.7)):
        allocation = logpolar(picture(size), relevance(size, spots=[spot]), budget=40, patch=8, pattern=pattern)
        scale = delivered_scale(allocation, (100, 100))[0]
        here, mirrored = (float(scale[round(100 * y), round(100 * x)]) for x, y in (spot, (1 - spot[0], 1 - spot[1])))
        assert here < 0.5 * float(scale.median()) and here < 0.3 * mirrored


def test_fixations_are_peaks_and_never_return():
    mass = np.zeros((50, 80))
    mass[10, 20], mass[11, 22], mass[40, 70], mass[30, 5] = 1.0, 0.9, 0.7, 0.5
    found = peaks(mass, 3, radius=8)
    assert [math.dist(a, b) < 3 for a, b in zip(found, [(10, 21), (40, 70), (30, 5)])] == [True] * 3
    assert len(peaks(mass, 50, radius=30)) < 10  # there is no room for more
    assert peaks(np.zeros((5, 5)), 3, radius=1) == [(2, 2)]


def test_several_fixations_are_fine_at_each():
    size = (800, 800)
    spots = ((0.2, 0.2), (0.8, 0.7))
    allocation = logpolar(picture(size), relevance(size, spots=spots), budget=100, patch=8, fixations=2, e0=0.05)
    scale = delivered_scale(allocation, (100, 100))[0]
    for x, y in spots:
        assert float(scale[round(100 * y), round(100 * x)]) < 0.5 * float(scale.median())


@pytest.mark.parametrize("size", [(1, 1), (1, 300), (300, 1), (3, 500), (64, 64), (37, 411)])
@pytest.mark.parametrize("budget", [1, 5, 40, 5000])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_awkward_sizes(size, budget, pattern):
    maps = relevance(size, cell=4)
    allocation = logpolar(picture(size), maps, budget=budget, patch=8, pattern=pattern)
    tiles = math.ceil(size[0] / 8) * math.ceil(size[1] / 8)
    assert int(allocation.valid.sum()) >= min(budget, tiles) * 0.99
    assert uncovered_ink(allocation, maps) == 0


def test_a_blank_image_is_covered():
    maps = relevance((300, 300))
    maps.ink.zero_()
    allocation = logpolar(picture((300, 300)), maps, budget=20, patch=8)
    assert int(allocation.valid.sum()) == 20 and float(allocation.coverage) == 1


def test_it_is_deterministic():
    size = (400, 560)
    first, second = (logpolar(picture(size), relevance(size), budget=50, patch=16) for _ in range(2))
    assert torch.equal(first.boxes, second.boxes) and torch.equal(first.score, second.score)


def test_bad_options_are_named():
    size = (64, 64)
    arguments = picture(size), relevance(size)
    with pytest.raises(ValueError, match="logpolar: pattern must be one of rings, spiral, got 'hexagons'"):
        logpolar(*arguments, pattern="hexagons")
    with pytest.raises(ValueError, match="logpolar: e0 must be between"):
        logpolar(*arguments, e0=0.0)
    with pytest.raises(ValueError, match="logpolar: fixations must be at least 1, got 0"):
        logpolar(*arguments, fixations=0)
