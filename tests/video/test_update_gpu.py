"""A whole stream by kernels, in the emulator: what it holds is what a rebuilt one would be, frame after frame."""

import pytest
import torch

from tests.video.moving import crossing, noisy, scene
from texturevlm.channels import PRESETS, build
from texturevlm.ops import backend as backends
from texturevlm.relevance import find_relevance
from texturevlm.sampling import sample
from texturevlm.types import Texture
from texturevlm.video import TokenStream
from texturevlm.video.tokens import TokenChoice, token_value
from texturevlm.video.update import CARRIED
from texturevlm.video.update_gpu import MOST_CHANGED, MOST_FRAMES, VALUE, GpuFrameUpdate

SIZE = (64, 96)
NAMES = [name for name in PRESETS["fast"] if name not in CARRIED]
pytestmark = pytest.mark.usefixtures("emulated")


def stream(**options):
    given = {"budget": 12, "patch": 16, "relevance": "none"} | options
    made = TokenStream(SIZE, **given)
    assert isinstance(made.update, GpuFrameUpdate)
    return made


def check(step, before):
    """Mips, channels and patches are those of the frame that is held, made anew."""
    texture = Texture(tuple(level.clone() for level in step.texture.levels))
    rebuilt = Texture((step.texture.levels[0].clone(),)).mipmapped()
    assert all(torch.equal(got, made) for got, made in zip(texture.levels, rebuilt.levels))
    if step.channels is not None:
        previous = before if step.reuse.keyframe.goes_on else Texture((rebuilt.levels[0],))
        wanted = build(rebuilt, NAMES, previous=previous)
        for got, made in zip(step.channels.levels, wanted.levels):
            assert torch.equal(got, made)
    used = step.reuse.used
    assert torch.equal(step.patches.pixels[:, used], sample(rebuilt, step.allocation).pixels[:, used])


@pytest.mark.parametrize("channels", [(), NAMES])
def test_everything_is_that_of_the_frame_held(channels):
    one, before, kept = stream(channels=channels, keyframe=3), None, 0
    for frame in [*crossing(SIZE, 4), scene(SIZE, seed=9), scene(SIZE, seed=9)]:
        step = one.step(frame)
        check(step, before)
        before = Texture((step.texture.levels[0].clone(),))
        kept += step.reuse.kept
    assert kept > 0 and step.reuse.changed == 0


def test_kernels_and_the_plain_way_find_the_same(monkeypatch):
    ours = stream(keyframe=5)
    with monkeypatch.context() as plain:
        plain.setattr(backends, "no_kernel_because", lambda tensor: "this is the plain way")
        other = TokenStream(SIZE, budget=12, patch=16, relevance="none", keyframe=5)
        assert not isinstance(other.update, GpuFrameUpdate)
    ground = scene(SIZE) * 0.6 + 0.2
    for seed, frame in enumerate(crossing(SIZE, 6)):
        image = noisy(frame * 0.5 + ground * 0.5, 1, seed)
        got = ours.step(image)
        with monkeypatch.context() as plain:
            plain.setattr(backends, "no_kernel_because", lambda tensor: "this is the plain way")
            wanted = other.step(image)
        assert got.reuse.changed == wanted.reuse.changed and got.reuse.keyframe == wanted.reuse.keyframe
        assert torch.equal(got.texture.levels[0], wanted.texture.levels[0])


def test_what_the_held_tokens_are_worth_is_known_a_frame_after_a_look(captured_on_cpu):
    size = (40, 320)  # cells are coarser than pixels here, as the kernels want them
    one, asked = TokenStream(size, 12, patch=16, relevance="none", keyframe=1000), []
    allocate = one.choice.allocate
    one.choice.allocate = lambda *given: asked.append(len(given)) or allocate(*given)
    looked, now = [], one.gpu_relevance.compute
    one.gpu_relevance.compute = lambda: looked.append(one.frames) or now()
    frames = list(crossing(size, 12))
    one.step(frames[0])
    assert one.gpu_relevance is not None and one.gpu_relevance.value() is None
    asked.clear()
    one.choice.value = (100.0, 0.0)  # what is held is worth too little
    changed = 0.0
    for index, frame in enumerate(frames[1:], 1):
        changed += one.step(frame).reuse.share
        if looked:
            break
        assert changed < MOST_CHANGED and index < MOST_FRAMES and not asked
    assert looked == [index] and (changed >= MOST_CHANGED or index == MOST_FRAMES)
    known = find_relevance(one.texture, patch=16, relevance="none")
    assert torch.allclose(one.carry.relevance.mass, known.mass) and torch.allclose(
        one.carry.relevance.legible_scale, known.legible_scale
    )
    found = one.update.comparison.words[VALUE]
    assert torch.allclose(found, token_value(known, one.choice.scale), rtol=1e-4)
    one.step(frames[index + 1])
    assert len(asked) == 1 and len(looked) == 2  # given out anew, by another look at that frame
    known = find_relevance(one.texture, patch=16, relevance="none")
    assert torch.allclose(one.carry.relevance.mass, known.mass) and torch.allclose(
        one.carry.relevance.legible_scale, known.legible_scale
    )


@pytest.mark.parametrize("allocator", ["cascade", "density"])
def test_what_is_captured_of_a_choice_is_what_is_chosen_without(allocator, monkeypatch):
    """Here nothing is captured, but it goes the same way: as tensors in and out."""
    asked, plain = [], TokenChoice._replay
    monkeypatch.setattr(TokenChoice, "_replay", lambda *given: asked.append(1) or plain(*given))
    one, other = (stream(allocator=allocator, keyframe=2, hold=0.0) for _ in range(2))
    assert one.choice.captured
    other.choice.captured = False
    for frame in crossing(SIZE, 5):
        got, wanted = one.step(frame), other.step(frame)
        assert got.reuse.chosen == wanted.reuse.chosen and torch.equal(got.patches.pixels, wanted.patches.pixels)
        for name in ("centre", "ddx", "ddy", "score", "valid", "source"):
            assert torch.equal(getattr(got.allocation, name), getattr(wanted.allocation, name)), name
        assert one.choice.value == other.choice.value and torch.equal(one.choice.scale, other.choice.scale)
    assert len(asked) >= 2 and not other.choice.graphs  # at the keyframes at least


def test_only_what_starts_kernels_and_nothing_else_is_captured():
    assert stream(allocator="layers").choice.captured
    assert not stream(allocator="layers", budget=2000).choice.captured  # more than the kernels take
    assert not stream(allocator="layers", backend="reference").choice.captured
    assert not stream(allocator=lambda texture, known, *, budget, patch: None).choice.captured


def test_keyframes_without_a_question_are_looked_at_by_the_kernels():
    one = TokenStream((40, 320), 12, patch=16, relevance="none", keyframe=2)
    looked, now = [], one.gpu_relevance.compute
    one.gpu_relevance.compute = lambda: looked.append(one.frames) or now()
    for index, frame in enumerate(crossing((40, 320), 5)):
        step = one.step(frame)
        if step.reuse.keyframe == "interval":
            assert looked[-1] == index
            known = find_relevance(one.texture, patch=16, relevance="none")
            assert torch.allclose(step.relevance.mass, known.mass, rtol=1e-4, atol=1e-9)
    assert {2, 4} <= set(looked)


def test_a_frame_that_is_no_image_is_refused_and_the_stream_goes_on():
    frames = list(crossing(SIZE, 4))
    one, other = stream(), stream()
    for frame in frames[:2]:
        one.step(frame), other.step(frame)
    with pytest.raises(ValueError, match="finite"):
        one.step(torch.full((3, *SIZE), float("nan")))
    for frame in frames[2:]:
        assert torch.equal(one.step(frame).patches.pixels, other.step(frame).patches.pixels)


def test_a_failure_half_way_makes_the_next_frame_a_keyframe(monkeypatch):
    frames, one = list(crossing(SIZE, 3)), stream()
    one.step(frames[0])
    with monkeypatch.context() as broken:
        broken.setattr(one.update, "compare", None)
        with pytest.raises(TypeError):
            one.step(frames[1])
    step = one.step(frames[2])
    assert step.reuse.keyframe == "failure" and torch.equal(step.texture.levels[0], frames[2])


def test_bytes_are_taken_as_they_are():
    frames = [(frame * 255).round().byte() for frame in crossing(SIZE, 3)]
    one, other = stream(), stream()
    for frame in frames:
        got, wanted = one.step(frame), other.step(frame.float() / 255)
        assert torch.equal(got.patches.pixels, wanted.patches.pixels)


def test_buffers_stay_where_they_are():
    one, places = stream(channels=["edges", "motion"], keyframe=2), set()
    for frame in crossing(SIZE, 5):
        one.step(frame)
        places.add(
            (
                one.patches.pixels.data_ptr(),
                *(level.data_ptr() for level in (*one.texture.levels, *one.channels.levels)),
            )
        )
    assert len(places) == 1


@pytest.mark.parametrize(("rate", "keyframe"), [(None, 30), (10_000.0, 30), (None, 2)])
def test_what_moved_stands_still_again(rate, keyframe):
    one = stream(channels=["motion", "edges"], rate=rate, keyframe=keyframe)
    frames = list(crossing(SIZE, 3))
    for frame in frames:
        step = one.step(frame)
    assert step.channels.channel("motion").max() > 0.1
    step = one.step(frames[-1])
    assert step.reuse.changed == 0 and all((level[:, 0] == 0).all() for level in step.channels.levels)
