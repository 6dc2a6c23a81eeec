"""The judge of the scout: shares of boxes by hand, word spotting against places that are known, and the command."""

import json
import shutil
import stat
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFont

from tests.evaluate.folders import write_folder, write_rows
from texturevlm.relevance.ocr import Page, Word
from texturevlm.scout import Spots, encode
from texturevlm_lab.evaluate.data import Sample
from texturevlm_lab.studies import scout, spotting
from texturevlm_lab.studies.relevance import TOPS, found_within, of_another_page, shares_within
from texturevlm_lab.studies.study import evenly

installed = pytest.mark.skipif(shutil.which("tesseract") is None, reason="needs tesseract")
HEADER = "level\tpage_num\tblock_num\tpar_num\tline_num\tword_num\tleft\ttop\twidth\theight\tconf\ttext\n"


def sample(*boxes, size=(100, 100)):
    return Sample("1", Path("page.png"), size, "Where?", boxes=boxes)


def marked(*cells):
    """10 × 10 cells, the first ones named the highest."""
    values = np.zeros((10, 10))
    for rank, cell in enumerate(cells):
        values[cell] = 100 - rank
    return values


# ---- shares of answers ---------------------------------------------------------------------------------------------


def test_shares_of_boxes_in_the_top_cells():
    top = [(0, column) for column in range(10)]  # the upper row, from left to right: 10% of the page
    shares = shares_within(marked(*top), [(0, 0, 20, 10), (60, 0, 80, 20), (0, 90, 10, 100)], (100, 100))
    assert shares.shape == (len(TOPS), 3)
    assert shares[0, :2].tolist() == [1, 0] and shares[1, :2].tolist() == [1, 0.5]
    assert (np.diff(shares, axis=0) >= 0).all()


def test_an_answer_is_one_of_its_boxes_or_all_of_them():
    top = [(0, column) for column in range(5)]
    asked = sample((0, 0, 20, 10), (0, 50, 60, 60))
    apart = scout.answer_shares(marked(*top), asked, together=False)
    joined = scout.answer_shares(marked(*top), asked, together=True)
    assert apart[0] == 1 and joined[0] == pytest.approx(0.25)


@pytest.mark.parametrize("share, found", [(9, True), (8, False)])
def test_nine_tenths_of_a_box_are_the_whole(share, found):
    cells = [(0, column) for column in range(share)]
    rest = [(9, column) for column in range(10 - share)]  # what else is in the top tenth
    assert found_within(marked(*cells, *rest), [(0, 0, 100, 10)], (100, 100))[1] is found


def test_the_oracle_has_everything_that_fits():
    asked = sample((3, 4, 27, 33), (41, 41, 44, 43))
    for together, boxes in ((False, [asked.boxes[1]]), (True, asked.boxes)):
        values = scout.answer_map(boxes, (10, 10), asked.size)
        assert values.sum() == pytest.approx(sum((x1 - x0) * (y1 - y0) for x0, y0, x1, y1 in boxes))
        assert scout.answer_shares(values, asked, together=together)[2] == 1
    assert scout._enough(asked, False) == [(41, 41, 44, 43)] and scout._enough(asked, True) == asked.boxes


def test_the_question_of_another_page():
    one, two = sample(), Sample("2", Path("other.png"), (9, 9), "Who?")
    assert of_another_page([one, one, two], 0) is two and of_another_page([two, one], 1) is two
    assert of_another_page([one, one], 1) is one


def test_comparisons_are_paired():
    ours, blind = np.full((4, len(TOPS)), 0.95), np.full((4, len(TOPS)), 0.5)
    shares = {scout.SCOUT: ours, scout.BLIND: blind, scout.OTHER: blind, scout.WORDS: ours}
    found = scout._compared(shares, ["a", "a", "b", "c"])
    assert found["share"]["difference"][scout.WORDS][0] == [0, 0, 0]
    assert found["share"]["difference"][scout.BLIND][0] == pytest.approx([0.45] * 3)
    assert found["share"]["ratio"][0] == pytest.approx([1.9] * 3)
    assert found["whole"]["mean"][scout.SCOUT][0] == 1 and found["whole"]["ratio"][0] is None


def test_the_parts_of_a_question_are_all_of_it():
    question = encode(["What is the total amount?"])
    words, kind = scout.parts_of(question).values()
    assert torch.equal(words.letters, question.letters) and not words.asked.any() and question.asked.any()
    assert torch.equal(kind.asked, question.asked) and not kind.traits.any() and (kind.letters == -1).all()


# ---- word spotting -------------------------------------------------------------------------------------------------


def test_average_precision():
    right = np.array([True, False, True, False])
    assert spotting.average_precision(np.array([4.0, 3, 2, 1]), right) == pytest.approx((1 + 2 / 3) / 2)
    assert spotting.average_precision(np.array([2.0, 1, 2, 1]), right) == 1
    assert spotting.average_precision(np.array([1.0, 3, 0, 2]), right) == pytest.approx((1 / 3 + 2 / 4) / 2)
    many = np.arange(1000) < 100
    assert spotting.average_precision(np.zeros(1000), many) == pytest.approx(0.1, abs=0.05)  # ties are not in order


def test_words_that_are_looked_for():
    assert spotting.sought_words(["What is the Total of 1975?", "total, no. in A/B-Side"]) == ["1975", "side", "total"]


def test_pages_evenly_spread():
    assert evenly(list("abcdef"), 3) == ["a", "c", "e"]
    assert evenly(list("ab"), 9) == evenly(list("ab"), None) == ["a", "b"]
    assert evenly([], 3) == []


def test_the_scout_ranks_a_box_by_the_spots_in_it():
    """4 × 6 spots of 10 × 10 pixels; each of three directions stands at one spot."""
    words = torch.zeros(1, 3, 4, 6)
    words[0, 0, 1, 2], words[0, 1, 3, 5], words[0, 2, 0, 0] = 1.0, 0.5, 0.25
    spots = Spots(words, torch.zeros(1, 4, 6), torch.zeros(1, 2, 4, 6), torch.zeros(1, 4, 6))
    spotter = SimpleNamespace(embed=lambda numbers: torch.eye(3)[: len(numbers)])
    watching = SimpleNamespace(spotter=spotter, dtype=torch.float32)
    boxes = [(12.0, 11.0, 38.0, 19.0), (58.0, 38.0, 60.0, 40.0), (0.0, 0.0, 60.0, 40.0), (30.0, 0.0, 60.0, 20.0)]
    scores = spotting.scout_scores(watching, spots, boxes, (40, 60), ["one", "two", "six"])
    assert scores.tolist() == [[1, 0, 1, 0], [0, 0.5, 0.5, 0], [0, 0, 0.25, 0]]


def test_rapidocr_ranks_a_box_by_the_likest_word_in_it():
    page = Page((Word("Total:", (10, 10, 50, 20), 0, 1.0), Word("sum", (60, 10, 90, 20), 0, 1.0)), (40, 100))
    boxes = [(12, 9, 51, 21), (44, 10, 92, 20), (0, 30, 40, 40)]
    scores = spotting.rapidocr_scores(page, boxes, ["total", "sum"])
    assert scores.tolist() == [[1, 0, 0], [0, 1, 0]]
    assert spotting.rapidocr_scores(Page((), (40, 100)), boxes, ["total"]).tolist() == [[0, 0, 0]]


def test_words_of_tesseracts_table():
    rows = [
        "1\t1\t0\t0\t0\t0\t0\t0\t90\t40\t-1\t",
        '5\t1\t1\t1\t1\t1\t5\t6\t30\t10\t96.5\t"Total',
        "5\t1\t1\t1\t1\t2\t40\t6\t4\t10\t50\t—",
        "5\t1\t1\t1\t2\t1\t5\t20\t30\t10\t80\t52.00",
    ]
    first, second = spotting.words_of_table(HEADER + "\n".join(rows) + "\n")
    assert first == Word('"Total', (5, 6, 35, 16), 0, 0.965) and (second.text, second.line) == ("52.00", 1)
    assert spotting.words_of_table(HEADER) == ()


def program(folder: Path, body: str) -> str:
    path = folder / "tesseract"
    path.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then echo "tesseract 5.9"; exit 0; fi\n{body}\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_page_is_read_once(tmp_path):
    image, cache = tmp_path / "page.png", tmp_path / "cache"
    Image.new("L", (90, 40), 255).save(image)
    (tmp_path / "table").write_text(HEADER + "5\t1\t1\t1\t1\t1\t5\t6\t30\t10\t96.5\tTotal\n")
    good = program(tmp_path, f"cat > /dev/null; cat {tmp_path / 'table'}")
    page = spotting.tesseract_page(image, cache, good)
    assert page.size == (40, 90) and [word.text for word in page.words] == ["Total"]
    bad = program(tmp_path, "cat > /dev/null; echo no such language >&2; exit 1")
    assert spotting.tesseract_page(image, cache, bad) == page
    with pytest.raises(OSError, match=r"ended with 1 on .*page\.png: no such language"):
        spotting.tesseract_page(image, None, bad)


@installed
def test_tesseract_reads_a_page(tmp_path):
    page = Image.new("L", (600, 200), 255)
    ImageDraw.Draw(page).text((50, 80), "Invoice 1975", fill=0, font=ImageFont.load_default(40))
    page.save(tmp_path / "page.webp", lossless=True)
    invoice, year = spotting.tesseract_page(tmp_path / "page.webp", None).words
    assert (invoice.text, year.text) == ("Invoice", "1975") and invoice.line == year.line
    assert invoice.box[0] == pytest.approx(50, abs=8) and year.box[0] > invoice.box[2]


# ---- the command ---------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """Two pages with two questions each, and the words of the pages, so that no engine need read them."""
    data = write_folder(tmp_path / "funsd")
    cache = tmp_path / "cache"
    cache.mkdir()
    words: dict[str, list[Word]] = {}
    for row in map(json.loads, (data / "questions.jsonl").read_text().splitlines()):
        line = words.setdefault(Path(row["image"]).name, [])
        line.append(Word(row["answers"][0], tuple(row["boxes"][0]), len(line), 1.0))
    for name, found in words.items():
        (cache / f"{name}.json").write_text(Page(tuple(found), (160, 240)).to_json())
    return data


def run(data: Path, *options: str) -> int:
    return scout.main([str(data), "--pages", str(data.parent / "cache"), "--out", str(data.parent / "out"), *options])


def test_the_command_without_tesseract(folder, monkeypatch):
    monkeypatch.setattr(scout.shutil, "which", lambda name: None)
    assert run(folder) == 0
    record = json.loads((folder.parent / "out" / "scout.json").read_text())
    assert record["questions"] == 4 and record["pages"] == 2 and record["together"] is True
    means = record["whole"]["mean"]
    assert list(means)[:3] == [scout.SCOUT, scout.BLIND, scout.OTHER] and len(means) == 11
    assert means["oracle"] == [1] * len(TOPS) and means[scout.WORDS][-1] == 1
    assert all(0 <= value <= 1 for values in record["share"]["mean"].values() for value in values)
    text = (folder.parent / "out" / "scout.md").read_text()
    assert "Not measured: it needs `tesseract` 5" in text and "all of the answer's boxes together" in text


@installed
def test_the_command_with_tesseract(folder):
    assert run(folder, "--limit", "1", "--read", "1") == 0
    record = json.loads((folder.parent / "out" / "scout.json").read_text())
    assert record["pages"] == 1 and record["command"].endswith("DIR --limit 1 --pages CACHE --read 1")
    assert record["spotting"]["pages"] == 1 and record["spotting"]["reader"].startswith("tesseract 5")
    assert "## Word spotting" in (folder.parent / "out" / "scout.md").read_text()


def test_spotting_on_words_that_were_read(folder, monkeypatch):
    """Tesseract read what RapidOCR read: RapidOCR's ranking is perfect, and every word has a height."""
    cache = folder.parent / "cache"
    shutil.copytree(cache, cache / "tesseract")
    monkeypatch.setenv("PATH", str(folder.parent), prepend=":")
    program(folder.parent, "exit 1")
    assert run(folder) == 0
    found = json.loads((folder.parent / "out" / "scout.json").read_text())["spotting"]
    assert found["words"] == 4  # "where" and "is" are not looked for
    assert found["precision"]["RapidOCR"] == [1, 1, 1]
    assert sum(row["words"] for row in found["by height"]) == 4
    assert found["difference"][0] == pytest.approx(found["precision"]["scout"][0] - 1)
    assert "| scout − RapidOCR |" in (folder.parent / "out" / "scout.md").read_text()


def test_what_is_wrong_is_told(folder, capsys):
    assert run(folder, "--read", "0") == 2 and "--read" in capsys.readouterr().err
    rows = [json.loads(line) for line in (folder / "questions.jsonl").read_text().splitlines()]
    write_rows(folder, [{**row, "boxes": []} for row in rows])
    assert run(folder) == 2 and "eval questions with boxes" in capsys.readouterr().err
