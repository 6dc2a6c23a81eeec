"""Answers from several pages: each number of fine pages is asked."""

import json

from tests.train.test_reader import small_network
from texturevlm_lab.studies import document_answers, documents
from texturevlm_lab.studies.document_answers import main
from texturevlm_lab.train.reader.network import save_folder


def test_every_way_is_asked(bound_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(documents, "PAGES", 3)
    monkeypatch.setattr(document_answers, "FINE", (1, 2))
    monkeypatch.setattr(document_answers, "LENGTH", 2)
    save_folder(small_network(), tmp_path / "reader")
    given = [str(bound_folder), "--out", str(tmp_path / "out"), "--model", str(tmp_path / "reader"), "--device", "cpu"]
    assert main([*given, "--limit", "1", "--files", "1", "--tokens", "64"]) == 0
    (row,) = json.loads((tmp_path / "out" / "document-answers.json").read_text())["rows"]
    assert (row["number"], row["budget"]) == (1, 64)
    assert list(row["ways"]) == ["1 page, together", "2 pages, together"]
    pages = [said["pages"] for (said,) in row["ways"].values()]
    assert len(pages[0]) == 1 and set(pages[0]) <= set(pages[1]) <= {1, 2, 3}
    assert "## 64 tokens" in capsys.readouterr().out
