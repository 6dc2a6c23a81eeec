"""Packed pages: as the spotter sees them, boxes with them, nothing that was not for training, documents never split."""

import json

import numpy as np
import pytest
from PIL import Image

from tests.test_cli import status
from tests.train.papers import packed
from texturevlm.relevance.ocr import Page, Word
from texturevlm.scout.spotter import input_size
from texturevlm_lab.train import pages
from texturevlm_lab.train.pages import CHARTS, SETS, TrainingPage, held_out, load_pages, located, number_value, pack

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
                there = "total" in question
                answer = {"boxes": [[1400, 800, 1800, 880]] if there else []}
                if name == CHARTS:  # there is nobody who marked the place
                    answer = {"boxes": [], "answers": ["total" if there else "Smith"]}
                rows.append({**row, "question": question, **answer})
        (tmp_path / "data" / name / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.fixture
def read(data):
    assert pack(data / "data", data / "words", data / "out") == 8
    return load_pages(data / "out")


def test_pages_are_as_the_spotter_sees_them(read):
    seen = input_size(SIZE)
    assert len(read) == 8 and [page.source for page in read] == [name for name in SETS for _ in range(2)]
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
    assert status("pack-pages", *arguments, "--limit", "1") == 0
    assert len(load_pages(data / "few")) == 4 and "4 pages" in capsys.readouterr().err
    assert status("pack-pages", *arguments, "--limit", "0") == 2
    (data / "nothing").mkdir()
    assert status("pack-pages", str(data / "nothing"), *arguments[1:]) == 2
    assert "DATA must hold docvqa_half/questions.jsonl" in capsys.readouterr().err.splitlines()[-1]


def test_some_sets_alone(data, capsys):
    arguments = [str(data / "data"), "--words", str(data / "words"), "--out", str(data / "some")]
    assert status("pack-pages", *arguments, "--sets", CHARTS, "sroie", CHARTS) == 0
    assert [page.source for page in load_pages(data / "some")] == [CHARTS, CHARTS, "sroie", "sroie"]
    assert status("pack-pages", *arguments, "--sets", "docvqa") == 2
    with pytest.raises(ValueError, match=r"pack: sets must be one of docvqa_half, funsd, .*, got 'docvqa'"):
        pack(data / "data", data / "words", data / "some", sets=("docvqa",))


def test_answers_of_charts_are_looked_for_among_their_words(read):
    charts = [page for page in read if page.source == CHARTS]
    for page in charts:  # the second was also asked what is not found, which is left out
        ((question, (box,)),) = page.questions
        assert question == "What is the total?" and box == pytest.approx(page.words[0][1], abs=0.2)


def chart(*lines):
    """A page whose words are 10 pixels a letter and 20 high, a line below another."""
    words = []
    for line, text in enumerate(lines):
        at = 0
        for word in text.split():
            words.append(Word(word, (at, 30 * line, at + 10 * len(word), 30 * line + 20), line, 0.9))
            at += 10 * len(word) + 10
    return Page(tuple(words), (30 * len(lines) + 1, 1000))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1200", 1200),
        ("1,200", 1200),
        ("1 200", 1200),
        ("60 932 152", 60932152),
        ("1,200.50", 1200.5),
        ("45%", 45),
        ("45 %", 45),
        ("($2.70*)", 2.7),
        ("-3.5", -3.5),
        ("−3.5", -3.5),
        ("2020*", 2020),
        ("2019/20", None),
        ("1,20", None),
        ("2000 2001", None),
        ("15-49", None),
        (".5", None),
        ("Q1", None),
        ("5bn", None),
        ("%", None),
        ("", None),
    ],
)
def test_numbers(text, value):
    assert number_value(text) == value


@pytest.mark.parametrize(
    ("answer", "lines", "boxes"),
    [
        ("Viken", ["Oslo", "VIKEN:"], [(0, 30, 60, 50)]),
        ("U.S. Postal Service", ["The US Postal Service, 2020"], [(40, 0, 220, 20)]),
        ("Latin America", ["- LatinAmerica 22%"], [(20, 0, 140, 20)]),
        ("Latin America", ["Latin", "America"], []),  # not of two lines
        ("America", ["Latin-America"], []),  # nor a part of a word
        ("1200", ["1,200 1,300"], [(0, 0, 50, 20)]),
        ("60932152", ["Romney · 60 932 152"], [(90, 0, 190, 20)]),
        ("152", ["60 932 152"], []),
        ("25000", ["20 000 25 000 30 000"], [(70, 0, 130, 20)]),
        ("12.5%", ["12.5", "125", "12.50%"], [(0, 0, 40, 20), (0, 60, 60, 80)]),
        ("2.7", ["27", "2.7*"], [(0, 30, 40, 50)]),  # a point counts
        ("3.5", ["-3.5"], []),
        ("2019", ["2019 2020", "Statista, 2019", "2019/20"], [(0, 0, 40, 20), (100, 30, 140, 50)]),
        ("2010/11", ["season 2010/11"], [(70, 0, 140, 20)]),
        ("46", ["46", "46", "46"], [(0, 0, 20, 20), (0, 30, 20, 50), (0, 60, 20, 80)]),
        ("46", ["46"] * 4, []),
        ("Yes", ["Yes"], []),
        ("no", ["No"], []),
        ("6", ["6"], []),
        ("6%", ["6%"], []),
        ("...", ["..."], []),
        ("17", [], []),
    ],
)
def test_where_an_answer_stands(answer, lines, boxes):
    assert located(chart(*lines), [answer]) == boxes


def test_answers_that_mean_the_same():
    page = chart("USA America", "Germany")
    assert located(page, ["United States", "america", "AMERICA", "USA", "no"]) == [(0, 0, 30, 20), (40, 0, 110, 20)]
    assert located(page, []) == []


def test_a_page_that_was_not_read_is_read_and_kept(data, monkeypatch):
    (data / "words" / "funsd" / "1.png.json").unlink()
    monkeypatch.setattr("texturevlm_lab.train.pages.read_page", lambda image: Page((), SIZE))
    pack(data / "data", data / "words", data / "out")
    assert [len(page.words) for page in load_pages(data / "out")] == [1, 1, 1, 0, 1, 1, 1, 1]
    assert (data / "words" / "funsd" / "1.png.json").is_file()


def test_nothing_packed(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"load_pages: .*pages\.json must exist; make it with texturevlm pack"):
        load_pages(tmp_path)


def test_documents_are_held_out_whole():
    image = np.zeros((16, 16), np.uint8)
    read = [TrainingPage(image, (), (), "funsd", f"funsd/{number % 30}") for number in range(90)]
    held = held_out(read)
    out = {page.document for page, is_out in zip(read, held) if is_out}
    assert len(out) == -(-30 // pages.HELD_OUT) and sum(held) == 3 * len(out)
    assert held == held_out(read) and held != held_out(read, seed=8)
    assert sum(held_out(read[:1])) == 1


def test_charts_do_not_change_which_papers_are_held_out():
    image = np.zeros((16, 16), np.uint8)
    papers = [TrainingPage(image, (), (), "funsd", f"funsd/{number}") for number in range(50)]
    charts = [TrainingPage(image, (), (), CHARTS, f"{CHARTS}/{number}") for number in range(30)]
    held = held_out([*charts, *papers])
    assert held[30:] == held_out(papers) and held[:30] == held_out(charts)
    assert sum(held[:30]) == -(-30 // pages.HELD_OUT)


def test_the_tiny_pages_of_these_tests_are_such(tmp_path):
    read = load_pages(packed(tmp_path, 4))
    assert len(read) == 4 and read[1].image.shape == (96, 160) and len(read[0].questions) == 3
