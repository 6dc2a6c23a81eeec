"""On a GPU: what graphs and kernels keep in the cache is what the model computes from scratch."""

import pytest
import torch

from tests.ask import models
from tests.video.test_conversation import error, frames, from_scratch, logits_of, shown, stream
from texturevlm import vlm

pytestmark = pytest.mark.gpu
ROUNDING = {torch.float32: 2e-3, torch.bfloat16: 0.08}  # of the logits' range


@pytest.mark.parametrize("dtype", list(ROUNDING))
def test_a_full_refresh_is_the_model_from_scratch(dtype):
    network, processor = models.built("qwen3_vl")
    model = models.asked(vlm.adapt(network.to("cuda", dtype), processor), budget=15)
    for interval in (0.05, 10.0):
        one = stream(model, refresh="full", interval=interval, device="cuda")
        last = shown(one, [image.cuda() for image in frames(6)])
        talk = one.conversation
        last = {time: (allocation.to("cpu"), image.cpu()) for time, (allocation, image) in last.items()}
        assert error(logits_of(talk), from_scratch(talk, last)) < ROUNDING[dtype]
        assert all(graph.reason is None for graph in talk.memory.graphs.values()) and len(talk.memory.graphs) > 1
        assert all(tower.tower.reason is None for tower in talk.encode.towers.values())


def test_frames_and_questions_take_no_more_memory():
    """Once their graphs are there."""
    network, processor = models.built("qwen3_vl")
    model = models.asked(vlm.adapt(network.cuda(), processor), budget=15)
    one = stream(model, interval=0.05, limit=96, device="cuda")
    images = [image.cuda() for image in frames(12)]
    sizes = []
    for _ in range(4):
        for image in images:
            one.step(image)
            one.ask("is there ?", max_new_tokens=2)
        torch.cuda.synchronize()
        sizes.append(torch.cuda.memory_allocated())
    assert one.conversation.evicted > 10 and sizes[-1] <= sizes[1] + 4096
