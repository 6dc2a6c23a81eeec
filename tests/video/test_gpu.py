"""The same stream on a GPU: run with `pytest -m gpu tests/video`."""

import pytest
import torch

from tests.video.moving import crossing
from texturevlm.channels import PRESETS, build
from texturevlm.sample import sample
from texturevlm.types import Texture
from texturevlm.video import Stream
from texturevlm.video.layers import CARRIED

pytestmark = pytest.mark.gpu
NAMES = [name for name in PRESETS["fast"] if name not in CARRIED]


@pytest.mark.parametrize("size", [(256, 384), (150, 221)])
def test_incremental_equals_rebuilt(size):
    one = Stream(size, 32, patch=16, relevance="none", channels=NAMES, device="cuda", keyframe=10**6)
    before = None
    for frame in crossing(size, 20):
        step = one.step(frame.cuda())
        rebuilt = Texture((step.texture.levels[0].clone(),)).mipmapped()
        assert all(torch.equal(got, made) for got, made in zip(step.texture.levels, rebuilt.levels))
        if before is not None:
            wanted = build(rebuilt, NAMES, previous=before)
            for got, made in zip(step.channels.levels, wanted.levels):
                assert torch.allclose(got, made, atol=1e-5)
        used = step.reuse.used
        assert torch.equal(step.patches.pixels[:, used], sample(step.texture, step.allocation).pixels[:, used])
        before = Texture((step.texture.levels[0].clone(),))


def test_a_gpu_and_a_cpu_find_the_same_changes():
    size = (128, 192)
    streams = [Stream(size, 24, patch=16, relevance="none", device=device) for device in ("cpu", "cuda")]
    for frame in crossing(size, 30):
        cpu, cuda = (one.step(frame.to(one.device)).reuse for one in streams)
        assert cpu.changed == cuda.changed and cpu.keyframe == cuda.keyframe


def test_addresses_stay_and_memory_is_flat():
    size = (128, 192)
    one = Stream(size, 24, patch=16, relevance="none", channels=["edges"], device="cuda", keyframe=30)
    frames = [frame.cuda() for frame in crossing(size, 30)]
    places, memory = set(), []
    for index in range(180):
        one.step(frames[index % 30])
        places.add((one.pixels.data_ptr(), *(level.data_ptr() for level in (*one.canvas.levels, *one.layers.levels))))
        if index % 30 == 29:
            memory.append(torch.cuda.memory_allocated())
    assert len(places) == 1 and max(memory[2:]) - min(memory[2:]) < 1 << 20
