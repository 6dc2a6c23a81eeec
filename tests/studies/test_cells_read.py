"""The table of cells that a search reads."""

import json

from studies.cells_read import main
from tests.evaluate.folders import write_folder


def test_the_table_is_made(tmp_path, capsys):
    data = write_folder(tmp_path / "data", pages=3, split="train")
    assert main([str(data), "--out", str(tmp_path / "out"), "--limit", "2"]) == 0
    found = json.loads((tmp_path / "out" / "cells-read.json").read_text())
    assert found["pages"] == 2 and [row["scorer"] for row in found["rows"]] == ["scout", "none"] * 2
    assert all(0 < row["read"] < 1 and row["looks"] >= 1 for row in found["rows"])
    assert "| scout |" in capsys.readouterr().out
