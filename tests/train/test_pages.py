"""Packed pages: as the spotter sees them, boxes with them, nothing that was not for training, documents never split."""

import json

import numpy as np
import pytest
from PIL import Image

from tests.train.papers import packed
from texturevlm.relevance.reader import Page, Word
from texturevlm.scout.spotter import seen_size
from texturevlm.train import pages
from texturevlm.train.pages import SETS, TrainingPage, held_out, load_pages, main, pack

SIZE = (1600, 1400)  # larger than the spotter sees it


@pytest.fixture
def data(tmp_path):
    """Two pages to learn from of each set and one to judge on, all already read."""
    for name in SETS:
        (tmp_path / "data" / name / "images").mkdir(parents=True)
        (tmp_path / "words" / name).mkdir(parents=True)
        rows = []
        for number in range(3):
            image = f"images/{number}.png"
            pixels = np.full((*SIZE, 3), 255, np.uint8)
            pixels[400:440, 700:900] = (200, 30, 30)
            Image.fromarray(pixels).save(tmp_path / "data" / name / image, compress_level=1)
            words = (Word("Total", (700, 400, 900, 440), 0, 0.9), Word("blurred", (10, 10, 90, 40), 1, 0.3))
            (tmp_path / "words" / name / f"{number}.png.json").write_text(Page(words, SIZE).to_json())
            row = {"image": image, "size": [2 * SIZE[0], 2 * SIZE[1]], "split": "eval" if number == 2 else "train"}
            if name == "docvqa_half":
                row["document"] = "letter"
            for question in ("What is the total?", "Who signed?")[: 1 + number]:
                boxes = [[1400, 800, 1800, 880]] if "total" in question else []
                rows.append({**row, "question": question, "boxes": boxes})
        (tmp_path / "data" / name / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.fixture
def read(data):
    assert pack(data / "data", data / "words", data / "out") == 6
    return load_pages(data / "out")


def test_pages_are_as_the_spotter_sees_them(read):
    seen = seen_size(SIZE)
    assert len(read) == 6 and [page.source for page in read] == [name for name in SETS for _ in range(2)]
    for page in read:
        assert page.image.shape == seen and page.image.dtype == np.uint8
        ((text, (x0, y0, x1, y1)),) = page.words  # the other was not read well enough
        assert text == "Total" and x1 - x0 == pytest.approx(200 * seen[1] / SIZE[1], abs=0.2)
        dark = np.argwhere(page.image < 160)
        assert np.abs(dark.min(0) - (y0, x0)).max() <= 2 and np.abs(dark.max(0) + 1 - (y1, x1)).max() <= 2


def test_questions_and_the_boxes_of_another_size(read):
    assert [[question for question, _ in page.questions] for page in read[:2]] == [
        ["What is the total?"],
        ["What is the total?", "Who signed?"],
    ]
    (box,) = read[0].questions[0][1]
    assert box == pytest.approx(read[0].words[0][1], abs=0.2)  # the row's size was twice the image's
    assert read[1].questions[1] == ("Who signed?", ())


def test_documents(read):
    assert [page.document for page in read[:4]] == [
        "docvqa_half/letter",
        "docvqa_half/letter",
        "funsd/images/0.png",
        "funsd/images/1.png",
    ]


def test_a_limit_is_of_pages_of_each_set(data, capsys):
    arguments = [str(data / "data"), "--words", str(data / "words"), "--out", str(data / "few")]
    assert main([*arguments, "--limit", "1"]) == 0
    assert len(load_pages(data / "few")) == 3 and "3 pages" in capsys.readouterr().err
    assert main([*arguments, "--limit", "0"]) == 2
    assert main([str(data / "nothing"), *arguments[1:]]) == 2
    assert "DATA must hold docvqa_half/questions.jsonl" in capsys.readouterr().err.splitlines()[-1]


def test_a_page_that_was_not_read_is_read_and_kept(data, monkeypatch):
    (data / "words" / "funsd" / "1.png.json").unlink()
    monkeypatch.setattr("texturevlm.relevance.reader.read_page", lambda image: Page((), SIZE))
    pack(data / "data", data / "words", data / "out")
    assert [len(page.words) for page in load_pages(data / "out")] == [1, 1, 1, 0, 1, 1]
    assert (data / "words" / "funsd" / "1.png.json").is_file()


def test_nothing_packed(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"load_pages: .*pages\.json must be there; make it with python -m"):
        load_pages(tmp_path)


def test_documents_are_held_out_whole():
    image = np.zeros((16, 16), np.uint8)
    read = [TrainingPage(image, (), (), "funsd", f"funsd/{number % 30}") for number in range(90)]
    held = held_out(read)
    out = {page.document for page, is_out in zip(read, held) if is_out}
    assert len(out) == -(-30 // pages.HELD_OUT) and sum(held) == 3 * len(out)
    assert held == held_out(read) and held != held_out(read, seed=8)
    assert sum(held_out(read[:1])) == 1


def test_the_tiny_pages_of_these_tests_are_such(tmp_path):
    read = load_pages(packed(tmp_path, 4))
    assert len(read) == 4 and read[1].image.shape == (96, 160) and len(read[0].questions) == 3
