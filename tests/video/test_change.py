import numpy as np
import pytest
import torch

from tests.video.moving import noisy, scene, with_box
from texturevlm.sampling import sample
from texturevlm.types import Allocation, Texture
from texturevlm.video.change import (
    COARSE_BOUNDS,
    find_changes,
    grow_mask,
    initial_noise,
    reads_marked,
    tile_boxes,
)

SIZE = (96, 160)
DEVICE = torch.device("cpu")


def follow(frames, size=SIZE, take=True):
    """Compare frame after frame with what is held, which takes over the changed tiles."""
    noise, held, found = initial_noise(size, 32, DEVICE), None, []
    for frame in frames:
        if held is None:
            held = frame.clone()
            continue
        one = find_changes(frame, held, noise, tile=32)
        noise = one.noise
        if take:
            wide = one.mask.repeat_interleave(32, 0)[: size[0]].repeat_interleave(32, 1)[:, : size[1]]
            held = torch.where(wide, frame, held)
        found.append(one)
    return found


@pytest.mark.parametrize("sigma", [0.5, 2, 5])
def test_sensor_noise_is_no_change(sigma):
    ground = scene(SIZE) * 0.6 + 0.2
    found = follow(noisy(ground, sigma, seed) for seed in range(40))
    assert sum(one.share for one in found) / len(found) < 0.01


def test_something_small_is_found_in_its_tile_and_nowhere_else():
    ground = scene(SIZE)
    (one,) = follow([ground, with_box(ground, 70, 40, side=6)])
    assert one.marked[1, 2] and one.marked.sum() == 1


def test_a_frame_is_judged_by_the_noise_of_those_before():
    ground = scene(SIZE) * 0.6 + 0.2
    calm, loud = ([noisy(ground, sigma, seed) for seed in range(20)] for sigma in (0.1, 6))
    found = follow([*calm, loud[0]], take=False)
    assert found[-1].share == 1  # it does not excuse itself by being noisy all over
    assert found[-1].noise.sensor[0] > found[-2].noise.sensor[0]
    assert follow(loud, take=False)[-1].share < 0.05
    first = find_changes(ground + 8 / 255, ground, initial_noise(SIZE, 32, DEVICE), tile=32)
    assert first.share == 0 and torch.allclose(first.threshold[0], torch.tensor(COARSE_BOUNDS[1]))


def test_it_is_found_above_the_noise_too():
    ground = scene(SIZE) * 0.6 + 0.2
    frames = [noisy(ground, 3, seed) for seed in range(20)]
    frames.append(noisy(with_box(ground, 70, 40, side=10), 3, 99))
    assert follow(frames)[-1].marked[1, 2]


def test_a_slow_fade_is_found_once_it_has_added_up():
    ground = scene(SIZE) * 0.5 + 0.4
    found = follow(ground - 0.3 / 255 * index for index in range(80))
    shares = [one.share for one in found]
    assert max(shares[:10]) == 0  # three grey steps are none
    assert sum(shares) >= 1  # but every tile is renewed before the fade is over
    held_back = follow((ground - 0.3 / 255 * index for index in range(80)), take=False)
    assert held_back[-1].share == 1
    first = next(index for index, one in enumerate(held_back) if one.share == 1)
    assert 0.3 / 255 * first <= COARSE_BOUNDS[1] + 0.3 / 255  # the upper bound holds, whatever was learned


def test_texture_that_moves_under_equal_means_is_found():
    stripes = ((torch.arange(SIZE[1]) // 2) % 2).float().expand(1, 3, *SIZE).clone() * 0.2 + 0.4
    frame = stripes.clone()
    frame[..., 32:64, 32:64] = stripes[..., 32:64, 34:66]
    (one,) = follow([stripes, frame])
    assert one.marked[1, 1] and one.marked.sum() == 1


def test_a_cut_is_told_from_movement_and_from_light():
    ground = scene(SIZE)
    assert follow([ground, scene(SIZE, seed=7)])[0].cut
    assert not follow([ground, with_box(ground, 20, 20)])[0].cut
    assert not follow([ground * 0.5, ground])[0].cut
    assert not follow([ground, ground.roll(3, -1)])[0].cut


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 200.0])
def test_values_that_are_none_are_refused(bad):
    ground = scene(SIZE)
    frame = ground.clone()
    frame[..., :40, :40] = bad
    with pytest.raises(ValueError, match="step: frame must hold finite values from 0 to 1"):
        follow([ground, frame])


@pytest.mark.parametrize("size", [(1, 1), (3, 500), (33, 65)])
def test_any_size(size):
    frame = torch.rand(1, 3, *size)
    found = follow([frame, 1 - frame, 1 - frame], size)
    assert found[0].share == 1 and found[1].share == 0


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_rectangles_hold_the_marked_tiles_exactly_once(share):
    random = np.random.default_rng(3)
    mask = random.random((7, 11)) < share
    size = (7 * 32 - 5, 11 * 32 - 9)
    painted = np.zeros(size, dtype=int)
    boxes = tile_boxes(mask, 32, size)
    for left, top, right, bottom in boxes:
        painted[top:bottom, left:right] += 1
    wanted = mask.repeat(32, 0).repeat(32, 1)[: size[0], : size[1]]
    assert np.array_equal(painted, wanted.astype(int))


def test_growing_reaches_every_tile_within_reach():
    mask = np.zeros((6, 6), dtype=bool)
    mask[2, 3] = True
    assert grow_mask(mask, 0, 32).sum() == 1
    assert grow_mask(mask, 1, 32).sum() == 9
    assert grow_mask(mask, 33, 32).sum() == 25
    assert grow_mask(mask, 500, 32).all()


@pytest.mark.parametrize("size", [(128, 192), (97, 131), (33, 257), (255, 127), (160, 160)])
def test_a_footprint_that_is_not_touched_reads_nothing_of_the_change(size):
    random = torch.Generator().manual_seed(sum(size))
    before = torch.rand(1, 3, *size, generator=random)
    rows, columns = -(-size[0] // 32), -(-size[1] // 32)
    mask = torch.rand(rows, columns, generator=random) < 0.15
    wide = mask.repeat_interleave(32, 0)[: size[0]].repeat_interleave(32, 1)[:, : size[1]]
    after = torch.where(wide, 1 - before, before)
    centre = torch.rand(1, 200, 2, generator=random) * torch.tensor([size[1] + 40.0, size[0] + 40.0]) - 20
    step = torch.exp2(torch.rand(1, 200, 2, generator=random) * 3.5 - 1)
    boxes = torch.cat([centre - step * 4, centre + step * 4], -1)
    allocation = Allocation.of_boxes(boxes, size, 8)
    same = ~reads_marked(allocation, mask, 32)
    old, new = (sample(Texture.open(image).mipmapped(), allocation).pixels[0] for image in (before, after))
    assert torch.equal(old[same], new[same])
    assert 10 < int(same.sum()) < 190
