"""One budget over space and time: the end is seen, a still scene is sent once, memory stays bounded."""

import weakref
from itertools import pairwise

import pytest
import torch

from tests.video.moving import noisy, scene, with_box
from texturevlm.placement import TokenConfig
from texturevlm.video import choose_clip, clip
from texturevlm.video.clip import keep_moments, thinned

SIZE = (96, 160)


def as_bytes(frames):
    return [(frame[0].clamp(0, 1) * 255).round().byte() for frame in frames]


def timed(frames, fps=2.0):
    return [(frame, index / fps) for index, frame in enumerate(frames)]


def moving(count):
    """A square that crosses a still scene."""
    ground = scene(SIZE)
    return as_bytes(with_box(ground, int(index * (SIZE[1] - 24) / count), 40) for index in range(count))


def shown(frames, budget, **options):
    kept = keep_moments(timed(frames)).moments
    return choose_clip(kept, how=TokenConfig(budget=budget, **options))


def tokens(found):
    return sum(int(one.allocation.valid.sum()) for one in found)


def test_the_end_of_a_video_is_shown():
    """Ties were broken by time: 20 frames at a budget of 30 gave tokens of the first five alone."""
    found = shown(moving(20), 30)
    assert tokens(found) <= 30
    assert found[0].time == 0 and found[-1].time >= 9.0 - 0.5


@pytest.mark.parametrize("sigma", [0, 4])
def test_a_still_scene_is_sent_once(sigma):
    """Also behind sensor noise; all of the budget goes to its detail."""
    ground = scene(SIZE)
    found = shown(as_bytes(noisy(ground, sigma, seed=seed) for seed in range(64)), 60)
    assert [one.time for one in found] == [0.0]
    assert tokens(found) == 15  # all that the image has


def test_later_moments_are_shown_only_where_they_changed():
    ground = scene(SIZE)
    frames = as_bytes([ground] * 4 + [with_box(ground, 100, 50)] * 4)
    first, second = shown(frames, 40)
    boxes = second.allocation.boxes[0][second.allocation.valid[0]]
    assert len(boxes) < first.allocation.valid.sum()
    assert boxes[:, 0].min() >= 64 and boxes[:, 1].min() >= 0 and boxes[:, 2].max() <= SIZE[1] + 32


def test_where_everything_changes_tokens_go_to_moments():
    cuts = as_bytes(scene(SIZE, seed=index // 2) for index in range(16))
    still = as_bytes([scene(SIZE)] * 16)
    assert len(shown(cuts, 64)) == 8
    assert len(shown(still, 64)) == 1


def test_moments_are_spread_over_time():
    kept = keep_moments(timed(as_bytes(scene(SIZE, seed=index) for index in range(80)))).moments
    times = [one.time for one in thinned(kept, 8)]
    gaps = [after - before for before, after in pairwise(times)]
    assert len(times) == 8 and times[0] == 0 and times[-1] >= 38
    assert max(gaps) <= 3 * min(gaps)


def test_what_was_seen_before_counts_less():
    """Between two scenes that alternate, a third is kept."""
    a, b, c = (as_bytes([scene(SIZE, seed=seed)])[0] for seed in range(3))
    order = [a, a, b, b] * 6 + [c, c] + [a, a, b, b] * 6
    kept = keep_moments(timed(order)).moments
    assert 12.0 in [one.time for one in thinned(kept, 4)]  # when c is shown


def test_memory_does_not_grow_with_the_length(monkeypatch):
    """Every frame differs from every other, and only kept ones are alive."""
    monkeypatch.setattr(clip, "MOST_BYTES", 6 * 2 * 3 * 32 * 32)
    alive = weakref.WeakSet()
    most = 0

    def frames():
        nonlocal most
        for index in range(400):
            image = torch.randint(0, 255, (3, 32, 32), generator=torch.Generator().manual_seed(index)).byte()
            alive.add(image)
            yield image, index / 2
            del image
            most = max(most, len(alive))

    found = keep_moments(frames())
    assert most <= 4  # frames that are open; kept ones are stacked
    assert len(found.moments) == 6
    assert found.moments[-1].time == 199.0


def test_moments_hold_bytes_of_their_frames():
    (moment,) = keep_moments(timed(as_bytes([scene(SIZE)] * 3))).moments
    assert moment.frames.dtype == torch.uint8 and moment.frames.shape == (2, 3, *SIZE)


def test_both_frames_of_a_moment_are_sampled():
    ground = scene(SIZE)
    frames = as_bytes([ground, with_box(ground, 100, 50)])
    (one,) = shown(frames, 15)
    assert one.pixels.shape[1] == 2
    assert (one.pixels[:, 0] != one.pixels[:, 1]).flatten(1).any(1).any()
    slow = as_bytes([ground])[0].float() / 255
    top = one.allocation.boxes[0]
    corner = ((top[:, 0].abs() < 1e-3) & (top[:, 1].abs() < 1e-3)).nonzero()
    if len(corner):
        assert torch.allclose(one.pixels[int(corner[0]), 0], slow[:, :32, :32], atol=2 / 255)


def test_no_moment_is_refused():
    with pytest.raises(ValueError, match="clip: moments must be at least one, got none"):
        choose_clip([])


def test_a_video_that_lies_on_its_side_is_turned_upright(monkeypatch):
    frames = moving(6)
    wanted = keep_moments(timed(frames)).moments
    lying = keep_moments(timed([frame.rot90(-1, (1, 2)) for frame in frames])).moments
    angles = iter([90.0, 0.0, 90.0])
    monkeypatch.setattr(clip, "find_turn", lambda texture: next(angles))
    for turn in (90.0, "auto"):  # auto: what most moments say
        found, frame = clip.upright_moments(lying, turn)
        assert frame.angle == 90
        assert [one.time for one in found] == [one.time for one in wanted]
        for one, other in zip(found, wanted):
            assert torch.equal(one.frames, other.frames) and torch.allclose(one.means, other.means)
    monkeypatch.setattr(clip, "find_turn", lambda texture: 0.0)
    assert clip.upright_moments(lying, "auto")[0] == lying


@pytest.mark.parametrize(("budget", "most"), [(40, 11), (400, 3)])
def test_what_was_chosen_to_find_the_shares_is_not_chosen_again(budget, most):
    """Three moments of 15 tokens took 12 calls of the allocator, also where the budget shows all of each."""
    from texturevlm.allocate import ALLOCATORS

    asked = []

    def counted(texture, relevance, *, budget, patch):
        asked.append((relevance.mass.sum().item(), budget))
        return ALLOCATORS["quadtree"](texture, relevance, budget=budget, patch=patch)

    ground = scene(SIZE)
    frames = as_bytes([ground] * 2 + [scene(SIZE, seed=5)] * 2 + [scene(SIZE, seed=6)] * 2)
    found = shown(frames, budget, allocator=counted)
    assert len(found) == 3 and len(asked) <= most, len(asked)
