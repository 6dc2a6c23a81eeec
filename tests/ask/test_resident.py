"""An image that is asked often is kept in the texture units, where measured times say that it pays."""

from types import SimpleNamespace

import pytest
import torch

from tests.ask import models
from texturevlm.ops import backend as backends
from texturevlm.placement import TokenConfig, prepare
from texturevlm.types import Texture


@pytest.fixture(autouse=True)
def no_capture(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)  # a torch without CUDA has no answer


def often(finest, tokens=273, patch=32):
    """From how many questions on it pays."""
    return next(count for count in range(1, 1000) if backends.texture_pays(finest, count * tokens * patch * patch))


def test_the_crossover_is_that_of_the_measured_times():
    assert often(torch.empty(1, 3, 1024, 1024)) == 49
    assert often(torch.empty(1, 3, 2200, 1700)) == 63


def test_only_what_is_asked_often_enough_is_kept(monkeypatch):
    """A stand-in for the texture units: this machine need not have any."""
    made = []
    always = SimpleNamespace(no_kernel_because=lambda tensor: None, texture_pays=backends.texture_pays)
    monkeypatch.setattr("texturevlm.placement.picture.backends", always)
    monkeypatch.setattr(Texture, "on_device", lambda texture: made.append(texture.size) or texture)
    image = models.noise(1024, 1024)
    for count, wanted in ((0, 0), (48, 0), (49, 1)):
        made.clear()
        picture = prepare(image, TokenConfig(turn=0.0), samples=count * 273 * 32 * 32)
        assert len(made) == wanted
    prepare(picture, TokenConfig(turn=90.0))
    assert len(made) == 2  # the upright one is what tokens are sampled from


def test_how_many_questions(qwen):
    model = models.asked(qwen, budget=20)
    (picture,) = model.prepare(models.noise(100, 140), questions=1000).pictures
    assert picture.findings.samples == 1000 * 20 * qwen.side**2 and picture.texture.resident is None
    assert model.prepare(models.noise(100, 140)).pictures[0].findings.samples == 0
    with pytest.raises(ValueError, match="prepare: questions must be at least 1, got 0"):
        model.prepare(models.noise(100, 140), questions=0)
