"""The study of whole positions, on a page and a small reader with random weights."""

import json

from studies import asking, whole_positions
from tests.evaluate.folders import write_folder
from tests.train.test_reader import small_network
from texturevlm.train.reader.network import save_folder
from texturevlm.vlm.families import qwen
from texturevlm.vlm.mrope import mrope_positions


def test_the_table_is_made(tmp_path, capsys):
    save_folder(small_network(), tmp_path / "reader")
    for name in asking.SETS:
        write_folder(tmp_path / name, pages=1)
    given = [str(tmp_path), "--out", str(tmp_path / "out"), "--model", str(tmp_path / "reader"), "--budget", "16"]
    assert whole_positions.main([*given, "--split", "eval", "--limit", "1", "--relevance", "none"]) == 0
    rows = json.loads((tmp_path / "out" / "whole-positions.json").read_text())["rows"]
    assert [row["set"] for row in rows] == list(asking.SETS)
    assert any(row["away"] is None or row["away"] > 0 for row in rows)  # positions were moved
    assert qwen.mrope_positions is mrope_positions  # and are exact again
    assert "| whole − exact |" in capsys.readouterr().out
