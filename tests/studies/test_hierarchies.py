"""The table compares hierarchies on pages that none was tuned on."""

import json

from tests.evaluate.folders import write_folder
from texturevlm_lab.studies import hierarchies


def test_the_table_is_made(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(hierarchies, "TUNED", 1)
    data = write_folder(tmp_path / "data", pages=3, split="train")
    assert hierarchies.main([str(data), "--out", str(tmp_path / "out"), "--limit", "1"]) == 0
    rows = json.loads((tmp_path / "out" / "hierarchies.json").read_text())["rows"]
    assert len(rows) == 4 and len({row["page"] for row in rows}) == 1
    for row in rows:
        for found in row["ways"].values():
            assert found["holes"] == 0 and 0 <= found["cracks"] < 0.5 and 0 < found["value"] <= 1.000001
    assert {way for row in rows for way in row["ways"]} == {"dag", "quadtree", "layers"}
    assert "| scout | 64 | dag |" in capsys.readouterr().out
    monkeypatch.setattr(hierarchies, "TUNED", 3)
    assert hierarchies.main([str(data), "--out", str(tmp_path / "out")]) == 2
    assert "must have more than 3 pages" in capsys.readouterr().err
