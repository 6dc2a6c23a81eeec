"""Answers joined with legibility: the right rows meet, and the numbers are those of a case worked out by hand."""

import math

import pytest

from studies.reader_legibility import main, rank_correlation
from texturevlm.evaluate.answer_rows import AnswerRow, AnswerRows
from texturevlm.evaluate.conditions import CHOSEN, ORACLE, Condition

HEAD = "sample,page,auto|scout|64|own|legibility/tesseract,auto|scout|64|other|legibility/tesseract"


@pytest.fixture
def files(tmp_path):
    rows = tmp_path / "rows.csv"
    rows.write_text(f"{HEAD}\na,p.png,1,0\nb,p.png,0.9,0\nc,q.png,0,1\nd,q.png,0.1,1\nlone,q.png,1,1\n")
    answers = AnswerRows.open(
        tmp_path / "answers.jsonl",
        {"model": "reader", "weights": "0", "data set": "docvqa"},
        [("a", "p.png"), ("b", "p.png"), ("c", "q.png"), ("d", "q.png")],
    )
    said = {number: AnswerRow(score, -1.0, 64, True) for number, score in enumerate((1.0, 0.6, 0.2, 0.0))}
    answers.add(Condition(CHOSEN, "auto", "scout", 64), said)
    answers.add(Condition(ORACLE, "auto", "scout", 64), {0: AnswerRow(0.0, -1.0, 64, True)})
    return str(rows), str(answers.path)


def test_the_same_question_chooser_and_budget_meet(files, tmp_path, capsys):
    assert main([*files, "--out", str(tmp_path)]) == 0
    text = (tmp_path / "reader-legibility.md").read_text()
    assert text in capsys.readouterr().out
    assert "4 questions of docvqa" in text
    assert "| tesseract | 0.800 (0.800 to 0.800), n = 2 | 0.100 (0.100 to 0.100), n = 2 |" in text  # one page each
    assert "| auto, scout | 64 | 4 | 0.500 | 0.450 |" in text


def test_files_without_a_common_question_are_refused(files, tmp_path, capsys):
    other = tmp_path / "other.csv"
    other.write_text(f"{HEAD}\nz,p.png,1,0\n")
    assert main([str(other), files[1]]) == 2
    assert "in common" in capsys.readouterr().err


def test_ranks():
    assert rank_correlation([1, 2, 3], [10, 20, 90]) == pytest.approx(1)
    assert rank_correlation([1, 2, 2, 3], [3, 2, 2, 1]) == pytest.approx(-1)
    assert math.isnan(rank_correlation([1, 1], [0, 1]))
