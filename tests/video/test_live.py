"""The door: sources, watching, cameras that are too fast, and state."""

import threading
import time

import pytest
import torch

import texturevlm as tv
from tests.ask import models
from tests.video.moving import scene, with_box
from texturevlm import vlm
from texturevlm.video import Frame, FrameSource
from texturevlm.video.sources import LatestFrames

pytestmark = pytest.mark.usefixtures("captured_on_cpu")  # what a GPU captures runs as captured code
SIZE = (96, 160)
QUESTION = models.QUESTION


@pytest.fixture(scope="module")
def model():
    return models.asked(vlm.adapt(*models.built("qwen3_vl")), budget=15)


def film(count=12):
    ground = scene(SIZE)
    images = [with_box(ground, 9 * index, 40) for index in range(count - 4)] + [scene(SIZE, seed=5)] * 4
    return [(image[0] * 255).byte() for image in images]


def test_a_stream_without_a_model_gives_tokens():
    one = tv.VideoStream(film(), 15, relevance="none", fps=4)
    steps = list(one)
    assert len(steps) == 12 and steps[-1].time == pytest.approx(2.75)
    assert one.dropped == 0 and one.seconds == pytest.approx(2.75)
    with pytest.raises(StopIteration):
        one.step()


def test_answers_are_given_when_they_change(model, monkeypatch):
    one = tv.VideoStream(film(), 15, relevance="none", fps=4, model=model, limit=400)
    asked = []

    def answer(self, question, *, max_new_tokens):
        asked.append(self.moments[-1].time)
        return type("Answer", (), {"text": "first" if one.seconds < 1.5 else "second"})

    monkeypatch.setattr(type(one.conversation), "ask", answer)
    found = list(one.watch(QUESTION, every=0.5))
    assert [(round(each.time, 2), each.answer) for each in found] == [(0, "first"), (1.5, "second")]
    assert len(asked) == 7  # the last one about the last frame, which was not due yet


def test_a_stream_is_watched_with_a_model(model):
    one = tv.VideoStream(film(), 15, relevance="none", fps=4, model=model, limit=400)
    first = next(one.watch(QUESTION, every=1.0, max_new_tokens=3))
    assert first.time == 0 and isinstance(first.answer, str)
    assert one.ask(QUESTION, max_new_tokens=3) == first.answer


def test_a_source_that_does_not_wait_is_kept_up_with():
    """Frames come while the first is processed: all but the newest are dropped, and counted."""
    given = threading.Event()

    def frames():
        for index in range(50):
            yield Frame(torch.full((3, 32, 32), index, dtype=torch.uint8), index / 25)
        given.set()

    latest = LatestFrames(frames())
    taken = []
    for frame in latest:
        taken.append(int(frame.image[0, 0, 0]))
        given.wait(5)
    assert taken[-1] == 49 and len(taken) <= 3
    assert latest.dropped + len(taken) == 50


def test_an_error_of_a_camera_is_raised_where_frames_are_taken():
    def frames():
        yield Frame(torch.zeros(3, 32, 32, dtype=torch.uint8), 0.0)
        raise OSError("the camera is gone")

    with pytest.raises(OSError, match="the camera is gone"):
        list(LatestFrames(frames()))


def test_a_reader_that_stops_ends_the_thread():
    stopped = threading.Event()

    def frames():
        try:
            for index in range(10**6):
                time.sleep(0.001)
                yield Frame(torch.zeros(3, 32, 32, dtype=torch.uint8), index / 25)
        finally:
            stopped.set()

    for _ in LatestFrames(frames()):
        break
    assert stopped.wait(5)


def test_a_live_source_is_read_by_its_newest_frames(model):
    def read(notes):
        for index, image in enumerate(film()):
            time.sleep(0.02)
            yield Frame(image, index / 25)
        notes.append("after frame 12: the device is gone")

    camera = FrameSource("camera:0", 25.0, None, read, live=True)
    one = tv.VideoStream(camera, 15, relevance="none", model=model, limit=400)
    steps = list(one)
    assert 1 <= len(steps) <= 12 and len(steps) + one.dropped == 12
    assert isinstance(one.ask(QUESTION, max_new_tokens=2), str)


def test_a_source_without_a_frame_is_named():
    with pytest.raises(ValueError, match="must hold at least one frame, got none"):
        tv.VideoStream([], 15)
