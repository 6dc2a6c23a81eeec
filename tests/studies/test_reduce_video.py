"""Reductions for videos on made clips, with a small random model."""

import json

import numpy as np
import pytest

from tests.evaluate.reader import saved
from texturevlm_lab.studies import reduce_video as study


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(study, "METHODS", ("", "prunevid"))
    monkeypatch.setattr(study, "MOMENTS", 2)
    monkeypatch.setattr(study, "KINDS", ("once",))
    monkeypatch.setattr(study, "BUDGET", 12)
    monkeypatch.setattr(study, "NEW_TOKENS", 2)


def test_a_page_is_shown_once_or_all_the_time():
    once, question, answer = study.film("once", 3)
    still, _, _ = study.film("still", 3)
    ink = [int((frame[:, 60:] < 100).sum()) for frame in once]
    assert sorted(one > 0 for one in ink) == [False] * 6 + [True] * 2 and question.startswith("What is the ")
    assert all((frame[:, 60:] < 100).sum() > 0 for frame in still) and answer.startswith("$")
    assert not np.array_equal(still[0], still[2]) and np.array_equal(still[0], still[1])


def test_a_table(tmp_path, quick, capsys):
    given = ["--model", str(saved(tmp_path / "reader")), "--out", str(tmp_path), "--limit", "1", "--device", "cpu"]
    given += ["--relevance", "none"]
    assert study.main(given) == 0
    table = capsys.readouterr().out
    for row in ("| once | clip | – | 1 |", "| once | uniform | prunevid | 1 |"):
        assert row in table
    rows = json.loads((tmp_path / "reduce-video.json").read_text())["rows"]
    assert {row["tokens"] for row in rows if not row["key"][2]} != {row["tokens"] for row in rows if row["key"][2]}


def test_mistakes(tmp_path, capsys):
    assert study.main(["--out", str(tmp_path), "--limit", "0"]) == 2
    assert "at least 1" in capsys.readouterr().err
