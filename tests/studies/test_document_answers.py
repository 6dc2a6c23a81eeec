"""Answers from several pages: the same pages are asked together and apart."""

import json

from tests.train.test_reader import small_network
from texturevlm_lab.studies import document_answers, documents
from texturevlm_lab.studies.document_answers import main, prompts_for
from texturevlm_lab.train.reader.network import save_folder


def test_every_way_is_asked(bound_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(documents, "PAGES", 3)
    monkeypatch.setattr(document_answers, "FINE", (1, 2))
    monkeypatch.setattr(document_answers, "LENGTH", 2)
    given_to = []
    monkeypatch.setattr(
        document_answers,
        "prompts_for",
        lambda *asked, together: given_to.append(asked) or prompts_for(*asked, together=together),
    )
    save_folder(small_network(), tmp_path / "reader")
    given = [str(bound_folder), "--out", str(tmp_path / "out"), "--model", str(tmp_path / "reader"), "--device", "cpu"]
    assert main([*given, "--limit", "1", "--files", "1", "--tokens", "64"]) == 0
    (row,) = json.loads((tmp_path / "out" / "document-answers.json").read_text())["rows"]
    assert (row["number"], row["budget"]) == (1, 64)
    (together,), apart = (row["ways"][f"2 pages, {how}"] for how in ("together", "apart"))
    assert together["pages"] == [one["pages"][0] for one in apart] and len(apart) <= 2
    assert row["ways"]["all pages, resized"][0]["pages"] == [1, 2, 3]
    assert "## 64 tokens" in capsys.readouterr().out
    (asked,) = given_to
    ways = [one.way for one in prompts_for(*asked, together=True)]
    assert ways == ["1 page, together", "2 pages, together"]
