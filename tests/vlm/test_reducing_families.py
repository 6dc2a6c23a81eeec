"""Families that allow some reductions only, and those that allow none."""

import pytest
import torch

from tests.vlm import small
from tests.vlm.test_reducing import COUNT, eager_weights, inputs_for, kept_counts, logits, spied
from texturevlm import vlm
from texturevlm_lab.rivals import METHODS, steps_of
from texturevlm_lab.rivals.hooks.reducible import check_reducible

stride = METHODS["stride"].stages[0].reduce


@pytest.fixture(scope="module")
def glm():
    adapter = vlm.adapt(*small.glm4v())
    yield adapter
    adapter.restore()


@pytest.mark.parametrize("method", ["visionzip", "hired", "mmtok", "divprune"])
def test_glm_behind_the_projector(glm, method):
    inputs = inputs_for(glm)
    expected = logits(glm, inputs)
    torch.testing.assert_close(logits(glm, inputs, steps_of("ask", method, 1.0)), expected)
    assert kept_counts(glm, inputs, steps_of("ask", method, 6)) == [6, 6, 6]


def test_glm_says_what_its_tower_attends_to(glm, monkeypatch):
    found = spied(monkeypatch, (stride, "projector", ("received",)))
    inputs = inputs_for(glm)
    logits(glm, inputs, steps_of("ask", "spy", 5))
    (weights,) = eager_weights(glm, glm.tower.blocks[-1].attn, inputs)
    torch.testing.assert_close(found[0][0].received, weights[0].mean(0).sum(0).view(COUNT, -1).mean(1))


@pytest.mark.parametrize("method, place", [("fastv", "llm"), ("aim", "llm"), ("dyrate", "decode")])
def test_glm_refuses_what_acts_in_its_language_model(glm, method, place):
    message = (
        f"ask: {method} acts at the place {place}, which is not hooked for glm4v; these work: random, stride, tome, "
    )
    with pytest.raises(ValueError, match=message):
        check_reducible("ask", glm.config, steps_of("ask", method, 4))


@pytest.mark.parametrize("family", ["gemma3", "llava_onevision"])
def test_families_that_are_not_reduced_say_what_would_work(family):
    config = {**small.MORE, **small.LLAVAS}[family]()[0].config
    with pytest.raises(ValueError) as error:
        check_reducible("ask", config, steps_of("ask", "tome", 4))
    said = str(error.value)
    assert said.startswith(f"ask: reduce must be None for {family}, got tome; it works for qwen3_vl, ")
    assert "internvl, smolvlm, llava; " in said and said.endswith("choose fewer tokens with budget")
