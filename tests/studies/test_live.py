"""The study of a cache that is refreshed in part, on one page and a small reader with random weights."""

import json

import numpy as np

from tests.train.test_reader import small_network
from texturevlm_lab.studies import live
from texturevlm_lab.train.reader.network import save_folder


def test_the_probes():
    pages, answers = live.film("one hop", 0)
    assert len(pages) == len(answers) == live.FRAMES + 1 and len(set(answers)) > 1
    assert np.array_equal(pages[0][:, :300], pages[1][:, :300])  # labels stay
    pages, answers = live.film("two hops", 0)
    assert np.array_equal(pages[0][:, 310:], pages[1][:, 310:]) and answers[0] != answers[1]  # values stay


def test_the_table_is_made(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(live, "FRAMES", 1)
    save_folder(small_network(), tmp_path / "reader")
    assert live.main(["--out", str(tmp_path / "out"), "--model", str(tmp_path / "reader"), "--limit", "1"]) == 0
    record = json.loads((tmp_path / "out" / "live.json").read_text())
    full = [row for row in record["rows"] if row["refresh"] == "full"]
    none = [row for row in record["rows"] if row["refresh"] == 0 and row["frame"] == 1]
    assert all(row["same"] and row["away"] == 0 for row in full)
    assert (
        all(row["computed"] < 60 for row in none)
        and "| two hops | full | 1 | 1.00 | 0.000 |" in capsys.readouterr().out
    )
