"""The study of how tokens must be chosen for a reader."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from studies import asking, reader_settings
from tests.evaluate.folders import write_folder
from tests.train.test_reader import small_network
from texturevlm.train.reader.network import save_folder


def test_the_table_is_made(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(reader_settings, "MOST", 3)
    monkeypatch.setattr(asking, "ProcessPoolExecutor", lambda *_, **__: ThreadPoolExecutor(1))  # sees MOST
    save_folder(small_network(), tmp_path / "reader")
    for name in ("forms", "letters"):
        write_folder(tmp_path / "data" / name, pages=2, split="train")
    given = [str(tmp_path / "data"), "--out", str(tmp_path / "out"), "--model", str(tmp_path / "reader")]
    assert reader_settings.main([*given, "--settings", "auto,cascade,auto:1", "--budgets", "12,24"]) == 0
    record = json.loads((tmp_path / "out" / "reader-settings.json").read_text())
    found = record["sets"]["forms"]["found"]
    assert list(found) == ["auto 12", "auto 24", "cascade 12", "cascade 24", "auto:1 12", "auto:1 24"]
    assert all(len(rows) == 4 for rows in found.values()) and found["auto 12"] != found["auto:1 12"]
    said = capsys.readouterr().out
    assert "| all sets | 8 | auto | " in said and "| letters | 4 | cascade | " in said


@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    [
        ("--settings", "auto,quadtre", "--settings must be one of"),
        ("--settings", "auto:99", "behind the colon, got 'auto:99'"),
        ("--settings", "auto:fine", "behind the colon, got 'auto:fine'"),
        ("--budgets", "0", "--budgets must be at least 1"),
    ],
)
def test_a_wrong_setting_is_refused_before_work(tmp_path, capsys, name, wrong, said):
    assert reader_settings.main([str(tmp_path), "--out", str(tmp_path / "out"), name, wrong]) == 2
    assert said in capsys.readouterr().err
