"""A conversation that goes on elsewhere: the same answers, and no other stream takes its state."""

import pytest
import torch

import texturevlm as tv
from tests.ask import models
from tests.video.test_conversation import QUESTION, SIZE, frames, logits_of, stream
from texturevlm import vlm
from texturevlm.video.live import StreamState

pytestmark = pytest.mark.usefixtures("captured_on_cpu")  # what a GPU captures runs as captured code


@pytest.fixture(scope="module")
def model():
    return models.asked(vlm.adapt(*models.built("qwen3_vl")), budget=15)


def test_a_restored_stream_goes_on_as_if_nothing_had_been(model, tmp_path):
    whole, first, second = (stream(model, interval=0.15) for _ in range(3))
    images = frames(8)
    for image in images:
        whole.step(image)
    for image in images[:5]:
        first.step(image)
    first.ask(QUESTION, max_new_tokens=2)
    first.state().save(tmp_path / "state.pt")
    second.restore(StreamState.load(tmp_path / "state.pt"))
    assert torch.equal(logits_of(first.conversation), logits_of(second.conversation))
    for image in images[5:]:
        second.step(image)
    assert [one.time for one in second.conversation.moments] == [one.time for one in whole.conversation.moments]
    assert torch.allclose(logits_of(second.conversation), logits_of(whole.conversation), atol=1e-3)
    assert second.seconds == whole.seconds and second.tokens.frames == 8


@pytest.mark.parametrize(
    "other",
    [
        {"allocator": "layers"},
        {"query": "what ?"},
        {"rate": 100.0},
        {"refresh": 4},
        {"interval": 0.3},
        {"limit": 300},
        {"relevance": "scout"},
    ],
)
def test_the_state_of_another_stream_is_refused(model, other):
    one, two = stream(model), stream(model, **other)
    one.step(frames(1)[0])
    before = two.conversation.memory.live.clone()
    (name,) = other
    with pytest.raises(ValueError, match=f"restore: state must be of a stream with {name} = "):
        two.restore(one.state())
    assert torch.equal(two.conversation.memory.live, before) and not two.conversation.moments


def test_the_state_of_another_model_is_refused(model):
    other = models.asked(vlm.adapt(*models.built("qwen3_vl")), budget=15)
    with torch.no_grad():
        other.model.lm_head.weight[0, 0] += 1
    one = stream(model)
    one.step(frames(1)[0])
    with pytest.raises(ValueError, match="restore: state must be of a stream with model = "):
        stream(other).restore(one.state())


def test_bad_files_and_streams_without_a_model(model, tmp_path):
    (tmp_path / "other.pt").write_bytes(b"no state")
    with pytest.raises(ValueError, match=r"StreamState.load: .*other.pt must be a stream's state"):
        StreamState.load(tmp_path / "other.pt")
    torch.save({"format": 99}, tmp_path / "old.pt")
    with pytest.raises(ValueError, match="must be a state of format 3, got another file"):
        StreamState.load(tmp_path / "old.pt")
    with pytest.raises(ValueError, match="state: the stream must have a model"):
        tv.VideoStream(SIZE, 15).state()
