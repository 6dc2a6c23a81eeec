"""Answers from codes, of a small reader with random weights."""

import json

from tests.evaluate.folders import write_folder
from tests.train.test_reader import small_network
from texturevlm_lab.studies import codebook
from texturevlm_lab.studies.codebook import main
from texturevlm_lab.train.reader.network import save_folder


def test_the_table_is_made(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(codebook, "BUDGET", 24)
    monkeypatch.setattr(codebook, "LENGTH", 3)
    save_folder(small_network(), tmp_path / "reader")
    data = write_folder(tmp_path / "data", pages=10, split="train")
    given = [str(data), "--out", str(tmp_path / "out"), "--model", str(tmp_path / "reader"), "--device", "cpu"]
    assert main([*given, "--pages", "8", "--entries", "16"]) == 0
    found = json.loads((tmp_path / "out" / "codebook.json").read_text())
    assert (found["questions"], found["pages"], found["fitted"], found["feature_bytes"]) == (4, 2, 8, 384)
    rows = {row["book"]: row for row in found["rows"]}
    coarse, fine = rows["16 entries, 3 × 1"], rows["16 entries, 48 × 4"]
    assert (coarse["bytes"], fine["bytes"]) == (6, 384)
    assert fine["lost"] < 0.5 * coarse["lost"]
    plain, refined = (rows[f"16 entries, 12 × 4{more}"] for more in ("", ", 4 of the image's own"))
    assert refined["lost"] < plain["lost"] and refined["bytes"] > plain["bytes"]
    assert "| features, 16 bits per number | 384 | 1 | 0 |" in capsys.readouterr().out


def test_too_few_pages(tmp_path, capsys):
    data = write_folder(tmp_path / "data", pages=2, split="train")
    assert main([str(data), "--out", str(tmp_path / "out")]) == 2
    assert "--pages must be at least 8 and fewer than the 2 of DATA" in capsys.readouterr().err
