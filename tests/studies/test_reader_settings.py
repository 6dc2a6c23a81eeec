"""The study of how tokens must be chosen for a reader."""

import json
from concurrent.futures import ThreadPoolExecutor

from studies import reader_settings
from tests.evaluate.folders import write_folder
from tests.train.test_reader import small_network
from texturevlm.train.reader.network import save_folder


def test_the_table_is_made(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(reader_settings, "MOST", 3)
    monkeypatch.setattr(reader_settings, "BUDGETS", (12, 24))
    monkeypatch.setattr(reader_settings, "ProcessPoolExecutor", lambda *_, **__: ThreadPoolExecutor(1))
    save_folder(small_network(), tmp_path / "reader")
    for name in ("forms", "letters"):
        write_folder(tmp_path / "data" / name, pages=2, split="train")
    given = [str(tmp_path / "data"), "--out", str(tmp_path / "out"), "--model", str(tmp_path / "reader")]
    assert reader_settings.main([*given, "--settings", "auto,cascade,auto:1"]) == 0
    record = json.loads((tmp_path / "out" / "reader-settings.json").read_text())
    found = record["sets"]["forms"]["found"]
    assert list(found) == ["auto 12", "auto 24", "cascade 12", "cascade 24", "auto:1 12", "auto:1 24"]
    assert all(len(rows) == 4 for rows in found.values()) and found["auto 12"] != found["auto:1 12"]
    said = capsys.readouterr().out
    assert "| all sets | 8 | auto | " in said and "| letters | 4 | cascade | " in said


def test_an_unknown_allocator_is_refused_before_work(tmp_path, capsys):
    given = [str(tmp_path), "--out", str(tmp_path / "out"), "--settings", "auto,quadtre"]
    assert reader_settings.main(given) == 2
    assert "--settings must be one of" in capsys.readouterr().err
