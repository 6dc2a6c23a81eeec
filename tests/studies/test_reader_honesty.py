"""The study of made-up numbers, on two pictures and a small reader with random weights."""

import json
from pathlib import Path
from shutil import copy

import matplotlib
import numpy as np
from PIL import Image

from tests.evaluate.folders import write_folder, write_rows
from tests.train.test_reader import small_network
from texturevlm.ask import Answer
from texturevlm.relevance.ocr import Page, Word
from texturevlm_lab.studies import reader_honesty as honesty
from texturevlm_lab.train.reader.network import save_folder


def test_the_table_is_made(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(honesty, "LONGEST", 3)
    save_folder(small_network(), tmp_path / "reader")
    write_folder(tmp_path / "sroie", pages=1)
    write_folder(tmp_path / "funsd", pages=1)
    labels = ("Comments", "Marital status", "Qty, in units", "Date of birth", "(+)", "19 of 87")
    rows = [json.loads((tmp_path / "funsd" / "questions.jsonl").read_text().splitlines()[0])] * len(labels)
    write_rows(tmp_path / "funsd", [{**row, "id": label, "question": label} for row, label in zip(rows, labels)])
    words = (Word("UNITS:", (0, 0, 9, 9), 0, 1.0), Word("of", (9, 0, 20, 9), 0, 1.0))
    monkeypatch.setattr(honesty, "read_page", lambda file: Page(words, (9, 20)))
    (tmp_path / "coco").mkdir()
    Image.new("RGB", (60, 40), "green").save(tmp_path / "coco" / "0.png")
    row = {"id": "0", "image": "0.png", "size": [40, 60], "question": "Where?", "answers": [], "boxes": []}
    write_rows(tmp_path / "coco", [{**row, "split": "eval"}])
    given = [str(tmp_path), "--out", str(tmp_path / "out"), "--model", str(tmp_path / "reader"), "--budget", "24"]
    (tmp_path / "hand").mkdir()
    copy(Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans-Oblique.ttf"), tmp_path / "hand")
    assert honesty.main([*given, "--split", "eval", "--hand", str(tmp_path / "hand")]) == 0
    record = json.loads((tmp_path / "out" / "reader-honesty.json").read_text())
    asked = {kind: len(rows) for kind, rows in record["rows"].items()}
    assert {count for kind, count in asked.items() if "," not in kind} == {len(honesty.QUESTIONS)}
    assert [kind for kind in asked if kind.startswith("blank paper,")] == [
        "blank paper, no question",
        "blank paper, 200 words",
    ]
    labels = [row["question"] for row in record["rows"][honesty.ABSENT]]
    assert sorted(labels) == ["Comments", "Marital status"]
    assert len(record["rows"]) == 9 * (1 + len(honesty.OTHERS)) + 1 and "| blank paper | 4 |" in capsys.readouterr().out
    assert all(0 <= one["unreadable"] <= 1 for rows in record["rows"].values() for one in rows)


def test_an_answer_is_judged():
    sure = honesty.judged(Answer("12.50", ["1", "2"], [-0.1, -0.3], [], {}, 0.2), "no")
    assert sure["digits"] and not sure["refused"] and abs(sure["sure"] - np.exp(-0.2)) < 1e-9
    assert honesty.judged(Answer("no", ["?"], [-0.1], [], {}, 0.9), "no")["refused"]


def test_a_scrambled_page_keeps_its_ink():
    page = np.zeros((100, 130), np.uint8)
    page[10:40, 20:90] = 255
    found = np.asarray(honesty.scrambled(Image.fromarray(page)))
    assert found.shape == (96, 120) and found.sum() == page[:96, :120].sum() and (found != page[:96, :120]).any()
