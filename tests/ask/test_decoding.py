"""Options of an answer: misspelled or impossible ones are named before slow work; temperature means sampling."""

from functools import partial

import pytest
import torch
from transformers import GenerationConfig

from tests.ask import models
from tests.ask.models import QUESTION, picture
from texturevlm.ask import decoding as module
from texturevlm.ask.decoding import decoding

SHORT = {"max_new_tokens": 4}


@pytest.fixture(scope="module")
def asked(qwen):
    return models.asked(qwen, budget=9, relevance="none")


@pytest.fixture
def unopened(asked, monkeypatch):
    """A model that must not get as far as opening an image."""

    def prepare(images):
        raise AssertionError("slow work has begun")

    monkeypatch.setattr(asked, "prepare", prepare)
    return asked


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"bugdet": 4}, r"options must be those of ask .*, got bugdet \(did you mean budget\?\)"),
        ({"max_new_token": 4}, r"got max_new_token \(did you mean max_new_tokens\?\)"),
        ({"temprature": 4}, r"got temprature \(did you mean temperature\?\)"),
        ({"streaming": True}, r"got streaming \(did you mean stream\?\)"),
        ({"stop": "x"}, r"got stop \(did you mean stop_strings\?\)"),
        ({"max_length": 9}, r"got max_length \(did you mean max_new_tokens\?\)"),
        ({"wheels": 4}, r"generate, got wheels$"),
        ({"_from_model_config": 4}, "got _from_model_config"),
        ({"pixel_values": 4}, "got pixel_values"),
        ({"num_beams": "a"}, "num_beams must be a whole number, got 'a'"),
        ({"num_beams": 0}, "num_beams must be at least 1, got 0"),
        ({"max_new_tokens": 2.5}, "max_new_tokens must be a whole number, got 2.5"),
        ({"temperature": "hot"}, "temperature must be a number, got 'hot'"),
        ({"temperature": True}, "temperature must be a number, got True"),
        ({"temperature": -1}, r"temperature must be 0 \(greedy\) or above, got -1"),
        ({"temperature": 0, "do_sample": True}, "temperature must be above 0 with do_sample, got 0"),
        ({"top_p": 1.5}, "top_p must be above 0 and at most 1, got 1.5"),
        ({"num_return_sequences": 3}, "options must be as generate takes them, got .*num_return_sequences"),
        ({"cache_implementation": "fast"}, "options must be as generate takes them, got .*cache_implementation"),
        ({"generation_config": {"top_k": 2}}, "generation_config must be a GenerationConfig, got dict"),
        ({"stopping_criteria": print}, "stopping_criteria must be a list, got builtin_function_or_method"),
        ({"logits_processor": print}, "logits_processor must be a list, got builtin_function_or_method"),
        ({"stream": True, "streamer": print}, "stream must be False with a streamer, got True"),
        (
            {"stream": True, "generation_config": GenerationConfig(num_beams=2)},
            "stream must be False with num_beams, got True",
        ),
        ({"budget": 0}, "budget must be at least 1, got 0"),
        ({"budget": "9"}, "budget must be a whole number, got '9'"),
        ({"budget": (4, 9)}, r"budget must be a whole number, got \(4, 9\)"),
        ({"budget": 4096}, "budget must leave room in the model's context of 4096 tokens, got 4096"),
        ({"allocator": "circles"}, "allocator must be one of resize, grid, fit, .* got 'circles'"),
        ({"relevance": ["none", "auto"]}, r"relevance must be a scorer or the name of one, got \['none', 'auto'\]"),
        ({"looks": 3}, "looks must be 1, 2 or .auto., got 3"),
    ],
)
def test_what_cannot_be_is_named_before_an_image_is_opened(unopened, options, said):
    with pytest.raises((TypeError, ValueError), match=f"^ask: .*{said}") as raised:
        unopened.ask(picture(64, 64), QUESTION, **options)
    assert "\n" not in str(raised.value)


def drawn(asked, **options):
    """Answers of several seeds."""
    found = set()
    for seed in range(4):
        torch.manual_seed(seed)
        found.add(asked.ask(picture(64, 64), QUESTION, **SHORT, **options))
    return found


@pytest.mark.filterwarnings("error")
def test_a_temperature_means_sampling(asked, caplog):
    greedy = drawn(asked)
    assert len(greedy) == 1
    for options in ({"temperature": 3.0}, {"top_p": 0.99}, {"top_k": 40}, {"do_sample": True}):
        assert len(drawn(asked, **options)) > 1
    assert drawn(asked, temperature=0) == drawn(asked, temperature=0.0, top_p=0.9, min_p=0.1) == greedy
    assert drawn(asked, do_sample=None) == greedy
    assert not [one for one in caplog.records if "not valid" in one.getMessage()]


def test_what_sampling_leaves_open_is_the_checkpoints(asked):
    found = decoding(asked.model, None, None, {"temperature": 0.5}, ())
    assert found == {"max_new_tokens": 256, "temperature": 0.5, "do_sample": True}
    assert decoding(asked.model, None, 7, {}, ()) == {"max_new_tokens": 7, **module.GREEDY}
    off = decoding(asked.model, None, 7, {"temperature": 0.5, "do_sample": False}, ())
    assert off["do_sample"] is False


def test_a_generation_config_decides(asked):
    config = GenerationConfig(do_sample=True, temperature=3.0, max_new_tokens=2)
    found = decoding(asked.model, None, None, {"generation_config": config}, ())
    assert found == {"max_new_tokens": 2, "generation_config": config}
    torch.manual_seed(0)
    answers = [asked.ask(picture(64, 64), QUESTION, return_details=True, generation_config=config) for _ in range(5)]
    assert len({one.text for one in answers}) > 1 and all(len(one.tokens) <= 2 for one in answers)


def test_a_generation_config_holds_all_options(asked, monkeypatch):
    """transformers will refuse options beside one."""
    seen, generate = [], type(asked.model).generate
    monkeypatch.setattr(asked.model, "generate", lambda **given: seen.append(given) or generate(asked.model, **given))
    config = GenerationConfig(max_new_tokens=2)
    asked.ask(picture(64, 64), QUESTION, generation_config=config)
    details = asked.ask(picture(64, 64), QUESTION, generation_config=config, return_details=True, max_new_tokens=3)
    pieces = asked.ask(picture(64, 64), QUESTION, generation_config=config, stream=True, max_new_tokens=3)
    assert "".join(pieces).strip() == details.text and len(details.tokens) == 3
    assert [given["generation_config"].max_new_tokens for given in seen] == [2, 3, 3]
    assert not [name for given in seen for name in given if name in vars(config)]
    assert config.max_new_tokens == 2 and not config.output_logits


def test_an_answer_under_a_generation_config_ends_where_the_model_says(asked, monkeypatch):
    images, config = [[picture(64, 64), picture(96, 64)], [picture(64, 64)]], GenerationConfig(max_new_tokens=6)
    ask = partial(asked.ask, images, [QUESTION] * 2, return_details=True, generation_config=config)
    first, second = (one.tokens for one in ask())
    at, end = next((at, one) for at, one in enumerate(first) if one not in second)
    assert at < len(first) - 1  # padding follows, because the second answer goes on
    monkeypatch.setattr(
        asked.model.generation_config, "eos_token_id", asked.processor.tokenizer.convert_tokens_to_ids(end)
    )
    assert [one.tokens for one in ask()] == [first[: at + 1], second]


def test_a_budget_for_one_call(asked):
    image = picture(320, 320)
    for budget in (4, 20):
        answer = asked.ask(image, QUESTION, budget=budget, return_details=True, **SHORT)
        assert answer.placements[0].tokens == budget
        wanted = models.asked(asked.adapter, budget=budget, relevance="none").ask(image, QUESTION, **SHORT)
        assert answer.text == wanted
    assert asked.budget == 9
    assert int(asked.prepare(image).choose(QUESTION, budget=5)[0].allocation.valid.sum()) == 5
    twice = asked.ask(image, QUESTION, budget=6, looks=2, relevance="auto", return_details=True, **SHORT)
    assert 4 <= twice.placements[0].tokens <= 6


def test_a_budget_for_one_call_is_captured_if_it_fits(qwen):
    plain, captured = (models.asked(qwen, budget=9, captured=one, relevance="none") for one in (False, True))
    image = picture(320, 320)
    for budget in (9, 4, 9):
        assert captured.ask(image, QUESTION, budget=budget, **SHORT) == plain.ask(
            image, QUESTION, budget=budget, **SHORT
        )
        assert captured.reasons == ["graphs are for a GPU, and this runs on cpu"]
        assert captured.graphs.fixed.budget == 9
    assert captured.ask(image, QUESTION, budget=12, **SHORT) == plain.ask(image, QUESTION, budget=12, **SHORT)
    assert captured.reasons == ["a budget of 12 is not captured, because it is above the 9 of this VLM"]
