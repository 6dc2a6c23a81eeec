"""What users may ask for, and what is refused before slow work."""

import re

import pytest

from texturevlm_lab.rivals import METHODS, PLACES, ReduceStep, check_needs, planned, stage_budget, steps_of


def test_the_forms_of_a_step():
    assert steps_of("ask", None) == steps_of("ask", []) == ()
    assert steps_of("ask", "visionzip", 64) == (ReduceStep("visionzip", 64),)
    assert steps_of("ask", [("tome", 0.5), ("fastv", {"keep": 64, "layer": 3})]) == (
        ReduceStep("tome", 0.5),
        ReduceStep("fastv", 64, (3,)),
    )
    assert steps_of("ask", ["tome", ("pyramiddrop", {"layer": [1, 2, 3]})], 9) == (
        ReduceStep("tome", 9),
        ReduceStep("pyramiddrop", 9, (1, 2, 3)),
    )
    assert steps_of("ask", steps_of("ask", "fastv", 5)) == (ReduceStep("fastv", 5),)


@pytest.mark.parametrize(
    "reduce, keep, message",
    [
        ("visionzip", 0, "ask: keep of visionzip must be at least 1, got 0"),
        ("visionzip", -3, "ask: keep of visionzip must be at least 1, got -3"),
        ("visionzip", 9.0, "share above 0 and at most 1, got 9.0"),
        ("visionzip", 0.0, "share above 0 and at most 1, got 0.0"),
        ("visionzip", float("nan"), "share above 0 and at most 1, got nan"),
        ("visionzip", True, "keep of visionzip must be a whole number, got True"),
        ("visionzip", "64", "keep of visionzip must be a whole number, got '64'"),
        ("visionzip", None, "keep must be given for visionzip"),
        (None, 64, "keep needs reduce, one of random"),
        ("vision", 64, "reduce must be one of random, stride"),
        ([], 64, "keep needs reduce"),
        (7, 64, "reduce must be a name or a list"),
        ([("tome", 1, 2)], 64, "reduce must be a name or a list"),
        ([("tome", {"keeps": 1})], 64, "option of tome must be one of keep, layer, rate, difference, got 'keeps'"),
        ([("tome", {"layer": 1})], 64, "vscan, aim, prunevid, pace, dtoma; tome acts elsewhere, got layer=1"),
        ([("pyramiddrop", {"layer": 1})], 64, "layer of pyramiddrop must be a list of 3 numbers, one per stage, got 1"),
        (("fastv", 8), 64, "a list of (name, keep), such as [('tome', 0.5)], got ('fastv', 8)"),
        ([("fastv", {"rate": "w.safetensors"})], 64, "rate is for dyrate; fastv does not act while decoding"),
        (
            [("fastv", {"difference": "/w"})],
            64,
            "difference is for tome, pvc; fastv does not act in the tower, got '/w'",
        ),
        ([("tome", {"difference": "/gone"})], 64, "difference of tome must be a file of weights, got '/gone'"),
        ([("dyrate", {"rate": "/gone"})], 64, "rate of dyrate must be a file of weights or a function, got '/gone'"),
    ],
)
def test_what_is_refused(reduce, keep, message):
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=re.escape(message)):
        steps_of("ask", reduce, keep)


def test_stages_are_laid_out_by_depth():
    def after(name, layers):
        return [one.after for one in planned("ask", steps_of("ask", name, 9), layers, 24)]

    assert after("fastv", 32) == [2]
    assert after("pyramiddrop", 32) == [8, 16, 24]
    assert after("sparsevlm", 32) == [2, 6, 15]
    assert after("vscan", 28) == [0, 14]
    assert after("pyramiddrop", 3) == [1, 2, 2]
    assert after("tome", 32) == [3, 6, 9, 12, 15, 18, 21]  # of the tower
    assert after("pace", 32) == [0, 0, 2]
    assert after("dyrate", 32) == [16]
    assert [one.left for one in planned("ask", steps_of("ask", "pyramiddrop", 9), 32, 24)] == [3, 2, 1]


@pytest.mark.parametrize("layer", [0, 32, -1])
def test_a_layer_that_does_not_exist(layer):
    with pytest.raises(ValueError, match=f"layer of fastv must be between 1 and 31, got {layer}"):
        planned("ask", steps_of("ask", [("fastv", {"keep": 9, "layer": layer})]), 32, 24)


def test_steps_follow_the_model():
    with pytest.raises(ValueError, match="tome acts after block 3 of the tower, fastv before it in the list after lay"):
        planned("ask", steps_of("ask", ["fastv", "tome"], 9), 32, 24)
    order = ["pixelprune", "tome", "divprune", "fastv", "dyrate"]
    assert len(planned("ask", steps_of("ask", order, 9), 32, 24)) == 11


def test_needs_that_a_model_cannot_give():
    given = {"projector": {"question"}, "llm": {"asked"}}
    works = "these work: random, stride, divprune, fastv, pyramiddrop, cdpruner, mmtok, prunevid, dtoma"
    for method, message in {
        "visionzip": "ask: visionzip needs keys and received at the place projector, which is not given by glm4v; "
        + works,
        "sparsevlm": "ask: sparsevlm needs question at the place llm, which is not given by glm4v",
        "tome": "ask: tome acts at the place tower, which is not hooked for glm4v",
        "dyrate": "ask: dyrate acts at the place decode, which is not hooked for glm4v",
    }.items():
        with pytest.raises(ValueError, match=re.escape(message)):
            check_needs("ask", steps_of("ask", method, 9), given, "glm4v")
    check_needs("ask", steps_of("ask", ["random", "fastv", "mmtok"], 9), given, "glm4v")


def test_published_budgets_of_pyramiddrop():
    """A half, a quarter and an eighth."""
    counts = [576]
    for left in (3, 2, 1):
        counts.append(stage_budget(counts[-1], 72, left))
    assert counts == [576, 288, 144, 72]
    assert stage_budget(10, 64, 2) == 10


def test_a_share_and_a_number():
    assert ReduceStep("fastv", 0.25).target(10) == 2
    assert ReduceStep("fastv", 0.01).target(10) == 1
    assert ReduceStep("fastv", 1.0).target(10) == 10
    assert ReduceStep("fastv", 64).target(10) == 10


def test_every_stage_acts_somewhere_known():
    assert {place for method in METHODS.values() for place in method.acts} == set(PLACES)
