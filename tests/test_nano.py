"""examples/nano.py gives the library's result: levels, the cut, patches, positions and the picture."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import texturevlm as tv
from examples import nano
from texturevlm.allocate.quadtree import Forest
from texturevlm.rebuilding import rebuild
from texturevlm.vlm.places import frame, places

ROOT = Path(__file__).parent.parent
SIDE = 256  # a power of two times the patch, so that squares end at the border as the library's boxes do


def page(height=SIDE, width=SIDE):
    """A page (3, H, W) with print on its left half, of sizes that grow downwards."""
    image = torch.ones(3, height, width)
    print_size = 2 + torch.arange(height // 2) // 32
    ink = (torch.rand(height // 2, width // 2) < 0.5) & (torch.arange(width // 2) // print_size[:, None] % 2 == 0)
    image[:, : height // 2, : width // 2] -= ink * torch.rand(3, 1, 1)
    return image


def allocation_of(chosen, size):
    boxes = torch.tensor([[footprint.box for footprint in chosen]])
    return tv.Allocation.of_boxes(boxes, size, nano.PATCH)


@pytest.fixture
def chosen():
    image = page()
    found = nano.choose(nano.detail(image, torch.ones(SIDE, SIDE)), (SIDE, SIDE), 20)
    assert len({footprint.level for footprint in found}) >= 2
    return image, found


@pytest.mark.parametrize("size", [(SIDE, SIDE), (37, 61), (1, 5)])
def test_levels_are_the_librarys(size):
    image = torch.rand(3, *size)
    levels, theirs = nano.mips(image), tv.Texture.open(image).mipmapped().levels
    assert len(levels) == len(theirs)
    for level, their in zip(levels, theirs):
        torch.testing.assert_close(level, their[0], rtol=0, atol=2e-6)


@pytest.mark.parametrize("budget", [1, 7, 28, 52, 100])
def test_the_cut_is_the_best_that_the_library_finds_in_the_same_tree(budget):
    lost = nano.detail(page(), torch.rand(SIDE, SIDE))
    found = nano.choose(lost, (SIDE, SIDE), budget)
    numbers, parent, error = {}, [], []
    for level in reversed(range(len(lost))):
        for row, column in np.ndindex(*lost[level].shape):
            numbers[level, row, column] = len(parent)
            parent.append(numbers.get((level + 1, row // 2, column // 2), -1))
            error.append(float(lost[level][row, column]))
    forest = Forest(np.array(parent), np.ones(len(parent), dtype=np.int64), np.array(error))
    assert len(found) <= budget
    assert {numbers[footprint] for footprint in found} == set(forest.cut(len(found)).tolist())


def test_what_is_not_split_costs_less_and_a_larger_budget_loses_less():
    lost = nano.detail(page(), torch.ones(SIDE, SIDE))
    totals = []
    for budget in (1, 10, 25, 60):
        found = nano.choose(lost, (SIDE, SIDE), budget)
        totals.append(sum(float(lost[level][row, column]) for level, row, column in found))
    assert totals == sorted(totals, reverse=True) and totals[-1] < totals[0] / 2


def test_footprints_cover_every_pixel_once():
    image = page(150, 230)
    found = nano.choose(nano.detail(image, torch.ones(150, 230)), (150, 230), 30)
    times = torch.zeros(150, 230)
    for left, top, right, bottom in (footprint.box for footprint in found):
        times[top:bottom, left:right] += 1
    assert (times == 1).all()


def test_relevance_draws_tokens():
    image = torch.rand(3, SIDE, SIDE)
    relevance = nano.gaze((SIDE, SIDE), 200.0, 60.0)
    found = nano.choose(nano.detail(image, relevance), (SIDE, SIDE), 30)
    middles = torch.tensor([nano.positions([footprint])[0].tolist() for footprint in found]) * nano.PATCH
    far = torch.hypot(middles[:, 0] - 60, middles[:, 1] - 200)
    level = torch.tensor([footprint.level for footprint in found])
    assert level.unique().numel() > 1 and far[level == level.min()].mean() < far[level > level.min()].mean() / 2


@pytest.mark.parametrize("size", [(SIDE, SIDE), (150, 230)])
def test_patches_are_the_librarys(size):
    image = page(*size)
    found = nano.choose(nano.detail(image, torch.ones(size)), size, 20)
    theirs = tv.sample(tv.Texture.open(image).mipmapped(), allocation_of(found, size)).pixels[0]
    torch.testing.assert_close(nano.patches(nano.mips(image), found), theirs, rtol=0, atol=1e-5)


def test_positions_are_those_of_the_adapters(chosen):
    _, found = chosen
    allocation = allocation_of(found, (SIDE, SIDE))
    step = torch.stack([allocation.ddx[..., 0], allocation.ddy[..., 1]], -1)
    grid = (SIDE // nano.PATCH,) * 2
    theirs = places(allocation.centre, step, frame((SIDE, SIDE), grid), side=nano.PATCH).token[0]
    assert torch.equal(nano.positions(found), theirs)


def test_the_picture_is_the_librarys(chosen):
    image, found = chosen
    shown = nano.picture(nano.patches(nano.mips(image), found), found, (SIDE, SIDE))
    theirs = rebuild(tv.Texture.open(image), allocation_of(found, (SIDE, SIDE)))[0]
    torch.testing.assert_close(shown, theirs, rtol=0, atol=1e-5)


def test_the_command_draws_a_picture(tmp_path, monkeypatch, capsys):
    out = tmp_path / "nano.png"
    command = ["nano.py", str(ROOT / "examples" / "photo.jpg"), "--budget", "60", "--at", "200,120", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", command)
    nano.main()
    assert "tokens of 32x32 for 256 patches" in capsys.readouterr().out
    assert Image.open(out).width == 3 * 512 + 40
