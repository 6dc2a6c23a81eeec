"""The captured path answers the same, whatever is asked of it; what it cannot do goes the other way and says why."""

import pytest
import torch

from tests.ask import models
from tests.ask.models import QUESTION
from tests.vlm import small
from texturevlm import vlm
from texturevlm.ask import VLM
from texturevlm.vlm import CapturedPrefill

SHORT = {"max_new_tokens": 5}


@pytest.mark.parametrize("size", [(260, 200), (700, 300), (40, 40)])
@pytest.mark.parametrize("looks", [1, 2])
def test_the_captured_path_answers_the_same(qwen, looks, size, monkeypatch):
    """Whatever the overview leaves unused."""
    image, captures = models.noise(*size), []
    given = CapturedPrefill.generate
    monkeypatch.setattr(
        CapturedPrefill,
        "generate",
        lambda self, *inputs, **options: captures.append(1) or given(self, *inputs, **options),
    )
    plain, captured = (models.asked(qwen, budget=20, captured=one) for one in (False, True))
    options = SHORT | {"looks": looks, "relevance": "none" if looks == 1 else "auto"}
    assert plain.ask(image, QUESTION, **options) == captured.ask(image, QUESTION, **options)
    assert len(captures) == 1 and plain.reasons == []
    assert captured.reasons == ["graphs are for a GPU, and this runs on cpu"]


def test_questions_about_images_of_several_sizes_are_captured_together(qwen):
    """By eights, fours and twos, whatever the lengths of their prompts."""
    plain, captured = (models.asked(qwen, budget=9, captured=one, relevance="none") for one in (False, True))
    images = [models.noise(100 + 40 * index, 140, seed=index) for index in range(7)]
    questions = [QUESTION + " and the ?" * (index % 3) for index in range(7)]
    wanted = [plain.ask(image, one, **SHORT) for image, one in zip(images, questions)]
    assert captured.ask([[image] for image in images], questions, **SHORT) == wanted
    assert sorted(captured.graphs.together) == [2, 4] and captured.graphs.fixed is not None
    details = captured.ask([[image] for image in images[:2]], questions[:2], return_details=True, **SHORT)
    alone = [plain.ask(image, one, return_details=True, **SHORT) for image, one in zip(images[:2], questions[:2])]
    assert [one.text for one in details] == wanted[:2]
    for one, other in zip(details, alone):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
    captured.ask([[image, image] for image in images[:2]], questions[:2], **SHORT)
    assert captured.reasons == ["one image per question is captured, and these were 2"]
    captured.release()
    assert not captured.graphs.together and captured.graphs.fixed is None


def test_a_capture_is_made_again_for_a_model_that_was_cast():
    adapter = vlm.adapt(*models.built("qwen3_vl"))
    plain, captured = (models.asked(adapter, budget=9, captured=one, relevance="none") for one in (False, True))
    image = models.noise(100, 140)
    for dtype in (torch.float32, torch.float64, torch.float32):
        adapter.model.to(dtype)
        assert captured.ask(image, QUESTION, **SHORT) == plain.ask(image, QUESTION, **SHORT)
        first = captured.graphs.fixed
        captured.ask(image, QUESTION, **SHORT)
        assert captured.graphs.fixed is first and not first.stale
    adapter.model.to(torch.bfloat16)
    assert first.stale


def test_what_cannot_be_captured_says_why():
    asked = VLM(*models.built("llava"), budget=9, relevance="none", captured=True)
    assert asked.ask(models.noise(96, 96), QUESTION, **SHORT)
    assert asked.reasons == ["models of Llava are not captured"]


def test_an_answer_that_is_not_captured_says_why_and_the_next_one_is(qwen):
    asked = models.asked(qwen, budget=9, relevance="none", captured=True)
    image = models.noise(96, 96)
    asked.ask([image, image], QUESTION, **SHORT)
    assert asked.reasons == ["one image per question is captured, and these were 2"]
    asked.ask(image, QUESTION, num_beams=2, **SHORT)
    assert asked.reasons == ["an answer with num_beams=2 is not captured"]
    asked.ask(image, QUESTION, **SHORT)
    assert asked.reasons == ["graphs are for a GPU, and this runs on cpu"]


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 2},
        {"use_cache": False},
        {"coordinates": "native"},
        {"levels": "apart"},
        {"cache_implementation": "static"},
        {"repetition_penalty": 1.5},
        {"do_sample": True, "temperature": 2.0},
        {"num_beams": 1, "use_cache": True},
        {"eos_token_id": small.IDS["3"]},
    ],
)
def test_captured_or_not_any_option_gives_the_same_answer(qwen, options):
    plain, captured = (models.asked(qwen, budget=9, captured=one, relevance="none") for one in (False, True))
    found = []
    for one in (plain, captured):
        torch.manual_seed(4)
        found.append(one.ask(models.noise(100, 140), QUESTION, max_new_tokens=7, **options))
    assert found[0] == found[1]


def test_a_checkpoint_that_asks_for_beams_is_obeyed(qwen):
    plain, captured = (models.asked(qwen, budget=9, captured=one, relevance="none") for one in (False, True))
    image = models.noise(100, 140)
    qwen.model.generation_config.num_beams = 3
    try:
        assert captured.ask(image, QUESTION, **SHORT) == plain.ask(image, QUESTION, **SHORT)
        assert "num_beams=3, as the model's generation config says" in captured.reasons[0]
        captured.ask(image, QUESTION, num_beams=1, **SHORT)
        assert captured.reasons == ["graphs are for a GPU, and this runs on cpu"]
    finally:
        qwen.model.generation_config.num_beams = None
