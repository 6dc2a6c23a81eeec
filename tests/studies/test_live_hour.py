"""The study of an hour, in a few frames."""

import json

from texturevlm_lab.studies import live_hour


def test_the_table_is_made(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(live_hour, "LIMIT", 96)
    assert live_hour.main(["--out", str(tmp_path), "--frames", "32", "--every", "8"]) == 0
    rows = json.loads((tmp_path / "live-hour.json").read_text())["rows"]
    assert len(rows) == 4 and rows[-1]["evicted"] > 0
    assert len({row["slots"] for row in rows}) == 1  # no slot is lost
    assert all(row["held"] > 0 and row["memory"] > 0 for row in rows)
    assert all(0 < row["away"] < 0.5 for row in rows) and all(row["tokens"] <= 96 for row in rows)
    assert "| until minute |" in capsys.readouterr().out
