"""The trained difference of Token Compensator, with a small random tiny_model."""

import pytest
import torch

from texturevlm.ask import load_vlm
from texturevlm_lab.rivals import steps_of
from texturevlm_lab.train.compensator_task import CompensatorTask
from texturevlm_lab.train.config import FitConfig
from texturevlm_lab.train.fit import fit


def settings(asked_pages, tiny_model, **more):
    given = {"budget": 16, "relevance": "none", "length": 3, "batch": 4, "rank": 3, **more}
    return CompensatorTask.Settings(data=asked_pages, model=tiny_model, **given)


def test_it_brings_the_reduced_model_nearer_and_is_used(asked_pages, tiny_model, tmp_path):
    task = CompensatorTask(settings(asked_pages, tiny_model, keep=0.3), device="cpu")
    with torch.no_grad():
        before = float(task.divergence(task.learned, compensated=False))
        assert float(task.divergence(task.learned, compensated=True)) == pytest.approx(
            before, abs=1e-5
        )  # none at first
    weights = {name: value.clone() for name, value in task.vlm.model.state_dict().items()}
    found = fit(task, FitConfig(steps=25, rate=0.01, save_every=0), tmp_path / "run")
    with torch.no_grad():
        after = float(task.divergence(task.learned, compensated=True))
        assert after < 0.7 * before
        assert float(task.divergence(task.learned, compensated=False)) == pytest.approx(before, rel=1e-5)
    assert all(torch.equal(value, weights[name]) for name, value in task.vlm.model.state_dict().items())
    assert set(found) == {"divergence", "uncompensated"}
    file = tmp_path / "run" / "step-00000025" / "weights.safetensors"
    task.steps = steps_of("ask", [("tome", {"keep": 0.3, "difference": file})])
    with torch.no_grad():  # now the step brings the difference by itself
        assert float(task.divergence(task.learned, compensated=False)) == pytest.approx(after, rel=1e-4)
    vlm = load_vlm(
        tiny_model, budget=16, relevance="none", device="cpu", reduce=[("tome", {"keep": 5, "difference": file})]
    )
    assert vlm.ask(asked_pages / "images" / "0.png", "what ?", max_new_tokens=3)


def test_a_difference_of_another_tower_is_refused(asked_pages, tiny_model, tmp_path):
    from safetensors.torch import save_file

    from texturevlm_lab.rivals.hooks.low_rank import LowRankDifference

    other, odd = tmp_path / "other.safetensors", tmp_path / "odd.safetensors"
    save_file(LowRankDifference({"0.mlp": (4, 5)}, 2).state_dict(), other)
    save_file({"weight": torch.zeros(2)}, odd)
    vlm = load_vlm(tiny_model, budget=16, relevance="none", device="cpu")
    for file, message in ((other, "difference must be trained for this tower"), (odd, "must be the weights of a comp")):
        with pytest.raises(ValueError, match=message):
            vlm.ask(asked_pages / "images" / "0.png", "what ?", reduce=[("tome", {"keep": 5, "difference": file})])


@pytest.mark.parametrize(
    "more, message",
    [
        ({"method": "fastv"}, "method must be one of tome, pvc"),
        ({"rank": 0}, "rank must be at least 1"),
        ({"keep": 2.0}, "keep of tome"),
    ],
)
def test_what_is_refused(asked_pages, tiny_model, more, message):
    with pytest.raises(ValueError, match=message):
        CompensatorTask(settings(asked_pages, tiny_model, **more))
