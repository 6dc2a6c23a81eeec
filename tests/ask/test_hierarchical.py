"""Questions to models that attend hierarchically."""

import pytest

from tests.ask import models
from tests.ask.test_load import saved
from texturevlm import vlm
from texturevlm.ask import load_vlm
from texturevlm_lab.attention.implementation import IMPLEMENTATION

SMALL = {"block": 4, "group": 4, "neighbours": 0}


def asked(model):
    found = model.ask(models.noise(128, 128), models.QUESTION, relevance="none", max_new_tokens=3, return_details=True)
    return found.text, found.logprobs


@pytest.mark.parametrize("family", ["qwen3_vl", "llava"])
def test_an_answer_at_full_detail_is_that_of_the_dense_model(family):
    adapter = vlm.adapt(*models.built(family))
    dense = asked(models.asked(adapter, budget=20))
    full = asked(models.asked(adapter, budget=20, attention={"fine": 1.0, **SMALL}))
    assert full[0] == dense[0] and full[1] == pytest.approx(dense[1], abs=1e-4)
    adapter = vlm.adapt(*models.built(family))
    coarse = asked(models.asked(adapter, budget=20, attention={"fine": 0.0, **SMALL}))
    assert coarse[1] != pytest.approx(dense[1], abs=1e-4)


@pytest.mark.parametrize(
    "options", [{"attention": {"fine": 0.3, "share": 2, **SMALL}}, {"tower_attention": {"kind": "window", **SMALL}}]
)
def test_an_answer_is_decoded_from_a_graph(options):
    """Which its prompt is not read from; for one question, several, and in pieces."""
    image, questions = models.noise(128, 128), [models.QUESTION, "and there ?", "what is the total there ?"]
    asked, found = {"relevance": "none", "max_new_tokens": 4}, []
    for captured in (False, True):
        model = models.asked(vlm.adapt(*models.built("qwen3_vl")), budget=20, captured=captured, **options)
        details = model.ask(image, models.QUESTION, return_details=True, **asked)
        replay = None if model.graphs.decode is None else model.graphs.decode.replay
        pieces = "".join(model.ask(image, models.QUESTION, stream=True, **asked)).strip()
        assert pieces == details.text and (replay is not None) == captured
        found.append((details.text, details.logprobs, model.ask(image, questions, **asked)))
        reasons = model.reasons
        model.ask(image, models.QUESTION, num_beams=2, **asked)
        assert model.graphs.decode is None
    assert found[0][0] == found[1][0] and found[0][2] == found[1][2]
    assert found[0][1] == pytest.approx(found[1][1], abs=1e-4)
    assert reasons == [
        "a model whose attention has levels of detail is captured only while it decodes",
        "graphs are for a GPU, and this runs on cpu",
    ]


def test_a_tower_in_windows():
    adapter = vlm.adapt(*models.built("qwen3_vl"))
    dense = asked(models.asked(adapter, budget=20))
    full = asked(models.asked(adapter, budget=20, tower_attention={"fine": 1.0, **SMALL}))
    assert full[0] == dense[0] and full[1] == pytest.approx(dense[1], abs=1e-4)
    adapter = vlm.adapt(*models.built("qwen3_vl"))
    model = models.asked(adapter, budget=20, tower_attention={"kind": "window", **SMALL})
    assert asked(model)[1] != pytest.approx(dense[1], abs=1e-4)
    with pytest.raises(ValueError, match="reduce must be None for a model that was loaded with tower_attention, got"):
        model.ask("no such file", models.QUESTION, reduce="tome")


def test_load_and_detach(tmp_path):
    folder = saved("qwen3_vl", tmp_path)
    model = load_vlm(folder, device="cpu", attention="hierarchical")
    config = model.adapter.language_of(model.model).config
    assert config._attn_implementation == IMPLEMENTATION and not model.graphs.wanted  # without a GPU
    model.detach()
    assert config._attn_implementation == "sdpa"


def test_a_question_cannot_be_reduced():
    model = models.asked(vlm.adapt(*models.built("qwen3_vl")), budget=20, attention="hierarchical")
    with pytest.raises(ValueError, match="reduce must be None for a model that was loaded with attention, got tome"):
        model.ask("no such file", models.QUESTION, reduce="tome")  # refused before images are read


def test_mistakes_are_found_before_a_model_is_loaded():
    for given, message in (
        (
            {"attention": "sparse"},
            "load_vlm: attention must be one of dense, hierarchical, window, linear, latent, got 'sparse'",
        ),
        ({"tower_attention": "windows"}, "tower_attention must be one of dense, hierarchical, window, .* 'windows'"),
        ({"attention": {"fine": 3}}, "load_vlm: fine must be between 0 and 1, got 3"),
    ):
        with pytest.raises(ValueError, match=message):
            load_vlm("nowhere/at-all", **given)
