"""Pages behind a texture: sampled in two passes, the same as from whole levels; damaged ones are named."""

import numpy as np
import pytest
import torch

import texturevlm as tv
from tests.virtual.sources import ArraySource, as_levels, stored_levels
from texturevlm.ops import sample_patches
from texturevlm.ops.mip import mipmap
from texturevlm.virtual import mips, open_paged, pages


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(mips, "WHOLE_PIXELS", 100 * 100)


def noise(height=620, width=810):
    return stored_levels(np.random.default_rng(1).integers(0, 256, (height, width, 3), np.uint8))


def loaded(arrays, base):
    """The same levels, all of them in memory."""
    fine = as_levels(arrays[: base + 1])
    return [*fine[:base], *mipmap(fine[base])]


def some_tokens(texture, budget=24):
    return tv.foveate(texture.size, fixation=(300, 200), budget=budget, patch=16)


def test_samples_equal_those_of_whole_levels_bit_for_bit():
    arrays = noise()
    texture = open_paged(ArraySource(arrays))
    assert texture.size == (620, 810) and texture.levels[0].shape[2:] == (77, 101) and texture.pages.base == 3
    allocation = some_tokens(texture)
    where = allocation.centre, allocation.ddx, allocation.ddy
    found = tv.sample(texture, allocation).pixels
    assert torch.equal(found, sample_patches(loaded(arrays, 3), *where, patch=16))
    read = texture.pages.counters.pages_read
    assert read < sum(rows * columns for rows, columns in map(texture.pages.mips.grid, range(4)))
    assert torch.equal(tv.sample(texture, allocation).pixels, found)
    assert texture.pages.counters.pages_read == read  # nothing is read twice


def test_many_tokens_are_sampled_in_parts(monkeypatch):
    texture = open_paged(ArraySource(noise()))
    whole = tv.sample(texture, some_tokens(texture)).pixels
    monkeypatch.setattr(pages, "TOKENS_AT_ONCE", 5)
    assert torch.equal(tv.sample(open_paged(ArraySource(noise())), some_tokens(texture)).pixels, whole)


def test_a_small_pool_shows_what_matters_finely_and_the_rest_coarsely():
    arrays = noise()
    texture = open_paged(ArraySource(arrays), pool_bytes=4 * 3 * 64 * 64)
    boxes = torch.tensor([[[8.0, 8, 24, 24], [500, 300, 516, 316], [700, 40, 716, 56], [40, 560, 56, 576]]])
    score = torch.tensor([[1.0, 100.0, 1.0, 1.0]])
    allocation = tv.Allocation.of_boxes(boxes, texture.size, 16, score)
    found = tv.sample(texture, allocation).pixels[0]
    exact = sample_patches(loaded(arrays, 3), allocation.centre, allocation.ddx, allocation.ddy, patch=16)[0]
    same = [torch.equal(one, other) for one, other in zip(found, exact)]
    assert same[1] and not all(same)
    assert len(texture.pages.pool.slots) <= 4
    assert (found - exact).abs().mean() < 0.5  # of noise: coarse texels, not memory that was never written


def test_of_a_large_source_only_a_share_is_read_and_what_matters_most_first(monkeypatch):
    monkeypatch.setattr(pages, "MANY_PAGES", 100)
    monkeypatch.setattr(pages, "SAMPLE_SHARE", 0.02)
    arrays = noise()
    texture = open_paged(ArraySource(arrays))
    before, most = texture.pages.counters.pages_read, int(0.02 * texture.pages.pages)
    boxes = torch.tensor([[[8.0, 8, 24, 24], [530, 330, 546, 346], [700, 40, 716, 56], [40, 560, 56, 576]]])
    allocation = tv.Allocation.of_boxes(boxes, texture.size, 16, torch.tensor([[1.0, 100.0, 1.0, 1.0]]))
    found = tv.sample(texture, allocation).pixels[0]
    assert 0 < texture.pages.counters.pages_read - before <= most < 5
    exact = sample_patches(loaded(arrays, 3), allocation.centre, allocation.ddx, allocation.ddy, patch=16)[0]
    assert torch.equal(found[1], exact[1]) and not torch.equal(found, exact)


def test_unused_slots_read_nothing():
    texture = open_paged(ArraySource(noise()))
    allocation = some_tokens(texture)
    allocation.valid[:] = False
    before = texture.pages.counters.pages_read
    tv.sample(texture, allocation)
    assert texture.pages.counters.pages_read == before


def test_a_broken_page_is_named_once_and_coarser_texels_stand_in():
    arrays = noise()
    texture = open_paged(ArraySource(arrays, broken=[(0, 0, 0)]))
    allocation = tv.Allocation.of_boxes(torch.tensor([[[16.0, 16, 32, 32]]]), texture.size, 16)
    for _ in range(2):
        found = tv.sample(texture, allocation).pixels[0, 0]
    assert texture.pages.counters.errors == ["arrays: page at level 0, row 0, column 0 cannot be read: made so"]
    coarser = as_levels(arrays[1:2])[0][0, :, 8:16, 8:16]
    assert torch.allclose(found, coarser.repeat_interleave(2, 1).repeat_interleave(2, 2))


def test_a_broken_page_of_the_whole_level_is_enlarged_from_a_coarser_one():
    arrays = noise(640, 640)
    texture = open_paged(ArraySource(arrays, broken=[(3, 0, 1)]))  # 80 × 80 texels in 2 × 2 pages
    level = texture.levels[0][0]
    assert texture.pages.base == 3 and len(texture.pages.counters.errors) == 1
    assert torch.equal(level[:, :, :64], as_levels(arrays)[3][0, :, :, :64])
    enlarged = as_levels(arrays)[4][0].repeat_interleave(2, 1).repeat_interleave(2, 2)
    assert torch.equal(level[:, :64, 64:], enlarged[:, :64, 64:])


def test_no_level_that_can_stand_in():
    broken = [(level, 0, 0) for level in range(12)]
    with pytest.raises(ValueError, match="level 3, row 0, column 0 cannot be read: made so, and no coarser level"):
        open_paged(ArraySource(noise(640, 640), broken=broken))


def test_moved_pages_count_together():
    texture = open_paged(ArraySource(noise()))
    moved = texture.pages.to("cpu")
    moved.fetch({0: 1.0})
    assert 0 in moved.pool and 0 not in texture.pages.pool
    assert moved.counters is texture.pages.counters


def test_the_repr_says_what_was_read():
    texture = open_paged(ArraySource(noise()))
    assert repr(texture.pages).startswith("4 pages read, 0.02 MB of 2.0 MB (1.1")


@pytest.mark.gpu
def test_on_a_gpu_the_same():
    arrays = noise()
    here, there = open_paged(ArraySource(arrays)), open_paged(ArraySource(arrays), device="cuda")
    allocation = some_tokens(here)
    found = tv.sample(there, allocation.to("cuda")).pixels
    assert found.is_cuda and torch.allclose(found.cpu(), tv.sample(here, allocation).pixels, atol=1e-5)
    moved = here.to("cuda")
    assert moved.pages.device.type == "cuda"
    assert torch.allclose(tv.sample(moved, allocation.to("cuda")).pixels, found, atol=1e-5)
