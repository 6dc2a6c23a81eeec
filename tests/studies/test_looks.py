"""The study of looks, on a page and a small reader with random weights; and its arithmetic."""

import json

from texturevlm_lab.studies import looks


def row(first, second, chance):
    return {
        "first": first,
        "second": second,
        "chance": chance,
        "tokens": {"first": 10, "second": 40, "20": 20, "40": 40},
        "fixed": {"20": first, "40": second},
        "seconds": {"first": 1.0, "second": 3.0, "20": 2.0, "40": 4.0},
    }


def test_who_is_sure_pays_for_one_look():
    rows = [row(1.0, 1.0, 0.99), row(0.0, 1.0, 0.3), row(0.0, 0.0, 0.85), row(1.0, 0.0, 0.75)]
    found = {name: numbers for name, *numbers in looks.policies(rows, 40)}
    assert found["one look, a quarter"] == [0.5, 10.0, 1.0, 1.0]
    assert found["one look, 40 tokens"] == [0.5, 40.0, 4.0, 1.0]
    assert found["two looks, always"] == [0.5, 40.0, 3.0, 0.0]
    assert found["looks that stop, sure = 0.7"] == [0.75, 17.5, 1.5, 0.75]
    assert found["looks that stop, sure = 0.95"] == [0.5, 32.5, 2.5, 0.25]
    assert looks.calibration(rows) == [("0.2 to 0.4", 1, 0.0), ("0.6 to 0.8", 1, 1.0), ("0.8 to 1", 2, 0.5)]


def test_the_table_is_made(tmp_path, asked_with, capsys, monkeypatch):
    monkeypatch.setattr(looks, "MOST", 4)
    assert looks.main(asked_with) == 0
    record = json.loads((tmp_path / "out" / "looks.json").read_text())
    assert all(one["tokens"]["first"] <= 4 < one["tokens"]["16"] <= 16 for one in record["rows"])
    assert "looks that stop, sure = 0.8" in capsys.readouterr().out
