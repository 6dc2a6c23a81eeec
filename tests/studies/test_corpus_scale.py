"""The study of scale, with few rows: what it plans it reads again, and every image has a row."""

import pytest

from texturevlm_lab.studies import corpus_scale

pytest.importorskip("pyarrow", reason="needs the extra corpus")


def test_a_table_of_a_small_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(corpus_scale, "PER_SHARD", 40)
    monkeypatch.setattr(corpus_scale, "PER_UNIT", 100)
    assert corpus_scale.main(["--out", str(tmp_path), "--images", "60", "--rows", "1050"]) == 0
    table = (tmp_path / "corpus-scale.md").read_text()
    assert "| 60 images of 16², one worker |" in table and "memory at 95% of the run" in table
    assert "| plan of 1,050 images in 11 units |" in table and "| resume with 5 units done |" in table
    assert table in capsys.readouterr().out + "\n"


def test_nothing_to_measure(tmp_path, capsys):
    assert corpus_scale.main(["--out", str(tmp_path), "--images", "0"]) == 2
    assert "--images must be at least 1, got 0" in capsys.readouterr().err
