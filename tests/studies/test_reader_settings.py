"""The study of how tokens must be chosen for a reader."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.evaluate.folders import write_folder
from tests.train.test_reader import small_network
from texturevlm.ask import VLM
from texturevlm_lab.studies import asking, reader_settings
from texturevlm_lab.studies.held_out_pages import origin_page
from texturevlm_lab.studies.reader_settings import _together
from texturevlm_lab.train.reader.network import save_folder


def test_the_table_is_made(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(reader_settings, "MOST", 3)
    monkeypatch.setattr(asking, "ProcessPoolExecutor", lambda *_, **__: ThreadPoolExecutor(1))  # sees MOST
    chosen, config_for = [], VLM.config_for
    monkeypatch.setattr(VLM, "config_for", lambda self, **how: chosen.append(how) or config_for(self, **how))
    save_folder(small_network(), tmp_path / "reader")
    for name in ("forms", "letters", "annotated-chartqa"):
        write_folder(tmp_path / "data" / name, pages=2, split="train")
    given = [str(tmp_path / "data"), "--out", str(tmp_path / "out"), "--model", str(tmp_path / "reader")]
    assert reader_settings.main([*given, "--settings", "auto,cascade,auto:1", "--budgets", "12,24"]) == 0
    record = json.loads((tmp_path / "out" / "reader-settings.json").read_text())
    found = record["sets"]["forms"]["found"]
    assert list(found) == ["auto 12", "auto 24", "cascade 12", "cascade 24", "auto:1 12", "auto:1 24"]
    assert all(len(rows) == 4 for rows in found.values()) and found["auto 12"] != found["auto:1 12"]
    said = capsys.readouterr().out
    assert "| all sets | 12 | auto | " in said and "| all but charts | 8 | auto | " in said
    assert "| letters | 4 | cascade | " in said
    assert not (tmp_path / "out" / "reader-settings.jsonl").exists()
    reader_settings._loaded.cache_clear()
    given[2] = str(tmp_path / "alone")
    assert reader_settings.main([*given, "--settings", "auto", "--budgets", "12,24"]) == 0
    alone = json.loads((tmp_path / "alone" / "reader-settings.json").read_text())["sets"]["forms"]["found"]
    assert {name: found[name] for name in alone} == alone  # no setting leaks into the next page
    assert {how["relevance"] for how in chosen} == {"scout"}


@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    [
        ("--settings", "auto,quadtre", "--settings must be one of"),
        ("--settings", "auto:99", "behind the colon, got 'auto:99'"),
        ("--settings", "auto:fine", "behind the colon, got 'auto:fine'"),
        ("--settings", "auto:", "behind the colon, got 'auto:'"),
    ],
)
def test_a_wrong_setting_is_refused_before_work(tmp_path, capsys, name, wrong, said):
    assert reader_settings.main([str(tmp_path), "--out", str(tmp_path / "out"), name, wrong]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["96,0", "96,x"])
def test_wrong_budgets_are_refused(tmp_path, capsys, wrong):
    with pytest.raises(SystemExit) as ended:
        reader_settings.main([str(tmp_path), "--out", str(tmp_path / "out"), "--budgets", wrong])
    assert ended.value.code == 2
    assert f"argument --budgets: must be whole numbers N,N from 1, got '{wrong}'" in capsys.readouterr().err


def test_scores_stay_beside_their_pages():
    """A page that stands in two sets is one page: copies of it are not independent."""
    parts = [{"pages": ["s/1", "s/2"], "found": {"auto 96": [1, 2]}}, {"pages": ["s/1"], "found": {"auto 96": [3]}}]
    assert _together(parts) == {"pages": ["s/1", "s/2", "s/1"], "found": {"auto 96": [1, 2, 3]}}
    assert origin_page("annotated-sroie", "015.jpg") == origin_page("rewritten-sroie", "015-1.png") == "sroie/015"
    assert origin_page("annotated-funsd", "a-1.png") == "funsd/a-1" and origin_page("mine", "a-1.png") == "mine/a-1.png"
