"""The example learns from a corpus what only the images tell."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

from tests.test_finetune import ANSWERS, BAR, QUESTION, save_model, save_samples
from texturevlm import corpus

pytest.importorskip("pyarrow", reason="needs the extra corpus")
EXAMPLES = Path(__file__).parent.parent.parent / "examples"
STEPS = 12


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.delitem(sys.modules, "finetune", raising=False)
    spec = importlib.util.spec_from_file_location("finetune_corpus", EXAMPLES / "finetune_corpus.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_tiny_model_learns_eight_samples_from_a_corpus(example, tmp_path, capsys):
    save_model(tmp_path / "model")
    (tmp_path / "images").mkdir()
    save_samples(tmp_path / "images")
    asked = [{"key": f"{answer}.png", "question": QUESTION, "answer": answer} for answer in ANSWERS]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, asked)))
    given = {"questions": tmp_path / "q.jsonl", "budget": 8, "patch": 32, "relevance": "none", "device": "cpu"}
    corpus.build(tmp_path / "images", tmp_path / "out", kind="images", workers=0, **given)
    options = [tmp_path / "out", "--model", tmp_path / "model", "--out", tmp_path / "run", "--steps", STEPS]
    options += ["--batch", 8, "--learning-rate", 0.02, "--log-every", 1, "--workers", 0]
    example.main([str(one) for one in options])
    before, after = map(float, re.search(r"loss (\S+) → (\S+) in", capsys.readouterr().out).groups())
    assert before > 3 and after < BAR
    assert (tmp_path / "run" / "texturevlm.json").is_file()


def test_a_corpus_without_answers_is_refused_by_key(example, tmp_path):
    (tmp_path / "in").mkdir()
    save_samples(tmp_path / "in")
    corpus.build(
        tmp_path / "in", tmp_path / "out", kind="images", workers=0, budget=4, patch=8, relevance="none", device="cpu"
    )
    with pytest.raises(ValueError, match=r"row black\.png must have a question and an answer"):
        _ = example.Samples(tmp_path / "out")[0]
