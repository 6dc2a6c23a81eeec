"""The measurement of pruning, on images made here."""

import json

import pytest

from tests.evaluate.folders import write_folder
from texturevlm.evaluate import pruning


def test_a_report_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pruning, "find_spec", lambda name: None)  # without an OCR engine: the map of `none` alone
    folder = write_folder(tmp_path / "data")
    assert pruning.main([str(folder), "--out", str(tmp_path / "out"), "--limit", "2"]) == 0
    record = json.loads((tmp_path / "out" / "pruning.json").read_text())
    assert record["same"] and list(record["read"]) == ["none"]
    assert "| 10% |" in (tmp_path / "out" / "pruning.md").read_text()
    assert "always that of testing every cell" in capsys.readouterr().out


@pytest.mark.parametrize("options", [["--limit", "0"], []])
def test_bad_input_is_told(tmp_path, capsys, options):
    assert pruning.main([str(tmp_path / "none"), "--out", str(tmp_path / "out"), *options]) == 2
    assert "texturevlm.evaluate.pruning: " in capsys.readouterr().err
