"""The task `balance`: a scorer that is often right is trusted more, one that is not is trusted less."""

import json

import pytest
import torch

from tests.evaluate.folders import write_folder, write_rows
from texturevlm.relevance.maps import Balance, ImageMaps
from texturevlm_lab.train import balance_task
from texturevlm_lab.train.balance_task import Asked, Balances, BalanceTask
from texturevlm_lab.train.pages import HELD_OUT, SETS


@pytest.fixture
def data(tmp_path):
    for name in SETS:
        write_folder(tmp_path / name, pages=8 * HELD_OUT if name == "funsd" else 1)
        rows = [json.loads(line) for line in (tmp_path / name / "questions.jsonl").read_text().splitlines()]
        write_rows(tmp_path / name, [row | {"split": "train", "document": row["image"]} for row in rows])
    return tmp_path


def asked(right):
    """A query that points at the first of four cells; the answer is there, or at the last."""
    query = torch.tensor([[[1.0, 0.0], [0.0, 0.0]]])
    maps = ImageMaps(torch.full((1, 2, 2), 0.25), torch.ones(1, 2, 2), torch.ones(1, 2, 2, dtype=torch.bool))
    return Asked(query, maps, query if right else query.flip(1, 2))


@pytest.mark.parametrize("right", [True, False])
def test_trust_follows_how_often_a_scorer_is_right(right):
    task = object.__new__(BalanceTask)
    task.module = Balances(("scout",))
    before = task.module.of(0).explore.item()
    task._loss({0: asked(right)}, 0).backward()
    with torch.no_grad():
        task.module.explore -= task.module.explore.grad
    after = task.module.of(0).explore.item()
    assert after < before if right else after > before


def test_it_begins_even_and_learns_from_held_out_pages(data, monkeypatch):
    monkeypatch.setattr(balance_task, "is_held_out", lambda path: sum(map(ord, path.stem)) % 2 == 0)
    settings = BalanceTask.Settings(data, set="funsd", scorers=("prior",), questions=12, batch=2)
    task = BalanceTask(settings)
    assert len(task.learned) + len(task.held) == 12
    found = task.evaluate()
    assert found["gain_prior"] == pytest.approx(0, abs=1e-5)
    assert found["explore_prior"] == pytest.approx(Balance().explore)
    assert set(task.losses(task.batch(0), 0)) == {"prior"}


def test_bad_settings_are_named(data):
    with pytest.raises(ValueError, match="BalanceTask: scorers must be one of words, scout"):
        BalanceTask(BalanceTask.Settings(data, scorers=("oracle",)))
    with pytest.raises(ValueError, match="BalanceTask: set must be one of"):
        BalanceTask(BalanceTask.Settings(data, set="flickr"))
