"""The stream's kernels in the emulator: what they say is what the plain way says; what is not marked stays as it is."""

import pytest
import torch

from tests.channels.test_fused import picture
from tests.video.moving import crossing, noisy, scene, with_box
from texturevlm.channels import CHANNELS, build
from texturevlm.channels import fused as text
from texturevlm.channels.fused import IN_PARTS, LayersInPlace
from texturevlm.ops import lookup_kernel as patches
from texturevlm.ops import mip_kernel as mip
from texturevlm.ops.mip import mipmap
from texturevlm.ops.packed import Marks
from texturevlm.sampling import sample
from texturevlm.types import Allocation, Texture
from texturevlm.video.change import find_changes, initial_noise, pixel_mask, reads_marked, tile_grid
from texturevlm.video.change_gpu import GpuComparison, kernels_can_compare

DEVICE = torch.device("cpu")


def clip(size, kind):
    ground = scene(size) * 0.6 + 0.2
    if kind == "crossing":
        return list(crossing(size, 4, side=min(24, *size) - 1))
    if kind == "cut":
        return [ground, noisy(ground, 2, 1), scene(size, seed=5), scene(size, seed=5)]
    return [noisy(with_box(ground, 3 * seed, 2 * seed % size[0], side=8), 3, seed) for seed in range(4)]


SMALL = [((96, 128), 32), ((33, 31), 32), ((3, 90), 32), ((70, 101), 12), ((32, 48), 4)]


@pytest.mark.parametrize(("size", "tile"), SMALL)
@pytest.mark.parametrize("kind", ["crossing", "cut", "noise"])
def test_the_same_changes_are_found(emulated, size, kind, tile):
    check_changes(size, clip(size, kind), tile)


def test_changes_of_many_tiles(emulated):
    """More rows and columns than a warp has lanes, and more tiles than the block that decides has threads."""
    check_changes((140, 132), clip((140, 132), "noise")[:2], 4)


def check_changes(size, frames, tile):
    held = frames[0].clone()
    comparison, (ours, noise) = GpuComparison(held, tile), [initial_noise(size, tile, DEVICE) for _ in range(2)]
    motion = torch.rand(size)
    comparison.moved.fill_(True)
    for frame in frames[1:]:
        wanted = find_changes(frame, held, noise, tile=tile)
        comparison.set_frame(frame, ours, copy=True)
        comparison.mark()
        before = held.clone()
        comparison.copy_marked(motion)
        comparison.report()
        comparison.wait()
        found = comparison.changes()
        assert (found.marked == wanted.marked).all() and torch.equal(found.mask, wanted.mask)
        assert abs(found.likeness - wanted.likeness) < 1e-4 and found.cut == wanted.cut
        assert torch.allclose(found.threshold, wanted.threshold, atol=1e-6)
        assert torch.allclose(found.noise.sensor, wanted.noise.sensor, atol=1e-6)
        assert torch.allclose(found.noise.tiles, wanted.noise.tiles, atol=1e-6)
        assert found.noise.frames == wanted.noise.frames
        taken = wanted.mask & (not wanted.cut)
        wide = taken.repeat_interleave(tile, 0)[: size[0]].repeat_interleave(tile, 1)[:, : size[1]]
        assert torch.equal(held, torch.where(wide, frame, before))
        check_sums(comparison.marks.total, taken)
        if wanted.cut:  # a stream begins anew
            return
        assert torch.allclose(found.noise.last, wanted.noise.last, atol=1e-6)
        assert torch.equal(motion, (held - before).abs().amax(1)[0].clamp(max=1))
        assert torch.equal(comparison.moved, wanted.mask)
        noise, ours = wanted.noise, found.noise


def compare_and_take(comparison, frame, noise):
    comparison.set_frame(frame, noise, copy=True)
    comparison.mark()
    comparison.copy_marked(None)
    comparison.report()
    comparison.wait()


def check_sums(total, mask):
    wanted = torch.zeros(mask.shape[0] + 1, mask.shape[1] + 1, dtype=torch.int64)
    wanted[1:, 1:] = mask.long().cumsum(0).cumsum(1)
    assert torch.equal(total.long(), wanted)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 200.0])
def test_a_frame_that_is_no_image_changes_nothing(emulated, bad):
    size = (70, 101)
    held, frame = scene(size), scene(size, seed=3)
    comparison, noise = GpuComparison(held, 32), initial_noise(size, 32, DEVICE)
    frame[..., 40, 90] = bad
    before = held.clone()
    compare_and_take(comparison, frame, noise)
    with pytest.raises(ValueError, match="step: frame must hold finite values"):
        comparison.changes()
    assert torch.equal(held, before) and not comparison.mask.any()


@pytest.mark.parametrize("form", ["bytes", "grey", "unaligned"])
def test_frames_in_other_forms(emulated, form):
    size = (64, 92 if form != "unaligned" else 91)
    pixels = (scene(size) * 255).round().byte()
    frame = {"bytes": pixels, "grey": pixels[:, :1].expand(-1, 3, -1, -1), "unaligned": pixels}[form]
    held = torch.zeros(1, 3, *size)
    comparison = GpuComparison(held, 32)
    held[..., :70] = frame[..., :70].float() / 255
    compare_and_take(comparison, frame, initial_noise(size, 32, DEVICE))
    assert comparison.changes().share < 1 and torch.equal(held, frame.float() / 255)


def test_what_the_kernels_cannot_compare(emulated):
    like = torch.zeros(1)
    assert kernels_can_compare(like, (64, 64), 32)
    assert not kernels_can_compare(like, (64, 64), 30)
    assert not kernels_can_compare(like, (4096, 4096), 32)


def marked(mask, tile=32):
    """Marks of a mask (rows, columns)."""
    total = torch.zeros(mask.shape[0] + 1, mask.shape[1] + 1, dtype=torch.int32)
    total[1:, 1:] = mask.int().cumsum(0).cumsum(1)
    return Marks(total, tile)


def two_frames(size, share, tile=32):
    """A frame, the same with some tiles changed, and which."""
    mask = torch.rand(tile_grid(size, tile)) < share
    one, other = picture(1, *size), picture(1, *size)
    return one, torch.where(pixel_mask(mask, tile, size), other, one), mask


SIZES = [(96, 128), (150, 221), (3, 90)]


@pytest.fixture(params=[8, mip.UPDATE_BLOCKS], ids=["searched", "not searched"])
def many_or_few(request, monkeypatch):
    """So that few tiles are searched, too; or as it is, where each of them asks for itself."""
    monkeypatch.setattr(mip, "UPDATE_BLOCKS", request.param)
    mip._steps.cache_clear()
    yield
    mip._steps.cache_clear()


@pytest.mark.parametrize(("size", "share"), [((72, 136), 0.1), ((150, 221), 0.1), ((3, 90), 1.0), ((264, 520), 0.05)])
def test_marked_mips_equal_rebuilt_ones(emulated, many_or_few, size, share):
    one, other, mask = two_frames(size, share)
    levels = [level.clone() for level in mipmap(torch.cat([one, one], 1))]
    levels[0].copy_(torch.cat([other, other], 1))
    wanted = mipmap(levels[0].clone(), backend="reference")
    nowhere, everywhere = marked(torch.zeros_like(mask)), marked(mask)
    for level in levels[1:]:
        level[:, 2] = -7  # which another launch may be making
    mip.update_marked_cuda(levels, ("mean",) * 6, everywhere, reach=(0, 0, mip.UNCHANGED, mip.MOVED, 40, 0))
    for got, made in zip(levels[1:], wanted[1:]):
        for channel in (0, 1, 3, 4, 5):
            assert torch.allclose(got[:, channel], made[:, channel], atol=1e-6)
        assert got[:, 2].eq(-7).all()
    levels[0].copy_(torch.cat([one, one], 1))
    mip.update_marked_cuda(levels, ("mean",) * 6, nowhere, reach=(0,) * 5 + (mip.MOVED,), either=everywhere)
    before = mipmap(levels[0].clone(), backend="reference")
    assert torch.allclose(levels[1][:, 5], before[1][:, 5], atol=1e-6) if len(levels) > 1 else True


@pytest.mark.parametrize("size", [(108, 192), (264, 520), (150, 221), (3, 90), (1, 3)])
def test_mips_in_two_goes_are_those_of_one(emulated, many_or_few, size):
    one, other, mask = two_frames(size, 0.3)
    once, twice = ([level.clone() for level in mipmap(one)] for _ in range(2))
    for levels in (once, twice):
        levels[0].copy_(other)
    last = len(once) - 1
    assert mip.update_marked_cuda(once, ("mean",) * 3, marked(mask)) == last
    made = mip.update_marked_cuda(twice, ("mean",) * 3, marked(mask), until=2)
    assert min(2, last) <= made <= last
    assert all(torch.equal(one, other) for one, other in zip(once[: made + 1], twice))
    assert mip.update_marked_cuda(twice, ("mean",) * 3, marked(mask), since=made) == last
    assert all(torch.equal(one, other) for one, other in zip(once, twice))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("share", [0.05, 1.0])
def test_marked_layers_equal_rebuilt_ones(emulated, size, share):
    names = ("x", *IN_PARTS, "gaze")
    one, other, mask = two_frames(size, share)
    levels = [level.clone() for level in mipmap(one)]
    layers = torch.full((1, len(names), *size), -1.0)
    parts = LayersInPlace(layers, names, IN_PARTS, levels)
    for image, marks in ((one, None), (other, marked(mask))):
        for level, made in zip(levels, mipmap(image.clone())):
            level.copy_(made)
        parts.near(marks)
        parts.coarse(marks)
        parts.text(None if marks is None else parts.text_tiles(marks))
        wanted = build(Texture(tuple(levels)), IN_PARTS, backend="cuda").levels[0]
        assert torch.equal(layers[:, 1:-1], wanted)
    assert (layers[:, [0, -1]] == -1).all()


@pytest.mark.parametrize("size", [(200, 480), (37, 50), (150, 221), (1, 300)])
@pytest.mark.parametrize("share", [0.0, 0.02, 1.0])
def test_text_tiles_are_those_that_a_mark_acts_on(emulated, size, share):
    """Each of them once; and whatever lies further from every marked tile than a texel acts is not among them."""
    levels = mipmap(torch.zeros(1, 3, *size))[: text.TEXT_LEVELS]
    mask = torch.rand(tile_grid(size, 32)) < share
    lists = text.no_text_tiles(levels).fill_(-9)
    text.list_text_tiles(lists, levels, marked(mask), reach=70)
    acts = (7, 35, 43)  # texels: strokes; then ruled lines and letters; then lines
    *tiles, layer = text.TILES.values()
    kernels = [*((tile, levels, reach) for tile, reach in zip(tiles, acts)), (layer, levels[:1], 70)]
    for (rows, columns), made, reach in kernels:
        found, lists = lists[0], lists[1:]
        count = int(found[0])
        numbers = found[1 : 1 + count].tolist()
        assert len(set(numbers)) == count and (found[1 + count :] == -9).all()
        first = 0
        for level, texels in enumerate(made):
            down, across = (-(-extent // side) for extent, side in zip(texels.shape[2:], (rows, columns)))
            for number in range(down * across):
                top, left = number // across * rows, number % across * columns
                near, far = (_marked_within(mask, level, top, left, rows, columns, reach + more) for more in (0, 3))
                listed = first + number in numbers
                assert listed or not near
                assert far or not listed
            first += down * across


def _marked_within(mask, level, top, left, rows, columns, reach):
    y0, x0 = (max(at - reach, 0) << level for at in (top, left))
    y1, x1 = ((at + reach) << level for at in (top + rows, left + columns))
    return bool(mask[y0 // 32 : -(-y1 // 32), x0 // 32 : -(-x1 // 32)].any())


def test_what_marks_do_not_reach_stays_as_it_is(emulated):
    size = (200, 480)
    image, mask = picture(1, *size), torch.zeros(7, 15, dtype=torch.bool)
    mask[6, 0] = True
    changed = image.clone()
    changed[..., 192:, :32] = torch.rand(1, 3, 8, 32)
    levels = [level.clone() for level in mipmap(image)]
    layers = torch.zeros(1, len(IN_PARTS), *size)
    parts = LayersInPlace(layers, IN_PARTS, IN_PARTS, levels)
    parts.near(None), parts.coarse(None), parts.text(None)
    for level, made in zip(levels, mipmap(changed)):
        level.copy_(made)
    before = layers.clone()
    layers.fill_(-1)
    parts.near(marked(mask)), parts.coarse(marked(mask)), parts.text(parts.text_tiles(marked(mask)))
    wanted = build(Texture(tuple(levels)), IN_PARTS, backend="cuda").levels[0]
    assert torch.equal(torch.where(layers == -1, before, layers), wanted)
    for slot, name in enumerate(IN_PARTS):
        made = (layers[0, slot] != -1).nonzero()
        reach = 32 + CHANNELS[name].reach + 64  # a kernel makes at most 64 × 64 pixels at once
        assert len(made) and made[:, 1].max() < reach + 64, name


@pytest.mark.parametrize("size", [(150, 221), (64, 300)])
@pytest.mark.parametrize("share", [0.0, 0.06, 1.0])
def test_marked_patches_equal_those_of_sampling_everything(emulated, size, share):
    one, other, mask = two_frames(size, share)
    count = 30
    centre = torch.rand(1, count, 2) * torch.tensor([size[1], size[0]]) * 1.2 - 10
    turn, scale = torch.rand(1, count) * 3, torch.rand(1, count) * 3 + 0.2
    ddx = torch.stack([turn.cos(), turn.sin()], -1) * scale[..., None]
    ddy = torch.stack([-turn.sin(), turn.cos()], -1) * scale[..., None] * (torch.rand(1, count, 1) * 2 + 0.2)
    valid = torch.arange(count)[None] < 25
    where = Allocation(centre, ddx, ddy, scale, valid, torch.zeros(1, count, dtype=torch.int64), size, 8)
    pixels = sample(Texture(tuple(mipmap(one))), where, backend="cuda").pixels
    before, sampled = pixels.clone(), torch.zeros(count, dtype=torch.bool)
    after = Texture(tuple(mipmap(other)))
    patches.refresh_patches_cuda(pixels, after.levels, (centre, ddx, ddy), valid, sampled, marked(mask))
    assert torch.equal(pixels[:, :25], sample(after, where, backend="cuda").pixels[:, :25])
    assert torch.equal(sampled, reads_marked(where, mask, 32) & valid[0])
    assert torch.equal(pixels[:, ~sampled], before[:, ~sampled])
