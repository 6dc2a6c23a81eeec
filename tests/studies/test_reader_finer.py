"""The study of how finely a reader must see print."""

import json
from concurrent.futures import ThreadPoolExecutor

from studies import reader_finer as finer
from tests.evaluate.folders import write_folder
from tests.train.test_reader import small_network
from texturevlm.train.reader.network import save_folder


def test_the_table_is_made(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(finer, "MOST", 3)
    monkeypatch.setattr(finer, "BUDGETS", (12, 24))
    monkeypatch.setattr(finer, "FINER", (1.0, 1.6))
    monkeypatch.setattr(finer, "ProcessPoolExecutor", lambda *_, **__: ThreadPoolExecutor(1))  # sees these numbers
    save_folder(small_network(), tmp_path / "reader")
    write_folder(tmp_path / "data" / "forms", pages=2)
    given = [str(tmp_path / "data"), "--out", str(tmp_path / "out"), "--model", str(tmp_path / "reader")]
    assert finer.main([*given, "--split", "eval"]) == 0
    record = json.loads((tmp_path / "out" / "reader-finer.json").read_text())
    assert list(record["scores"]["forms"]) == ["1 12", "1 24", "1.6 12", "1.6 24"]
    count = len(record["pages"]["forms"])
    assert count >= 2 and f"| forms | {count} | 1.6 |" in capsys.readouterr().out
