"""The same stream on a GPU: run with `pytest -m gpu tests/video`."""

import gc

import pytest
import torch

from tests.video.moving import crossing, noisy, scene
from texturevlm.channels import PRESETS, build
from texturevlm.relevance import find_relevance
from texturevlm.sampling import sample
from texturevlm.types import Texture
from texturevlm.video import TokenStream
from texturevlm.video.tokens import TokenChoice, token_value
from texturevlm.video.update import CARRIED
from texturevlm.video.update_gpu import VALUE, GpuFrameUpdate

pytestmark = pytest.mark.gpu
NAMES = [name for name in PRESETS["fast"] if name not in CARRIED]


def held(step):
    return Texture((step.texture.levels[0].clone(),))


@pytest.mark.parametrize("size", [(256, 384), (150, 221), (1080, 1920)])
@pytest.mark.parametrize("form", ["floats", "bytes"])
def test_incremental_equals_rebuilt(size, form):
    """For fifty frames, from a captured graph: mips bit for bit, channels, and patches of every token."""
    one = TokenStream(size, 32, patch=16, relevance="none", channels=NAMES, device="cuda", keyframe=20)
    before = None
    for frame in crossing(size, 50, side=min(200, size[0] // 4)):
        given = frame.cuda() if form == "floats" else (frame * 255).round().byte().cuda()
        step = one.step(given)
        rebuilt = held(step).mipmapped()
        assert all(torch.equal(got, made) for got, made in zip(step.texture.levels, rebuilt.levels))
        if before is not None:
            wanted = build(rebuilt, NAMES, previous=before if step.reuse.keyframe.goes_on else held(step))
            for got, made in zip(step.channels.levels, wanted.levels):
                for slot, name in enumerate(NAMES):
                    # A keyframe's bytes become floats by PyTorch, the others' by a kernel, which may round otherwise.
                    atol = 1e-6 if name == "motion" and step.reuse.keyframe.goes_on else 0.0
                    assert torch.allclose(got[:, slot], made[:, slot], rtol=0.0, atol=atol), name
        used = step.reuse.used
        fresh = sample(rebuilt, step.allocation, backend="cuda").pixels  # by another kernel, which may round otherwise
        assert torch.allclose(step.patches.pixels[:, used], fresh[:, used], atol=1e-6)
        before = held(step)
    assert isinstance(one.update, GpuFrameUpdate) and one.update.graph.replay.reason is None


def test_what_is_looked_at_behind_a_frame_is_what_looking_anew_would_say():
    size = (540, 960)
    one = TokenStream(size, 64, relevance="none", device="cuda", keyframe=10**6)
    looked, now = [], one.gpu_relevance.compute
    one.gpu_relevance.compute = lambda: looked.append(one.frames) or now()
    for index, frame in enumerate(crossing(size, 40, side=250)):
        one.step(frame.cuda())
        if looked and looked[-1] == index:
            known = find_relevance(one.texture, patch=32, relevance="none")
            assert torch.allclose(one.carry.relevance.mass, known.mass, rtol=1e-4, atol=1e-9)
            assert torch.allclose(one.carry.relevance.legible_scale, known.legible_scale, rtol=1e-4)
            found = one.update.comparison.words[VALUE]
            if one.gpu_relevance._valued:
                assert torch.allclose(found, token_value(known, one.choice.scale), rtol=1e-3)
    assert len(looked) > 2 and one.gpu_relevance.graph.replay.reason is None


@pytest.mark.parametrize("allocator", ["auto", "cascade", "layers", "fit", "density", "resize"])
def test_a_captured_choice_is_the_choice(allocator, monkeypatch):
    asked, plain = [], TokenChoice._replay
    monkeypatch.setattr(TokenChoice, "_replay", lambda *given: asked.append(1) or plain(*given))
    size = (540, 960)
    options = {"relevance": "none", "device": "cuda", "keyframe": 6, "hold": 0.0}
    one, other = (TokenStream(size, 64, allocator, **options) for _ in range(2))
    other.choice.captured = False
    for frame in crossing(size, 20, side=250):
        got, wanted = one.step(frame.cuda()), other.step(frame.cuda())
        assert got.reuse.chosen == wanted.reuse.chosen
        assert torch.allclose(got.allocation.centre, wanted.allocation.centre, atol=1e-3)
        assert torch.allclose(got.patches.pixels, wanted.patches.pixels, atol=1e-4)
    (graph,) = one.choice.graphs.values()
    assert graph.reason is None and len(asked) >= 3  # at the keyframes at least


def test_a_gpu_and_a_cpu_find_the_same_changes():
    size = (128, 192)
    streams = [TokenStream(size, 24, patch=16, relevance="none", device=device) for device in ("cpu", "cuda")]
    for frame in crossing(size, 60):
        cpu, cuda = (one.step(frame.to(one.device)) for one in streams)
        assert cpu.reuse.changed == cuda.reuse.changed and cpu.reuse.keyframe == cuda.reuse.keyframe
        assert torch.equal(cpu.texture.levels[0], cuda.texture.levels[0].cpu())


@pytest.mark.parametrize("bad", [float("nan"), 200.0])
def test_a_frame_that_is_no_image_is_refused_and_changes_nothing(bad):
    size = (128, 192)
    one, other = (
        TokenStream(size, 24, patch=16, relevance="none", channels=["edges"], device="cuda") for _ in range(2)
    )
    frames = [frame.cuda() for frame in crossing(size, 8)]
    for frame in frames[:4]:
        one.step(frame), other.step(frame)
    broken = frames[7].clone()
    broken[..., 100, 180] = bad
    with pytest.raises(ValueError, match="finite"):
        one.step(broken)
    for frame in frames[4:]:
        assert torch.equal(one.step(frame).patches.pixels, other.step(frame).patches.pixels)
        assert torch.equal(one.channels.levels[0], other.channels.levels[0])


def test_a_cut_and_a_still_frame():
    size = (256, 384)
    one = TokenStream(size, 24, patch=16, relevance="none", device="cuda")
    one.step(scene(size).cuda())
    still = one.step(noisy(scene(size), 1).cuda()).reuse
    assert still.changed == 0 and still.fresh == 0
    cut = one.step(scene(size, seed=5).cuda())
    assert cut.reuse.keyframe == "cut" and torch.equal(cut.texture.levels[0].cpu(), scene(size, seed=5))


def test_addresses_stay_and_ten_thousand_steps_leave_memory_flat():
    size = (128, 192)
    one = TokenStream(
        size, 24, patch=16, relevance="none", channels=["edges", "motion", "text"], device="cuda", keyframe=500
    )
    frames = [frame.cuda() for frame in crossing(size, 30)]
    places, memory = set(), []
    gc.collect()  # garbage of earlier tests must not be freed while memory is measured
    torch.cuda.empty_cache()
    for index in range(10_000):  # nine tenths of them still, since tokens are given out anew wherever all moves
        one.step(frames[index % 30 if index % 300 < 30 else 0])
        places.add(
            (
                one.patches.pixels.data_ptr(),
                *(level.data_ptr() for level in (*one.texture.levels, *one.channels.levels)),
            )
        )
        if index % 1000 == 999:
            gc.collect()
            torch.cuda.synchronize()
            memory.append(torch.cuda.memory_allocated())
    assert len(places) == 1 and max(memory[1:]) - min(memory[1:]) < 1 << 20
