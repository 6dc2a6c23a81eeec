"""Every allocator on several sets: which part of a set is measured, and a table that says so."""

import json
from pathlib import Path

import torch

from tests.evaluate.folders import write_folder, write_image, write_rows
from tests.evaluate.test_run import Ink
from texturevlm.allocate import ALLOCATORS
from texturevlm.relevance import find_relevance
from texturevlm.relevance.ocr import Page, Word
from texturevlm.types import Texture
from texturevlm_lab.evaluate.data import load_data
from texturevlm_lab.studies import allocators
from texturevlm_lab.studies.allocators import BEST_OF_ALL, all_tokens, compared, main, name_hash, sampled


def test_the_control_keeps_tokens_of_the_full_resolution():
    texture = Texture.open(torch.rand(3, 320, 256))
    relevance = find_relevance(texture, patch=32, relevance="none")
    found = compared()[BEST_OF_ALL](texture, relevance, budget=12, patch=32)
    assert found.valid.sum() == 12 and torch.allclose(found.level, torch.zeros(1)) and all_tokens((320, 256)) == 80
    assert set(compared()) == set(ALLOCATORS) - {"resize", "grid"} | {BEST_OF_ALL}


def test_pages_are_sampled_with_all_their_questions(tmp_path):
    samples = load_data(write_folder(tmp_path, pages=5)).samples
    few = sampled(samples, 2)
    images = {sample.image for sample in few}
    assert len(few) == 4 and len(images) == 2 and few[0].image == few[1].image
    assert max(map(name_hash, images)) < min(name_hash(one.image) for one in samples if one.image not in images)
    every = sampled(samples, None)  # a run that is stopped has the pages that a smaller limit would have taken
    assert every[:4] == few and sorted(every, key=samples.index) == list(samples)


def test_charts_are_chosen_by_hash_and_located_by_ocr(tmp_path, monkeypatch):
    names = [f"{number}.png" for number in range(12)]
    for name in names:
        write_image(tmp_path / name, (40, 60))
    rows = [
        {"id": f"{name}-{answer}", "image": name, "question": "?", "answers": [answer], "split": "train"}
        for name in names
        for answer in ("1,200", "missing")
    ]
    write_rows(tmp_path, rows)
    page = Page((Word("$1200", (5.0, 5.0, 30.0, 12.0), 0, 1.0),), (40, 60))
    monkeypatch.setattr(allocators, "load_page", lambda path, cache: page)
    part = allocators.SETS["chartqa"].part(tmp_path, None)
    chosen = {name for name in names if name_hash(Path(name)) % 5 == 0}
    assert 0 < len(chosen) < 12 and {sample.image.name for sample in part.samples} == chosen
    assert all(sample.boxes == ((5.0, 5.0, 30.0, 12.0),) for sample in part.samples)
    assert f"{len(chosen)} of {2 * len(chosen)} answers (50%) are located by OCR" in part.notes[0]


def test_a_stopped_run_makes_tables_of_the_pages_that_it_has(tmp_path, monkeypatch, capsys):
    write_folder(tmp_path / "data" / "sroie", pages=3)
    fake_engines(monkeypatch)
    out = tmp_path / "out"
    command = [str(tmp_path / "data"), "--out", str(out), "--sets", "sroie", "--ocr", "ink"]
    assert main([*command, "--finished"]) == 2 and "must hold samples with results, got none" in capsys.readouterr().err
    assert not out.exists()
    assert main([*command, "--limit", "2"]) == 0  # as if it had been stopped after two pages
    before = (out / "sroie" / "results.jsonl").read_bytes()
    assert main([*command, "--finished"]) == 0
    text = (out / "sroie" / "report.md").read_text()
    assert "4 samples on 2 of 3 images of sroie." in text and "--ocr ink --sets sroie --finished`." in text
    assert (out / "sroie" / "results.jsonl").read_bytes() == before


def fake_engines(monkeypatch):
    """One quick engine, few allocators, and no scout."""
    monkeypatch.setattr("texturevlm_lab.evaluate.run.open_engines", lambda names: {name: Ink() for name in names})
    monkeypatch.setattr(allocators, "ALLOCATORS", {name: ALLOCATORS[name] for name in ("auto", "fit", "grid")})
    monkeypatch.setattr(allocators, "BUDGETS", (9,))
    monkeypatch.setitem(allocators.SETS, "sroie", allocators.SETS["sroie"]._replace(relevance="none"))


def test_the_command_writes_a_table_per_set(tmp_path, monkeypatch, capsys):
    folder = write_folder(tmp_path / "data" / "sroie", pages=1)
    with (folder / "questions.jsonl").open("a") as file:
        file.write(json.dumps({"id": 9, "image": "images/0.png", "question": "?", "answers": ["x"]}) + "\n")
    write_image(tmp_path / "data" / "coco" / "a.png", (160, 240))
    dog, cat = ({"image": "a.png", "id": n, "name": f"c{n}", "boxes": [[n, 20, 80, 60]]} for n in range(2))
    write_rows(tmp_path / "data" / "coco", [dog, cat])
    fake_engines(monkeypatch)
    out = tmp_path / "out"
    assert main([str(tmp_path / "data"), "--out", str(out), "--sets", "sroie,coco", "--ocr", "ink"]) == 0
    text = (out / "sroie" / "report.md").read_text()
    assert "2 samples on 1 of 1 images of sroie." in text and BEST_OF_ALL in text
    assert "1 of 3 questions have no located answer and are left out." in text
    photographs = (out / "coco" / "report.md").read_text()
    assert "## fine on objects" in photographs and "## psnr" in photographs
    assert "1 samples on 1 of 1 images of coco." in photographs
    assert main([str(tmp_path / "data"), "--out", str(out), "--sets", "birds"]) == 2
    assert "--sets must be one of docvqa, docvqa_half" in capsys.readouterr().err
