"""The calibration of a model's confidence: what is learned, and that nothing is asked twice."""

import json
from types import SimpleNamespace

import pytest
import torch

from tests.evaluate.folders import write_folder
from texturevlm.ask.answer import AnswerFeatures, chance_of
from texturevlm_lab.train import confidence_task
from texturevlm_lab.train.confidence_task import Calibration, ConfidenceTask
from texturevlm_lab.train.config import FitConfig
from texturevlm_lab.train.fit import fit


def test_the_table_gives_the_chance_that_was_learned():
    features = torch.randn(40, 4, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 2.0, 0.5, 0.1])
    network = Calibration(features)
    with torch.no_grad():
        network.weight.copy_(torch.tensor([1.0, -0.5, 0.3, 2.0]))
        network.constant.fill_(0.7)
        wanted = network(features).sigmoid()
    found = [chance_of(AnswerFeatures(*row), network.table()) for row in features.tolist()]
    assert found == pytest.approx(wanted.tolist(), abs=2e-3)


def test_sure_answers_become_likely(tmp_path, monkeypatch):
    """Answers with a high log-probability are right, and others are wrong."""
    write_folder(tmp_path / "data", pages=8, split="train")
    asked = []

    class Model:
        def ask(self, image, question, **options):
            asked.append(question)
            good = len(asked) % 2 == 0
            features = AnswerFeatures(-0.01 if good else -1.5, 0.1 if good else 1.2, 0.9 if good else 0.2)
            answers = [row["answers"][0] for row in rows if row["question"] == question]
            return SimpleNamespace(text=answers[0] if good else "zzzz", features=features)

    rows = [json.loads(line) for line in (tmp_path / "data" / "questions.jsonl").read_text().splitlines()]
    monkeypatch.setattr(confidence_task, "load_vlm", lambda *_, **__: Model())
    settings = ConfidenceTask.Settings((tmp_path / "data",), tmp_path / "answers.jsonl", limit=16)
    task = ConfidenceTask(settings, device="cpu")
    count = len(asked)
    found = fit(task, FitConfig(steps=150, rate=0.1, decay=0.0, save_every=0), tmp_path / "run", settings={})
    assert found["brier"] < 0.1 and found["right if sure"] == 1.0
    table = task.network.table()
    assert (
        chance_of(AnswerFeatures(-0.01, 0.1, 0.9), table) > 0.8 > 0.2 > chance_of(AnswerFeatures(-1.5, 1.2, 0.2), table)
    )
    ConfidenceTask(settings, device="cpu")
    assert len(asked) == count  # nothing is asked twice


def test_one_kind_of_answer_teaches_nothing(tmp_path, monkeypatch):
    write_folder(tmp_path / "data", pages=2, split="train")
    model = SimpleNamespace(ask=lambda *_, **__: SimpleNamespace(text="zzzz", features=AnswerFeatures(0, 0, 0)))
    monkeypatch.setattr(confidence_task, "load_vlm", lambda *_, **__: model)
    settings = ConfidenceTask.Settings((tmp_path / "data",), tmp_path / "answers.jsonl")
    with pytest.raises(ValueError, match="confidence: data must have right and wrong answers"):
        ConfidenceTask(settings, device="cpu")
