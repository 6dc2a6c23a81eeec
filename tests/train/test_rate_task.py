"""The trained rate of `dyrate`, with a small random model."""

import json
import math

import pytest
import torch

from tests.evaluate.folders import write_folder
from texturevlm.ask import load_vlm
from texturevlm_lab.rivals import ReduceStep, steps_of
from texturevlm_lab.rivals.dyrate import statistics
from texturevlm_lab.train import rate_task
from texturevlm_lab.train.asked import asked_prompt
from texturevlm_lab.train.config import FitConfig
from texturevlm_lab.train.fit import fit
from texturevlm_lab.train.rate_task import RateTask, answered_with, divergence, rate_example


def settings(asked_pages, tiny_model, **more):
    given = {"budget": 16, "relevance": "none", "length": 4, "batch": 4, **more}
    return RateTask.Settings(data=asked_pages, model=tiny_model, **given)


@torch.no_grad()
def pinball(task):
    return float(task.losses(task._stacked(task.learned), 0)["pinball"])


def test_a_run_and_its_weights(asked_pages, tiny_model, tmp_path):
    task = RateTask(settings(asked_pages, tiny_model), device="cpu")
    assert (len(task.learned), len(task.held)) == (6, 2)
    before = pinball(task)
    found = fit(task, FitConfig(steps=60, rate=0.02, save_every=0), tmp_path / "run")
    assert pinball(task) < before
    assert {"enough", "kept", "rule_enough", "rule_kept", "needed"} == set(found)
    weights = tmp_path / "run" / "step-00000060" / "weights.safetensors"
    (step,) = steps_of("ask", [("dyrate", {"keep": 2, "rate": weights})])
    vlm = load_vlm(tiny_model, budget=16, relevance="none", device="cpu")
    image = asked_pages / "images" / "0.png"
    assert vlm.ask(image, "what ?", reduce=[step], max_new_tokens=4)
    context = _context(vlm, image)
    with torch.no_grad():
        share = float(task.module(statistics(context)))
    assert step.rate(context, 1) == math.ceil(share * len(context))
    assert step.rate(context, len(context)) == len(context)


def _context(vlm, image):
    """What the decoding of one answer shows to a rate."""
    found = []

    def spy(context, keep):
        found.append(context)
        return len(context)

    vlm.ask(image, "what ?", reduce=[("dyrate", {"keep": 1, "rate": spy})], max_new_tokens=3)
    return found[0]


@pytest.mark.parametrize("tolerance, needed", [(1e9, 0.05), (0.0, 1.0)])
def test_what_is_needed_follows_from_the_tolerance(asked_pages, tiny_model, tolerance, needed):
    vlm = load_vlm(tiny_model, budget=16, device="cpu")
    own = settings(asked_pages, tiny_model, tolerance=tolerance)
    prompt = asked_prompt(vlm, asked_pages / "images" / "0.png", "what ?", budget=16, relevance="none")
    assert rate_example(vlm, prompt, own).needed == needed


def test_a_given_answer_is_given_again(asked_pages, tiny_model):
    """With all tokens: the same logits; with few of them: the same answer and other logits."""
    vlm = load_vlm(tiny_model, budget=16, device="cpu")
    prompt = asked_prompt(vlm, asked_pages / "images" / "0.png", "what ?", budget=16, relevance="none")
    answer, full = answered_with(vlm, prompt, ReduceStep("dyrate", 1.0), 4)
    other = (answer + 1) % 20
    again, same = answered_with(vlm, prompt, ReduceStep("dyrate", 1.0), 4, answer)
    assert torch.equal(again, answer)
    torch.testing.assert_close(same, full)
    forced, _ = answered_with(vlm, prompt, ReduceStep("dyrate", 1.0), 4, other)
    assert torch.equal(forced, other)
    again, few = answered_with(vlm, prompt, ReduceStep("dyrate", 1, rate=rate_task._at_once), 4, answer)
    assert torch.equal(again, answer)
    torch.testing.assert_close(few[:2], full[:2])  # tokens leave behind the second
    assert divergence(full[2:], few[2:]) > 0


def test_divergence_of_two_coins():
    fair, loaded = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.25, 0.75]]).log()
    assert divergence(fair, fair) == 0
    assert divergence(fair, loaded) == pytest.approx(0.5 * torch.tensor(4 / 3).log().item(), rel=1e-5)


def test_what_is_refused(asked_pages, tiny_model, tmp_path):
    few = write_folder(tmp_path / "few", pages=1)
    rows = [json.loads(line) | {"split": "train"} for line in (few / "questions.jsonl").read_text().splitlines()]
    (few / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ValueError, match="RateTask: data must have questions about 4 images, got 1"):
        RateTask(settings(few, tiny_model))
    with pytest.raises(ValueError, match="RateTask: length must be at least 3, got 2"):
        RateTask(settings(asked_pages, tiny_model, length=2))
