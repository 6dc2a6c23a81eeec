"""A ranker that learns from the answers of a small random model."""

from dataclasses import replace

import pytest
import torch

from texturevlm.cli import main
from texturevlm.scout.scout import load_ranker, shipped_parts
from texturevlm.types import Texture
from texturevlm_lab.evaluate.prompted import log_likelihoods
from texturevlm_lab.train import answer_task
from texturevlm_lab.train.answer_examples import AnswerExamples, answers_from, surprise
from texturevlm_lab.train.answer_task import AnswerTask
from texturevlm_lab.train.config import FitConfig
from texturevlm_lab.train.fit import fit
from texturevlm_lab.train.soft_choice import relaxed_top_k


def made(asked_pages, tiny_model, **more):
    given = {"budget": 6, "candidates": 24, "length": 2, "batch": 2, "draws": 3, **more}
    return AnswerTask(AnswerTask.Settings(data=(asked_pages,), model=tiny_model, **given))


@pytest.fixture(scope="module")
def task(asked_pages, tiny_model):
    return made(asked_pages, tiny_model)


def all_surprise(task):
    with torch.no_grad():
        task.module.eval()
        weights = [relaxed_top_k(one.scores(task.module.ranker), 6) for one in task.learned]
        return float(surprise(task.vlm, task.learned, weights).mean())


def test_examples_know_their_candidates(task):
    one = task.learned[0]
    count = len(one.features[0])
    assert count <= 24 and one.place.shape == (count, 2) and one.grid[0] * one.grid[1] == count
    assert len({tuple(place) for place in one.place.tolist()}) == count
    scores = one.scores(task.module.ranker.eval())
    assert float(scores.detach().exp().sum()) == pytest.approx(1, abs=1e-2)
    every = answers_from(task.vlm, [one], [torch.arange(6)], length=2)
    assert isinstance(every[0], str)


def test_weights_of_one_are_the_model_itself(task):
    """The surprise from stored features is that of the model's own tower."""
    one = task.learned[0]
    texture = Texture.open(one.sample.image).mipmapped()
    views = AnswerExamples(task.vlm, task.spotter, candidates=24).views(texture)
    fresh = replace(one.whole, views=views)
    (said,) = log_likelihoods(task.vlm.adapter, [fresh], [one.sample.answers[0]])
    own = surprise(task.vlm, [one], [torch.ones(len(one.features[0]))])
    assert float(own[0]) == pytest.approx(-sum(said) / len(said), rel=1e-3)


def test_likelihood_makes_right_answers_likelier(task, tmp_path):
    before, frozen = all_surprise(task), {k: v.clone() for k, v in task.vlm.model.state_dict().items()}
    start = {k: v.clone() for k, v in task.module.state_dict().items()}
    found = fit(task, FitConfig(steps=6, rate=3e-3, save_every=0), tmp_path / "run")
    assert all_surprise(task) < before
    assert all(torch.equal(value, frozen[name]) for name, value in task.vlm.model.state_dict().items())
    assert set(found) == {"questions", "before", "after", "gain", "gain_low", "gain_high"} and found["questions"] == 2
    weights = tmp_path / "run" / "step-00000006" / "weights.safetensors"
    assert main(["ship-scout", "--ranker", str(weights), "--out", str(tmp_path / "scout.npz")]) == 0
    shipped = load_ranker(tmp_path / "scout.npz", prefix="ranker.")
    assert not torch.equal(shipped.last.weight, shipped_parts()[1].last.weight)
    task.module.load_state_dict(start)


def test_reinforce_raises_what_is_rewarded(task, monkeypatch):
    one = task.learned[0]

    def answered(vlm, examples, chosen, *, length):
        return [one.sample.answers[0] if 5 in some.tolist() else "no" for some in chosen]

    monkeypatch.setattr(answer_task, "answers_from", answered)
    scores = torch.zeros(24, requires_grad=True)
    for step in range(40):
        task._reinforced([one], [scores], step).sum().backward()
    assert int(scores.grad.argmin()) == 5  # descent makes it likelier


def test_wrong_answers_weigh_more(task, monkeypatch):
    right = task.learned[1].sample.answers[0]
    monkeypatch.setattr(answer_task, "answers_from", lambda vlm, some, chosen, *, length: [right] * len(some))
    found = task._weighed().tolist()
    assert found[1] == 1 and max(found) == 2  # the settings' `harder`


@pytest.mark.parametrize(
    "more, message",
    [
        ({"objective": "luck"}, "objective must be one of likelihood, reinforce, cuts, got 'luck'"),
        ({"allocator": "dga"}, "allocator must be one of"),
        ({"candidates": 3}, "candidates must be at least 6, got 3"),
        ({"draws": 1}, "draws must be at least 2"),
        ({"harder": 0.5}, "harder at least 1"),
    ],
)
def test_what_is_refused(asked_pages, tiny_model, more, message):
    with pytest.raises(ValueError, match=message):
        made(asked_pages, tiny_model, **more)


@pytest.fixture(scope="module")
def cutting(asked_pages, tiny_model):
    return made(
        asked_pages, tiny_model, objective="cuts", allocator="dag", candidates=80, budget=9
    )  # five coarse tokens: not all used


def test_nodes_nest_on_the_page(cutting):
    one = cutting.learned[0]
    (view,), roots = one.whole.views, one.counts[0]
    assert one.counts == [roots, 4 * roots, 16 * roots][: len(one.counts)] and len(one.counts) > 1
    low, high = view.centre - view.step * 16, view.centre + view.step * 16  # 32 samples per token
    for node, parent in enumerate(one.parent.tolist()):
        if parent >= 0:
            assert (low[node] >= low[parent] - 1e-3).all() and (high[node] <= high[parent] + 1e-3).all()
            assert (one.place[node] // 2).tolist() == one.place[parent].tolist()
            assert view.step[node].tolist() == pytest.approx((view.step[parent] / 2).tolist())
    mass = one.scores(cutting.module.ranker).detach().exp()
    for node in set(one.parent[one.parent >= 0].tolist()):
        assert float(mass[node]) == pytest.approx(float(mass[one.parent == node].sum()), rel=1e-3)
    best = one.best(mass.log(), 9)
    assert len(best) <= 9 and len(best) > roots and answers_from(cutting.vlm, [one], [best], length=2)


def test_a_relaxed_cut_learns_from_answers(cutting, tmp_path):
    """Gradients reach the scores of every node that can be split, and the loss falls."""
    one = cutting.learned[0]
    scores = one.scores(cutting.module.ranker.eval()).detach().requires_grad_()
    surprise(cutting.vlm, [one], [one.weights(scores, 9, 1.0)]).sum().backward()
    inner = torch.isin(torch.arange(len(scores)), one.parent)
    assert (scores.grad[inner] != 0).all() and not scores.grad[~inner].any()

    def all_of_it():
        with torch.no_grad():
            every = cutting.learned
            weights = [one.weights(one.scores(cutting.module.ranker.eval()), 9, 1.0) for one in every]
            return float(surprise(cutting.vlm, every, weights).mean())

    before = all_of_it()
    fit(cutting, FitConfig(steps=6, rate=3e-3, save_every=0), tmp_path / "run")
    assert all_of_it() < before


def test_a_run_ends_with_a_table_that_says_whether_it_helped(asked_pages, tiny_model, tmp_path, capsys):
    config = tmp_path / "cuts.toml"
    config.write_text(
        f'task = "answers"\n[fit]\nsteps = 1\n[answers]\ndata = ["{asked_pages}"]\nmodel = "{tiny_model}"\n'
        'objective = "cuts"\nallocator = "dag"\nbudget = 9\ncandidates = 64\nlength = 2\nbatch = 1\n'
    )
    assert main(["train", str(config), "--out", str(tmp_path / "run")]) == 0
    page = (tmp_path / "run" / "report.md").read_text()
    assert page.startswith("# cuts: whether training helped") and "1 steps on" in page and "digest" in page
    assert f"| ANLS, {asked_pages.name} | 2 | 1 |" in page and "did not help" in page
    assert page.strip() in capsys.readouterr().out
