"""The baseline of a wrong page: what its own true answers score."""

import pytest

from tests.evaluate.folders import write_image, write_rows
from texturevlm_lab.evaluate.answer_rows import AnswerRow, AnswerRows
from texturevlm_lab.evaluate.conditions import PAGE, Condition
from texturevlm_lab.studies import other_pages

SETTINGS = {"model": "reader", "weights": "w", "data set": "sroie", "split": "eval"}
ASKED = (("a", "date", "1 May"), ("a", "total", "5.00"), ("b", "Date:", "1 May"), ("b", "shop", "BIG"))


@pytest.fixture
def data(tmp_path):
    for page in "ab":
        write_image(tmp_path / "sroie" / f"{page}.png")
    rows = []
    for page, question, answer in ASKED:
        row = {"id": f"{page}-{question}", "image": f"{page}.png", "size": [24, 32], "question": question}
        rows.append({**row, "answers": [answer], "boxes": [], "split": "eval"})
    write_rows(tmp_path / "sroie", rows)
    return tmp_path


def answers_about(path, questions, settings=SETTINGS):
    """Rows of answers about another page: right, wrong, wrong, half right."""
    answers = AnswerRows.open(path, settings, questions)
    said = {n: AnswerRow(score, -1.0, 4, True) for n, score in enumerate((1.0, 0.0, 0.0, 0.5)) if n < len(questions)}
    answers.add(Condition(PAGE, "", "", 273), said)
    return str(path)


def test_the_true_answer_of_the_other_page_is_the_baseline(data, capsys):
    rows = answers_about(
        data / "reader-sroie-rows.jsonl", [(f"{page}-{what}", f"{page}.png") for page, what, _ in ASKED]
    )
    assert other_pages.main([str(data), rows, "--out", str(data)]) == 0
    cells = (data / "reader-other-pages.md").read_text().splitlines()[-1].split(" | ")
    # Both pages have one date. "total" and "shop" are asked of one page alone, so the other has no true answer.
    assert cells[:3] == ["| sroie", "4", "2"]
    assert cells[3].startswith("0.375") and cells[4] == "0.500" and cells[5].startswith("-0.125")
    assert "another page" in capsys.readouterr().out


def test_rows_of_other_questions_are_refused(data, capsys):
    assert other_pages.main([str(data), answers_about(data / "rows.jsonl", [("y", "y.png")])]) == 2
    assert "y is missing" in capsys.readouterr().err


def test_rows_of_two_models_are_refused(data, capsys):
    rows = [
        answers_about(data / f"{name}.jsonl", [("a-date", "a.png")], {**SETTINGS, "weights": name}) for name in "vw"
    ]
    assert other_pages.main([str(data), *rows]) == 2
    assert "must be of one model, got reader, weights v; reader, weights w" in capsys.readouterr().err
