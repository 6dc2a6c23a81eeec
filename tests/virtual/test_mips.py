"""Mip levels from what a source stores: exact where stored, averaged where not, refused where too much is missing."""

import numpy as np
import pytest
import torch

from tests.virtual.sources import ArraySource, as_levels, stored_levels
from texturevlm.ops.mip import level_extents
from texturevlm.virtual import mips as module
from texturevlm.virtual.mips import MipPages
from texturevlm.virtual.sources import PageKey, as_colours


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(module, "WHOLE_PIXELS", 80 * 80)


def smooth(height, width):
    """An image without noise, so that two ways to average it agree."""
    y, x = np.mgrid[:height, :width]
    waves = 128 + 60 * np.sin(x / 31) + 60 * np.cos(y / 23)
    return np.stack([waves, waves[::-1], 255 - waves], -1).clip(0, 255).astype(np.uint8)


def level_of(mips, level):
    """A level put together from its pages."""
    (height, width), (rows, columns), side = mips.extents[level], mips.grid(level), mips.page
    whole = torch.empty(rows * side, columns * side, 3, dtype=torch.uint8)
    keys = [PageKey(level, row, column) for row in range(rows) for column in range(columns)]
    for key, texels in mips.read(keys):
        whole[key.row * side : (key.row + 1) * side, key.column * side : (key.column + 1) * side] = texels
    return whole[:height, :width].numpy()


def test_a_stored_level_is_handed_on_bit_for_bit():
    arrays = stored_levels(np.random.default_rng(0).integers(0, 256, (331, 478, 3), np.uint8))
    mips = MipPages(ArraySource(arrays))
    assert mips.page == 64 and mips.base == 3
    for level in range(mips.base + 1):
        assert np.array_equal(level_of(mips, level), arrays[level])
    pages = sum(rows * columns for rows, columns in map(mips.grid, range(mips.base + 1)))
    assert mips.counters.pages_read == pages
    assert mips.counters.bytes_read == sum(array.size for array in arrays[: mips.base + 1])


@pytest.mark.parametrize(("size", "kept"), [((331, 478), (0, 2, 3)), ((400, 640), (0, 1, 3)), ((333, 555), (0, 2))])
def test_a_missing_level_is_averaged_from_the_next_finer_one(size, kept):
    arrays = stored_levels(smooth(*size), 4)
    mips = MipPages(ArraySource([arrays[level] for level in kept]))
    for level in range(mips.base + 1):
        assert mips.extents[level] == arrays[level].shape[:2]
        assert np.abs(level_of(mips, level).astype(int) - arrays[level]).max() <= 2
    assert not mips.counters.errors


def test_a_downsample_that_is_no_power_of_two():
    image = smooth(400, 500)
    third = as_levels([image])[0]
    small = torch.nn.functional.interpolate(third, (134, 167), mode="area")
    arrays = [image, (small[0].permute(1, 2, 0) * 255).round().byte().numpy()]
    mips = MipPages(ArraySource(arrays))
    exact = stored_levels(image)
    for level in range(mips.base + 1):
        assert np.abs(level_of(mips, level).astype(int) - exact[level]).max() <= 6


def test_pages_that_are_not_square():
    arrays = stored_levels(smooth(300, 420))
    mips = MipPages(ArraySource(arrays, page=(16, 420)))
    assert mips.page == module.PAGE
    assert np.array_equal(level_of(mips, 0), arrays[0])


def test_few_stored_pages_are_held_at_once(monkeypatch):
    monkeypatch.setattr(module, "MOST_AT_ONCE", 4)
    source = ArraySource(stored_levels(smooth(512, 512)))
    asked = []
    read = source.read_pages
    source.read_pages = lambda keys: asked.append(len(keys)) or read(keys)
    level_of(MipPages(source), 0)
    assert max(asked) <= 4 and sum(asked) == 64


def test_a_broken_page_is_named_and_the_others_come():
    source = ArraySource(stored_levels(smooth(300, 300)), broken=[(0, 1, 2)])
    mips = MipPages(source)
    found = dict(mips.read([PageKey(0, 1, 2), PageKey(0, 1, 1)]))
    assert found[PageKey(0, 1, 2)] is None and found[PageKey(0, 1, 1)] is not None
    assert mips.counters.errors == ["arrays: page at level 0, row 1, column 2 cannot be read: made so"]


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        ((0,), r"must have a level of about 80×80; the next finer one has 640×640; make a pyramid: texturevlm pyramid"),
        ((0, 6), r"must have a level of about 80×80"),
        ((1, 0), r"levels of arrays must shrink, got \(640, 640\) after \(320, 320\)"),
        ((0, 0), r"levels of arrays must shrink"),
    ],
)
def test_levels_that_cannot_be_used(kept, said):
    arrays = stored_levels(smooth(640, 640))
    with pytest.raises(ValueError, match=said):
        MipPages(ArraySource([arrays[level] for level in kept]))


def test_a_level_of_another_shape():
    arrays = stored_levels(smooth(640, 640))
    with pytest.raises(ValueError, match=r"must keep the shape of \(640, 640\), got \(320, 200\)"):
        MipPages(ArraySource([arrays[0], arrays[1][:, :200], arrays[3]]))


def test_colours():
    grey = np.array([[0, 65535], [32768, 257]], np.uint16)
    assert as_colours(grey)[..., 1].tolist() == [[0, 255], [128, 1]]
    over = np.array([[[10, 20, 30, 0], [10, 20, 30, 255], [0, 0, 0, 127]]], np.uint8)
    assert as_colours(over).tolist() == [[[255, 255, 255], [10, 20, 30], [128, 128, 128]]]
    with pytest.raises(ValueError, match="8-bit or 16-bit whole numbers, got float32"):
        as_colours(np.zeros((2, 2, 3), np.float32))


def test_extents_are_those_of_libvips():
    """A pyramid of libvips halves as ours does, so nothing is averaged again."""
    assert level_extents(1001, 1303, 4) == [(1001, 1303), (500, 651), (250, 325), (125, 162)]
