"""Turned images in `ask` and `attach`: the model reads what it reads of the upright image."""

import pytest
import torch

import texturevlm as tv
from tests.ask import models
from tests.ask.models import QUESTION, conversation, inputs_of
from texturevlm.ask import VLM


def clockwise(image):
    """(C, H, W) turned by a quarter."""
    return image.rot90(-1, (1, 2)).contiguous()


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl", "llava"])
def test_a_turned_image_gives_the_inputs_of_the_upright_one(family):
    image = models.noise(320, 224)
    attached = {turn: tv.attach(*models.built(family), budget=9, relevance="none", turn=turn) for turn in (0, 90)}
    wanted = inputs_of(attached[0], conversation(image))
    found = inputs_of(attached[90], conversation(clockwise(image)))
    assert set(found) == set(wanted)
    for name in wanted:
        assert torch.allclose(found[name].float(), wanted[name].float(), atol=1e-4), name
    other = inputs_of(attached[0], conversation(clockwise(image)))
    assert not torch.allclose(other["pixel_values"], wanted["pixel_values"], atol=1e-4)


def test_ask_answers_as_about_the_upright_image_and_says_where_it_looked():
    asked = VLM(*models.built("qwen3_vl"), budget=9, relevance="none")
    image = models.noise(320, 224)
    upright = asked.ask(image, QUESTION, turn=0, max_new_tokens=3, return_details=True)
    turned = asked.ask(clockwise(image), QUESTION, turn=90, max_new_tokens=3, return_details=True)
    assert turned.text == upright.text
    assert turned.logprobs == pytest.approx(upright.logprobs, abs=1e-3)
    (seen,) = turned.placements
    assert seen.given.size == (224, 320)
    assert not seen.given.upright[seen.given.valid].any()
    looked = asked.ask(clockwise(image), QUESTION, turn=90, looks="auto", max_new_tokens=3, return_details=True)
    assert looked.placements[0].given.size == (224, 320)


def test_turn_is_saved_with_the_processor_and_checked(tmp_path):
    attached = tv.attach(*models.built("qwen3_vl"), turn=270)
    assert attached.turn == -90
    with pytest.raises(ValueError, match="attach: turn must be 'auto' or the angle of the text in degrees, got 'left'"):
        tv.attach(*models.built("qwen3_vl"), turn="left")
    with pytest.raises(ValueError, match="ask: turn must be 'auto'"):
        VLM(*models.built("qwen3_vl"), budget=9).ask(models.noise(64, 64), QUESTION, turn="up")


def test_videos_are_turned_upright():
    frames = torch.stack([torch.rand(3, 64, 96, generator=torch.Generator().manual_seed(n)) for n in range(3)])
    asked = VLM(*models.built("qwen3_vl"), budget=9, relevance="none")
    upright = asked.ask(frames, QUESTION, fps=2, max_new_tokens=3, return_details=True)
    lying = frames.rot90(-1, (2, 3)).contiguous()
    turned = asked.ask(lying, QUESTION, fps=2, turn=90, max_new_tokens=3, return_details=True)
    assert (turned.text, turned.logprobs) == (upright.text, upright.logprobs)
    assert turned.placements[0].given.size == (96, 64)  # of the frames as they were given
    assert turned.placements[0].allocation.size == (64, 96)
    assert asked.ask(lying, QUESTION, fps=2, max_new_tokens=3, return_details=True).logprobs != upright.logprobs
