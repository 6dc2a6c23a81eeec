"""The study of whole positions, on a page and a small reader with random weights."""

import json

from texturevlm.vlm.families import qwen
from texturevlm.vlm.places import mrope_positions
from texturevlm_lab.studies import asking, whole_positions


def test_the_table_is_made(tmp_path, asked_with, capsys, monkeypatch):
    monkeypatch.setattr(whole_positions, "MOST", 4)
    assert whole_positions.main(asked_with) == 0
    rows = json.loads((tmp_path / "out" / "whole-positions.json").read_text())["rows"]
    assert [row["set"] for row in rows] == list(asking.SETS)
    assert any(row["away"] is None or row["away"] > 0 for row in rows)  # positions were moved
    assert qwen.mrope_positions is mrope_positions  # and are exact again
    assert "| whole − exact |" in capsys.readouterr().out
