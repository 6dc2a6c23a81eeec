"""One question to many pages: files are bound from different documents, and every way is scored on the same answers."""

import json

import pytest

from texturevlm_lab.evaluate.data import load_data
from texturevlm_lab.studies import documents
from texturevlm_lab.studies.documents import BLIND, OURS, bound_files, main


def test_a_file_has_one_page_per_document(bound_folder, monkeypatch):
    monkeypatch.setattr(documents, "PAGES", 3)
    files = bound_files(load_data(bound_folder, split="train").samples, 2)
    names = [sample.image.stem.partition("_")[0] for file in files for sample in file]
    assert [len(file) for file in files] == [3, 3] and len(set(names)) == 6
    with pytest.raises(ValueError, match="DATA must hold 4 times 3 documents, got 7"):
        bound_files(load_data(bound_folder, split="train").samples, 4)


def test_the_study_compares_choices_and_ways(bound_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "PAGES", 4)
    monkeypatch.setattr(documents, "FINE_PAGES", 1)
    assert main([str(bound_folder), "--out", str(tmp_path / "out"), "--traversed", "1", "--tokens", "32"]) == 0
    record = json.loads((tmp_path / "out" / "documents.json").read_text())
    assert record["seen"]["n"] == 4 and record["traversed"]["n"] == record["legible"]["n"] == 1
    ours, blind = (record["seen"]["means"][name][0] for name in (OURS, BLIND))
    assert ours >= 0.75 > blind == 0.25  # one page for all questions is right for one of four
    assert set(record["legible"]["means"]) == {"one traversal", "the top 5 pages, resized", "all 4 pages, resized"}
