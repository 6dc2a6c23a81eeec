"""Answers beside what OCR reads: from the tokens of those answers, and the numbers are right."""

import json
import math
from concurrent.futures import ThreadPoolExecutor

import pytest
from PIL import Image, ImageDraw

from tests.evaluate.folders import write_folder
from tests.train.test_reader import small_network
from texturevlm.ask import load_vlm
from texturevlm_lab.evaluate.data import Sample
from texturevlm_lab.studies import asking, reader_legibility
from texturevlm_lab.studies.reader_legibility import Judged, judged, rank_correlation
from texturevlm_lab.train.reader.network import save_folder


class Ink:
    """An engine that tells a crop with a sharp stroke from others."""

    name = "ink"

    def read(self, crops):
        return ["right" if int((crop < 100).sum()) > 150 else "" for crop in crops]


def test_what_ocr_reads_is_what_the_model_was_given(tmp_path):
    page = Image.new("RGB", (1500, 2000), "white")
    ImageDraw.Draw(page).rectangle((1000, 1500, 1080, 1502), fill="black")  # which a resized page shows as grey
    page.save(tmp_path / "p.png")
    sample = Sample("a", tmp_path / "p.png", (2000, 1500), "What?", ("right",), ((1000, 1490, 1080, 1512),), "eval")
    found = judged([sample], load_vlm("reader", turn=0, captured=False), {"ink": Ink()})
    assert [(one.chooser, one.budget) for one in found[::4]] == [
        ("the scout", 64),
        ("no question", 96),
        ("resize", 273),
    ]
    assert {(one.chooser, one.budget): one.legibility["ink"] for one in found if one.budget == 64} == {
        ("the scout", 64): 1,
        ("no question", 64): 1,
        ("resize", 64): 0,
    }
    assert all(0 <= one.answer <= 1 and 0 <= one.unreadable <= 1 for one in found)


def test_a_small_page_is_measured_through_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(asking, "ProcessPoolExecutor", lambda *_, **__: ThreadPoolExecutor(1))  # sees what follows
    monkeypatch.setattr(reader_legibility, "open_engines", lambda names: {"ink": Ink()})
    monkeypatch.setattr(reader_legibility, "BUDGETS", (24,))
    monkeypatch.setattr(reader_legibility, "MOST", 2)
    save_folder(small_network(), tmp_path / "reader")
    for name in reader_legibility.SETS:
        write_folder(tmp_path / "data" / name, pages=1)
    given = [str(tmp_path / "data"), "--out", str(tmp_path / "out"), "--model", str(tmp_path / "reader")]
    assert reader_legibility.main([*given, "--split", "eval"]) == 0
    record = json.loads((tmp_path / "out" / "reader-legibility.json").read_text())
    asked = {row["question"] for row in record["sets"]["funsd"]}
    assert asked and len(record["sets"]["funsd"]) == len(asked) * len(reader_legibility.CHOOSERS)
    assert f"| resize | 24 | {len(asked)} |" in capsys.readouterr().out


def test_the_report_is_that_of_a_case_worked_out_by_hand():
    both = [("a", "p", 1.0, 1.0), ("b", "p", 0.6, 0.9), ("c", "q", 0.2, 0.0), ("d", "q", 0.0, 0.1)]
    rows = [Judged("the scout", 64, name, page, score, 0.01, {"E": read}) for name, page, score, read in both]
    rows += [Judged("resize", 64, name, page, 0.1, 1.0, {"E": 0.0}) for name, page, _, _ in both]
    record = {"sets": {"docvqa": [row._asdict() for row in rows]}, "engines": {"E": "Engine 5"}, "model": "reader"}
    text = reader_legibility.report({**record, "split": "eval", "command": "c", "torch": "2", "python": "3"})
    assert "4 questions with a located answer" in text
    assert "| E | 0.800 (0.800 to 0.800), n = 2 | 0.100 (0.100 to 0.100), n = 6 |" in text  # one page, or equal means
    assert "| the scout | 64 | 4 | 0.500, 0.80 | 0.450 |" in text
    assert "| resize | 64 | 4 | 0.000 | 0.100 |" in text
    assert "| 0 to 0.02 | 4 | 0.010 | 0.500 | 0.500 |" in text and "| 0.98 to 1 | 4 | 1.000 | 1.000 | 1.000 |" in text


def test_ranks():
    assert rank_correlation([1, 2, 3], [10, 20, 90]) == pytest.approx(1)
    assert rank_correlation([1, 2, 2, 3], [3, 2, 2, 1]) == pytest.approx(-1)
    assert math.isnan(rank_correlation([1, 1], [0, 1]))
