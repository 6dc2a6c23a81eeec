import gc

import numpy as np
import pytest
import torch

from tests.video.moving import crossing, noisy, scene, with_box
from texturevlm.relevance import Relevance
from texturevlm.sampling import sample
from texturevlm.types import Texture
from texturevlm.video import TokenStream

SIZE = (96, 128)


def stream(**options):
    given = {"budget": 24, "patch": 16, "relevance": "none"} | options
    return TokenStream(SIZE, **given)


def same_patches(step):
    used = step.allocation.valid[0]
    fresh = sample(step.texture, step.allocation).pixels
    return torch.equal(step.patches.pixels[:, used], fresh[:, used])


def test_patches_are_those_of_sampling_everything_again():
    one = stream(keyframe=1000)
    kept = 0
    for frame in crossing(SIZE, 60):
        step = one.step(frame)
        assert same_patches(step)
        kept += step.reuse.kept
    assert kept > 0.3 * 60 * 24


def test_a_still_camera_costs_nothing():
    ground = scene(SIZE) * 0.6 + 0.2
    one = stream()
    steps = [one.step(noisy(ground, 2, seed)).reuse for seed in range(20)]
    assert steps[0].keyframe == "first" and steps[0].fresh == steps[0].tokens
    assert sum(step.fresh for step in steps[1:]) == 0 and not any(step.chosen for step in steps[1:])


def test_only_what_changed_is_sampled():
    ground = scene(SIZE)
    one = stream()
    one.step(ground)
    step = one.step(with_box(ground, 100, 70, side=16))
    centre = step.allocation.centre[0, step.reuse.sampled & step.reuse.used]
    assert 0 < step.reuse.fresh < step.reuse.tokens
    assert (centre[:, 0] > 50).all() and (centre[:, 1] > 30).all()


def test_a_cut_is_a_keyframe_and_frees_all_tokens():
    one = stream()
    one.step(scene(SIZE))
    step = one.step(scene(SIZE, seed=5))
    assert step.reuse.keyframe == "cut" and step.reuse.fresh == step.reuse.tokens
    assert torch.equal(step.texture.levels[0], scene(SIZE, seed=5))


def test_keyframes_come_at_their_interval_and_hold_the_frame_exactly():
    ground = scene(SIZE) * 0.6 + 0.2
    one = stream(keyframe=5)
    reasons = []
    for seed in range(12):
        frame = noisy(ground, 2, seed)
        step = one.step(frame)
        reasons.append(step.reuse.keyframe)
        if step.reuse.keyframe:
            assert torch.equal(step.texture.levels[0], frame)
    assert reasons == ["first", *[""] * 4, "interval", *[""] * 4, "interval", ""]


def test_a_question_is_not_asked_again_of_a_still_scene():
    asked = []

    def known(texture):
        asked.append(1)
        return pointed_at(32, 42)(texture)

    one = stream(relevance=known, keyframe=3)
    ground = scene(SIZE)
    reasons = [one.step(ground).reuse.keyframe for _ in range(7)]
    assert reasons.count("interval") == 2 and len(asked) == 1
    for frame in crossing(SIZE, 3):
        one.step(frame)
    assert len(asked) == 2


def test_every_frame_a_keyframe_is_the_ordinary_pipeline():
    from texturevlm.placement import choose_tokens

    one = stream(keyframe=1)
    for frame in crossing(SIZE, 3):
        step = one.step(frame)
    texture = Texture.open(frame).mipmapped()
    wanted = choose_tokens(texture, budget=24, patch=16, relevance="none")
    assert torch.allclose(step.allocation.centre, wanted.centre, atol=1.01)  # settled on what was held
    assert all(torch.equal(got, made) for got, made in zip(step.texture.levels, texture.levels))


def test_tokens_do_not_flicker_but_follow():
    ground = scene(SIZE) * 0.6 + 0.2
    held, free = stream(hold=0.1), stream(hold=0.0)
    frames = [noisy(with_box(ground, 10 + seed, 30), 1, seed) for seed in range(15)]
    chosen = [sum(one.step(frame).reuse.chosen for frame in frames) for one in (held, free)]
    assert chosen[0] <= chosen[1]


def pointed_at(x, y):
    """Relevance that knows one spot."""

    def known(texture):
        mass = torch.full((1, *texture.size), 1e-6)
        mass[0, y - 12 : y + 12, x - 12 : x + 12] = 1
        ones = torch.ones_like(mass)
        return Relevance(mass / mass.sum(), ones, ones > 0, texture.size, "words")

    return known


def test_the_answer_to_a_question_is_carried_to_where_the_thing_went():
    ground = scene(SIZE, stripes=False)
    one = stream(relevance=pointed_at(32, 42), keyframe=1000, patch=16)
    one.step(with_box(ground, 20, 30))
    for index in range(1, 13):
        step = one.step(with_box(ground, 20 + 4 * index, 30))
    mass = step.relevance.mass[0]
    x = (mass.sum(0) * (torch.arange(SIZE[1]) + 0.5)).sum()
    assert abs(float(x) - (32 + 48)) < 10  # and not at 32, where it was
    finest = step.allocation.level[0][step.reuse.used].argmin()
    assert abs(float(step.allocation.centre[0, finest, 0]) - 80) < 30


def test_relevance_on_another_grid_is_refused():
    def coarse(texture):
        even = torch.full((1, 4, 4), 1 / 16)
        return Relevance(even, even, even > 0, texture.size)

    with pytest.raises(ValueError, match="relevance must be on a grid of"):
        stream(relevance=coarse).step(scene(SIZE))


def test_where_someone_pointed_is_followed():
    ground = scene(SIZE, stripes=False)
    one = stream(keyframe=6)
    one.step(with_box(ground, 20, 30))
    one.point((20, 30, 44, 54))
    for index in range(1, 13):
        step = one.step(with_box(ground, 20 + 4 * index, 30))
    assert step.relevance.scorer == "attention"
    mass = step.relevance.mass[0]
    columns = mass.shape[1]
    inside = mass[:, round(60 * columns / 128) : round(100 * columns / 128)].sum()
    assert inside > 0.5


def test_pointing_needs_a_frame_and_a_place_in_it():
    one = stream()
    with pytest.raises(ValueError, match="point: the stream must hold a frame"):
        one.point((0, 0, 10, 10))
    one.step(scene(SIZE))
    with pytest.raises(ValueError, match="point: box must be xyxy and overlap"):
        one.point((300, 300, 310, 310))


def test_channels_are_kept_and_carried():
    names = ["saliency", "motion", "previous_relevance", "previous_saliency", "fixation_history"]
    one = stream(channels=names)
    steps = []
    for frame in crossing(SIZE, 5):
        step = one.step(frame)
        steps.append(step.channels.levels[0].clone())
    by_name = dict(zip(names, steps[-1][0]))
    assert by_name["motion"].max() > 0.05 and by_name["motion"].min() == 0
    assert by_name["fixation_history"].max() > 0.8 and by_name["previous_relevance"].max() > 0.9
    assert torch.equal(steps[0][0, 3], torch.zeros(SIZE))  # nothing was known before the first frame
    similar = torch.corrcoef(torch.stack([by_name["previous_saliency"].flatten(), steps[-2][0, 0].flatten()]))[0, 1]
    assert similar > 0.9


def test_a_scorer_that_reads_channels_gets_those_of_the_stream():
    """It got the colours alone: motion, and what was seen before, changed no token."""
    names = ["motion", "previous_relevance", "fixation_history", "edges"]
    frames = [with_box(scene(SIZE), 10 + 6 * index, 40) for index in range(3)]
    with_channels, without = (stream(relevance="channels", channels=kept, keyframe=2) for kept in (names, ()))
    for frame in frames:
        step, plain = with_channels.step(frame), without.step(frame)
    assert step.reuse.keyframe == "interval"
    assert step.channels.channel("motion")[..., 40:64, 16:46].amax() > 0.1  # since the frame before
    assert not torch.equal(step.allocation.centre, plain.allocation.centre)
    gain = (step.relevance.mass / plain.relevance.mass)[0]
    rows, columns = (
        round(edge * extent / pixels) for edge, extent, pixels in ((52, gain.shape[0], 96), (40, gain.shape[1], 128))
    )
    assert gain[rows, columns] > 1.2 * gain.median()


def test_embeddings_that_a_stream_carries_are_what_the_scorer_reads():
    """It encoded the frame once more instead."""
    from texturevlm.channels.registry import EMBEDDING_LAYERS
    from texturevlm.relevance import EmbeddingScorer

    levels = Texture((torch.rand(1, 16, 12, 16),), EMBEDDING_LAYERS, SIZE).mipmapped()
    features, mode = EmbeddingScorer(*"ab").prepare_with(Texture.open(scene(SIZE)), levels)
    assert torch.equal(features, levels.levels[0]) and mode == "area"


def test_nothing_is_carried_over_a_cut():
    names = ["previous_relevance", "previous_saliency", "fixation_history", "saliency"]
    one = stream(channels=names)
    for frame in [*crossing(SIZE, 3), scene(SIZE, seed=5)]:
        step = one.step(frame)
    assert step.reuse.keyframe == "cut"
    assert all(step.channels.channel(name).amax() == 0 for name in names[:3])


BAD = {
    "size": (torch.rand(3, 50, 60), "step: frame must be 96 × 128 like the stream, got 50 × 60"),
    "nan": (torch.full((3, *SIZE), float("nan")), "finite"),
    "channels": (torch.rand(4, *SIZE), "one image"),
    "batch": (torch.rand(2, 3, *SIZE), "one image"),
    "dtype": (torch.zeros(3, *SIZE, dtype=torch.int64), "bytes, or floats"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_frame_is_refused_and_the_stream_goes_on(kind):
    bad, message = BAD[kind]
    frames = list(crossing(SIZE, 6))
    one, other = stream(), stream()
    for frame in frames[:3]:
        one.step(frame), other.step(frame)
    with pytest.raises((ValueError, TypeError), match=message):
        one.step(bad)
    for frame in frames[3:]:
        assert torch.equal(one.step(frame).patches.pixels, other.step(frame).patches.pixels)


def test_a_failure_half_way_makes_the_next_frame_a_keyframe():
    frames = list(crossing(SIZE, 4))
    one = stream()
    one.step(frames[0])
    allocate, one.choice.allocate = one.choice.allocate, None
    one.choice.value = (100.0, 0.0)
    with pytest.raises(TypeError):
        one.step(frames[1])
    one.choice.allocate = allocate
    step = one.step(frames[2])
    assert step.reuse.keyframe == "failure" and same_patches(step)
    assert torch.equal(step.texture.levels[0], frames[2])


@pytest.mark.parametrize("form", ["bytes", "array", "grey", "pil"])
def test_frames_come_in_any_form(form):
    from PIL import Image

    pixels = (scene(SIZE)[0] * 255).round().byte()
    forms = {
        "bytes": pixels,
        "array": pixels.permute(1, 2, 0).numpy(),
        "grey": pixels[0],
        "pil": Image.fromarray(pixels.permute(1, 2, 0).numpy()),
    }
    step = stream().step(forms[form])
    wanted = pixels[:1].expand(3, -1, -1) if form == "grey" else pixels
    assert torch.allclose(step.texture.levels[0][0], wanted.float() / 255)


@pytest.mark.parametrize("size", [(1, 1), (2, 90), (33, 31)])
def test_any_size(size):
    one = TokenStream(size, 5, patch=8, relevance="none")
    for seed in range(3):
        step = one.step(torch.rand(3, *size, generator=torch.Generator().manual_seed(seed)))
        assert same_patches(step) and step.reuse.tokens <= 5


def test_a_rate_is_a_hard_cap_and_a_cut_gets_a_full_look():
    one = stream(rate=50.0, fps=10.0, keyframe=1000)
    random = torch.Generator().manual_seed(0)
    spent, looks = [], []
    for index in range(60):
        frame = scene(SIZE, seed=40) if index >= 30 else torch.rand(1, 3, *SIZE, generator=random)
        step = one.step(frame)
        spent.append(step.reuse.fresh)
        looks.append((step.reuse.keyframe, step.reuse.tokens))
    for first in range(60):
        for last in range(first, 60):
            assert sum(spent[first : last + 1]) <= 2 * 24 + 50 * (last - first + 1) / 10
    assert looks[-1][1] == 24  # in the end the new scene is seen in full
    assert not step.reuse.stale.any()
    assert sum(spent[50:]) == 0


def test_a_budget_that_is_saved_up_pays_for_a_cut():
    one = stream(rate=20.0, fps=10.0)
    ground = scene(SIZE)
    for _ in range(30):
        one.step(ground)
    step = one.step(scene(SIZE, seed=3))
    assert step.reuse.keyframe == "cut" and step.reuse.fresh == step.reuse.tokens == 24


def test_times_may_be_uneven():
    one = stream(rate=10.0)
    times = [0.0, 0.5, 0.5, 0.4, 7.0]
    assert [one.step(frame, time=time).time for frame, time in zip(crossing(SIZE, 5), times)] == times


def test_many_steps_leave_memory_flat():
    one = TokenStream((32, 32), 4, patch=8, relevance="none", channels=["edges"], keyframe=36)
    frames = list(crossing((32, 32), 12, side=8))
    counts = []
    for index in range(360):
        one.step(frames[(index // 3) % 12])
        if index in (107, 359):  # the same place in the same round
            gc.collect()
            counts.append(sum(type(thing) is torch.Tensor for thing in gc.get_objects()))
    assert abs(counts[1] - counts[0]) <= 3, counts


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 0}, "budget must be at least 1"),
        ({"allocator": "best"}, "allocator must be one of"),
        ({"hold": 1.0}, "hold must be"),
        ({"fps": 0.0}, "fps must be above 0"),
        ({"flow": "raft"}, "flow must be one of"),
        ({"rate": -1.0}, "per_second must be above 0"),
        ({"tile": 2}, "tile must be at least 4"),
        ({"channels": ["colour"]}, "channels must be"),
    ],
)
def test_wrong_settings_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        stream(**options)


def test_numpy_times_are_numbers():
    assert isinstance(stream().step(scene(SIZE), time=np.float64(2.0)).time, float)


def test_a_failure_with_a_rate_leaves_no_patch_of_an_older_frame(monkeypatch):
    one = stream(rate=10_000.0)
    frames = list(crossing(one.size, 8))
    for frame in frames[:3]:
        one.step(frame)
    with monkeypatch.context() as broken:
        broken.setattr(one.carry, "move", None)
        with pytest.raises(TypeError):
            one.step(frames[3])
    saved, seconds = one.rate.saved, one.seconds
    step = one.step(frames[4])
    assert (
        one.seconds == pytest.approx(seconds + 1 / one.config.fps) and one.rate.saved <= saved + 10_000 / one.config.fps
    )
    used = step.reuse.used
    assert step.reuse.keyframe == "failure" and not step.reuse.stale.any()
    fresh = sample(step.texture, step.allocation).pixels
    assert torch.allclose(step.patches.pixels[:, used], fresh[:, used], atol=1e-6)


@pytest.mark.parametrize(("rate", "keyframe"), [(None, 30), (10_000.0, 30), (None, 2)])
def test_what_moved_stands_still_again(rate, keyframe):
    one = stream(channels=["motion", "edges"], rate=rate, keyframe=keyframe)
    frames = list(crossing(one.size, 3))
    for frame in frames:
        step = one.step(frame)
    assert step.channels.channel("motion").max() > 0.1
    step = one.step(frames[-1])
    assert step.reuse.changed == 0 and all((level[:, 0] == 0).all() for level in step.channels.levels)
