"""What trading is worth: one question a page, whole groups, both ways with the same total, and a table that says so."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from texturevlm_lab.evaluate.data import Sample
from texturevlm_lab.evaluate.page_cache import PageCache
from texturevlm_lab.studies.trading import PageResult, groups, main, measure, one_per_page, report, summary


class Counting:
    """An engine that reads what it is told, and counts."""

    name = "counting"

    def __init__(self) -> None:
        self.crops = 0

    def read(self, crops):
        self.crops += len(crops)
        return ["answer"] * len(crops)


def a_page(folder: Path, number: int, lines: int) -> Sample:
    """Rows of noise that stand for lines, so many of them."""
    pixels = torch.full((160, 128), 255, dtype=torch.uint8)
    generator = torch.Generator().manual_seed(number)
    for line in range(lines):
        pixels[8 * line : 8 * line + 5] = (torch.rand(5, 128, generator=generator) > 0.5).byte() * 255
    path = folder / f"page{number}.png"
    Image.fromarray(pixels.numpy()).save(path)
    return Sample(str(number), path, (160, 128), "Which?", ("answer",), ((8.0, 8.0, 40.0, 13.0),))


def test_one_question_a_page_in_the_order_of_the_pages(tmp_path):
    first, second = a_page(tmp_path, 0, 1), a_page(tmp_path, 1, 1)
    again = Sample("9", first.image, first.size, "And?", ("answer",), first.boxes)
    assert [sample.id for sample in one_per_page([first, again, second])] == ["0", "1"]


def test_groups_are_whole_and_the_same_in_every_run():
    samples = [Sample(str(number), Path(f"{number}"), (1, 1), "") for number in range(11)]
    found = groups(samples, 4)
    assert [len(group) for group in found] == [4, 4]
    assert len({sample.id for group in found for sample in group}) == 8
    assert found == groups(samples, 4)


def test_both_ways_have_the_same_total(tmp_path):
    group = [a_page(tmp_path, number, lines) for number, lines in enumerate((1, 20, 4))]
    ocr = Counting()
    options = {"patch": 8, "allocator": "layers", "pages": PageCache(tmp_path)}
    results = [one for budget in (12, 30) for one in measure(group, "none", budget, engines={"eyes": ocr}, **options)]
    assert ocr.crops == 2 * 2 * 3  # splits, budgets, pages
    for budget in (12, 30):
        some = [result for result in results if result.budget == budget]
        assert sum(result.tokens["shared"] for result in some) == 3 * budget
        assert all(0.25 * budget <= result.tokens["shared"] <= 4 * budget for result in some)
        total = {way: sum(result.value[way] for result in some) for way in ("equal", "shared")}
        assert total["shared"] >= total["equal"] - 1e-6
    assert all(result.legibility == {"eyes": {"equal": 1.0, "shared": 1.0}} for result in results)
    found = measure(group, "none", 12, engines={}, number=7, **options)[0]
    assert found.legibility == {} and found.group == 7


def test_the_summary_is_paired_by_page_and_resamples_groups():
    def page(number, group):
        value = {"equal": 0.2, "shared": 0.3 + number / 10}
        read = {"eyes": {"equal": 0.0, "shared": float(group)}}
        return PageResult("none", 32, {"equal": 32, "shared": 20 + number}, value, read, group)

    (row,) = summary([page(0, 0), page(1, 0), page(2, 0)])
    assert row["tokens"] == {"least": 20, "middle": 21, "most": 22}
    assert row["value"]["difference"] == pytest.approx([0.2, 0.2, 0.2])  # one group: nothing to resample
    (row,) = summary([page(number, group) for group in (0, 1) for number in range(8)])
    assert row["legibility"]["eyes"]["difference"] == [0.5, 0, 1]


def test_the_command_writes_a_table(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("texturevlm_lab.studies.trading.find_spec", lambda name: None)  # without OCR
    samples = [a_page(tmp_path, number, lines) for number, lines in enumerate((2, 18))]
    rows = [
        {
            "id": sample.id,
            "image": sample.image.name,
            "size": [160, 128],
            "question": "?",
            "answers": ["answer"],
            "boxes": [list(sample.boxes[0])],
        }
        for sample in samples
    ]
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    out = tmp_path / "out"
    options = ["--pages", "2", "--budgets", "8,16", "--patch", "8", "--ocr", "none"]
    assert main([str(tmp_path), "--out", str(out), *options]) == 0
    record = json.loads((out / "trading.json").read_text())
    assert [row["budget"] for row in record["rows"]] == [8, 16]
    assert (out / "trading.md").read_text() == report(record)
    assert main([str(tmp_path), "--out", str(out), "--pages", "3", "--ocr", "none"]) == 2
    assert "must hold 3 pages with boxes, got 2" in capsys.readouterr().err
