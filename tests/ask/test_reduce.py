"""Questions to models whose visual tokens are reduced."""

import pytest

from tests.ask import models
from tests.ask.test_load import saved
from texturevlm.ask import load_vlm
from texturevlm_lab.rivals.hooks.places import PLACES_OF

REDUCIBLE = [name for name in models.FAMILIES if name in PLACES_OF]


def lengths(vlm, **options):
    """An answer, and how many tokens each layer of the language model read of the prompt."""
    found = []
    layers = vlm.adapter.language_of(vlm.model).layers
    hooks = [layer.register_forward_pre_hook(lambda _, args: found.append(args[0].shape[1])) for layer in layers]
    try:
        answer = vlm.ask(models.noise(128, 128), models.QUESTION, relevance="none", max_new_tokens=3, **options)
    finally:
        for one in hooks:
            one.remove()
    return answer, found[: len(layers)]


@pytest.fixture(params=REDUCIBLE, scope="module")
def adapter(request):
    from texturevlm import vlm

    return vlm.adapt(*models.built(request.param))


@pytest.fixture(scope="module")
def plain(adapter):
    return models.asked(adapter, budget=12, relevance="none")


def test_tokens_leave(plain):
    _, whole = lengths(plain)
    words = whole[0] - 12
    assert whole == [12 + words] * 3
    assert lengths(plain, reduce="visionzip", keep=5)[1] == [5 + words] * 3
    assert lengths(plain, reduce=[("tome", 0.5), ("fastv", 2)])[1] == [6 + words, 2 + words, 2 + words]


@pytest.mark.parametrize("keep", [3, 0.25])
def test_steps_lead_to_a_shared_budget_together(plain, keep):
    """keep is what is left behind the last step; each keeps the same share."""
    words = lengths(plain)[1][0] - 12
    steps = ["divprune", ("fastv", {"layer": 1})]
    assert lengths(plain, reduce=steps, keep=keep)[1] == [6 + words, 3 + words, 3 + words]
    assert lengths(plain, reduce=steps, budget=3)[1] == [4 + words, 3 + words, 3 + words]  # of 6 that are chosen


def test_keeping_everything_changes_no_answer(plain):
    answer, whole = lengths(plain)
    assert lengths(plain, reduce="sparsevlm", keep=1.0) == (answer, whole)


def test_without_keep_twice_the_budget_is_chosen_and_the_budget_stays(plain):
    _, whole = lengths(plain)
    words = whole[0] - 12
    chosen = plain.ask(
        models.noise(128, 128), models.QUESTION, budget=6, reduce="divprune", return_details=True, max_new_tokens=1
    )
    assert chosen.placements[0].tokens > 6
    assert lengths(plain, budget=6, reduce="divprune")[1] == [6 + words] * 3


def test_a_vlm_that_always_reduces(adapter):
    vlm = models.asked(adapter, budget=12, relevance="none", reduce="stride", keep=4)
    _, few = lengths(vlm)
    words = few[0] - 4
    assert lengths(vlm, keep=3)[1] == [3 + words] * 3
    assert lengths(vlm, reduce=[])[1] == [12 + words] * 3
    assert (
        "".join(vlm.ask(models.noise(128, 128), models.QUESTION, stream=True, max_new_tokens=3)).strip()
        == lengths(vlm)[0]
    )


def test_several_questions_are_reduced_together(plain):
    image = models.noise(128, 128)
    questions = [models.QUESTION, "total ?"]
    options = {"reduce": "visionzip", "keep": 5, "max_new_tokens": 3}
    assert plain.ask(image, questions, **options) == [plain.ask(image, one, **options) for one in questions]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"reduce": "visionzip", "keep": 0}, "ask: keep of visionzip must be at least 1, got 0"),
        ({"reduce": "visionzip", "keep": 13}, "ask: keep of visionzip must be at most the budget, 12, got 13"),
        ({"reduce": ["tome", "fastv"], "keep": 13}, "ask: keep of tome must be at most the budget, 12, got 13"),
        ({"reduce": [("tome", 4), ("fastv", 5)]}, "ask: keep of fastv must be at most what tome leaves, 4, got 5"),
        ({"reduce": [("tome", 0.5), ("fastv", 7)]}, "ask: keep of fastv must be at most what tome leaves, 6, got 7"),
        ({"reduce": [("tome", 25), "fastv"]}, "ask: keep of tome must be at most what is chosen, 24, got 25"),
        ({"reduce": "visonzip", "keep": 1}, "ask: reduce must be one of random, stride, tome"),
        ({"keep": 1}, "ask: keep needs reduce"),
        ({"reduce": [("fastv", {"keep": 1, "layer": 3})]}, "ask: layer of fastv must be between 1 and 2, got 3"),
    ],
)
def test_what_is_refused_before_anything_is_opened(plain, options, message):
    with pytest.raises(ValueError, match=message):
        plain.ask("gone.png", models.QUESTION, **options)


def test_a_family_that_cannot_be_reduced():
    from texturevlm import vlm

    adapter = vlm.adapt(*models.built("llava_onevision"))
    with pytest.raises(ValueError, match="VLM: reduce must be None for llava_onevision, got fastv; it works for"):
        models.asked(adapter, reduce="fastv", keep=4)
    with pytest.raises(ValueError, match="ask: reduce must be None for llava_onevision"):
        models.asked(adapter).ask(models.noise(64, 64), models.QUESTION, reduce="fastv", keep=4)


def test_a_captured_model_falls_back_and_says_why(adapter):
    if not adapter.captured:
        pytest.skip("never captured")
    vlm = models.asked(adapter, budget=12, relevance="none", captured=True)
    plain, _ = lengths(vlm)
    reasons = vlm.reasons
    assert lengths(vlm, reduce="visionzip", keep=5)[1][0] < lengths(models.asked(adapter, budget=12))[1][0]
    assert "tokens that visionzip reduces are not captured; those of random, stride, divprune," in vlm.reasons[0]
    assert vlm.graphs.decode.replay is not None  # but its answer is decoded from a graph
    assert lengths(vlm)[0] == plain
    assert vlm.reasons == reasons


@pytest.mark.parametrize("method", ["visionzip", "pyramiddrop", "dyrate"])
def test_what_is_not_captured_before_the_first_token_is_decoded_from_a_graph(adapter, method):
    """But for tokens that leave meanwhile."""
    if not adapter.captured:
        pytest.skip("never captured")
    asked = {"reduce": method, "keep": 5, "max_new_tokens": 4, "return_details": True}
    found = []
    for captured in (False, True):
        vlm = models.asked(adapter, budget=12, relevance="none", captured=captured)
        image, questions = models.noise(128, 128), [models.QUESTION, "and there ?"]
        found.append([vlm.ask(image, models.QUESTION, **asked), *vlm.ask(image, questions, **asked)])
    replay = vlm.graphs.decode.replay
    assert (replay is not None) == (method != "dyrate")
    for one, other in zip(*found):
        assert one.text == other.text and one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"reduce": "divprune", "keep": 5},
        {"reduce": "cdpruner", "keep": 0.5},
        {"reduce": [("stride", 9), ("mmtok", 4)]},
        {"reduce": "divprune", "budget": 7},
    ],
    ids=str,
)
def test_what_drops_tokens_behind_the_projector_is_captured(adapter, options):
    """Between the graph of the tower and that of the prefill; the answers are those of the ordinary path."""
    if not adapter.captured:
        pytest.skip("never captured")
    plain, captured = (models.asked(adapter, budget=12, relevance="none", captured=one) for one in (False, True))
    for size, question in (((128, 128), models.QUESTION), ((40, 200), "and there ?")):
        asked = {"question": question, "max_new_tokens": 4, "return_details": True, **options}
        wanted, found = (vlm.ask(models.noise(*size), **asked) for vlm in (plain, captured))
        assert found.text == wanted.text
        assert found.logprobs == pytest.approx(wanted.logprobs, abs=1e-4)
    assert captured.reasons == ["graphs are for a GPU, and this runs on cpu"]
    assert captured.graphs.fixed.narrow.budget < captured.graphs.fixed.wide.budget


def test_an_attention_that_cannot_be_masked(adapter):
    asked = models.asked(adapter, budget=8, relevance="none")
    config = adapter.language_of(adapter.model).config
    before = config._attn_implementation
    config._attn_implementation = "flex_attention"
    try:
        with pytest.raises(ValueError, match=r"must be sdpa, eager or flash_attention_2 for reduce='fastv', got flex"):
            asked.ask("no such file", models.QUESTION, reduce="fastv", keep=2)
    finally:
        config._attn_implementation = before


def test_a_folder_is_loaded_and_reduced(tmp_path):
    folder = saved("qwen3_vl", tmp_path)
    options = {"budget": 12, "relevance": "none", "device": "cpu"}
    loaded = load_vlm(folder, reduce="visionzip", keep=5, dtype="bfloat16", **options)
    answer, few = lengths(loaded)
    assert answer
    assert lengths(loaded, reduce=[])[1][0] - few[0] == 7
    for wrong, message in [
        ({"reduce": "visionzip", "keep": 13}, "load_vlm: keep of visionzip must be at most the budget, 12, got 13"),
        ({"reduce": [("fastv", {"keep": 2, "layer": 9})]}, "load_vlm: layer of fastv must be between 1 and 2, got 9"),
        ({"reduce": 7}, "load_vlm: reduce must be a name or a list"),
        ({"reduce": "fastv", "keep": 9.0}, "load_vlm: keep of fastv must be a whole number of tokens, or a share"),
    ]:
        (folder / "model.safetensors").unlink(missing_ok=True)  # refused before the weights are read
        with pytest.raises((ValueError, TypeError), match=message):
            load_vlm(folder, **options, **wrong)
