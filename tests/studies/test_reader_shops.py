"""Receipts of known shops are told from others by their names."""

import json

from texturevlm_lab.evaluate.answer_rows import AnswerRow, AnswerRows
from texturevlm_lab.evaluate.conditions import CHOSEN, Condition
from texturevlm_lab.studies import reader_shops


def test_scores_of_known_shops_stand_apart(tmp_path):
    listing = [("1", "train", "BIG Shop."), ("2", "eval", "big shop"), ("3", "eval", "Other")]
    rows = [
        {"id": f"{name}-company", "image": f"images/{name}.jpg", "split": split, "answers": [shop]}
        for name, split, shop in listing
    ]
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    known = reader_shops.known_shops(tmp_path / "questions.jsonl")
    assert known == {"2.jpg"}
    condition = Condition(CHOSEN, "auto", "scout", 96)
    scores = {0: AnswerRow(1.0, -0.1, 96, True), 1: AnswerRow(0.25, -0.1, 96, True), 2: AnswerRow(0.5, -0.1, 96, True)}
    questions = [("2-company", "2.jpg"), ("3-company", "3.jpg"), ("3-total", "3.jpg")]
    answers = AnswerRows(tmp_path, {"model": "reader", "weights": "w"}, questions, {condition: scores})
    row = reader_shops.report(answers, known, "c").splitlines()[-1].split(" | ")
    assert row[0] == "| auto, scout" and row[1] == "96"
    assert [cell.partition(" (")[0] for cell in row[2:5]] == ["1.000", "0.375", "0.625"]
    assert row[5:7] == ["–", "–"] and row[7].startswith("0.500")
