"""Answers of two choosers are compared on the questions that both were asked."""

from pathlib import Path

from texturevlm_lab.evaluate.answer_rows import AnswerRow, AnswerRows
from texturevlm_lab.evaluate.conditions import CHOSEN, ORACLE, Condition
from texturevlm_lab.studies import answer_differences


def rows(*scores):
    return {number: AnswerRow(score, -0.1, 9, True) for number, score in enumerate(scores) if score is not None}


def test_choosers_are_compared_with_the_scout_and_few_tokens_with_a_resize(tmp_path, capsys):
    scout, many = Condition(CHOSEN, "auto", "scout", 64), Condition(CHOSEN, "auto", "scout", 273)
    oracle, resize = Condition(ORACLE, "auto", "", 64), Condition(CHOSEN, "resize", "none", 273)
    asked = {scout: rows(0.5, 0.5), oracle: rows(None, 1.0), resize: rows(0.25, 0.0), many: rows(0.5, 1.0)}
    answers = AnswerRows(tmp_path, {"model": "m"}, [("1", "1.jpg"), ("2", "2.jpg")], asked)
    assert set(answer_differences.pairs(answers)) == {(oracle, scout), (resize, many), (scout, resize)}
    lines = answer_differences.report({"forms": answers}, "c").splitlines()
    assert f"| forms | {oracle} | {scout} | 1 | 1.000 | 0.500 | +0.500 (+0.500 to +0.500) |" in lines
    assert f"| forms | {scout} | {resize} | 2 | 0.500 | 0.125 | +0.375 (+0.250 to +0.500) |" in lines
    assert answer_differences.main([str(tmp_path / "gone.jsonl")]) == 2 and "gone.jsonl" in capsys.readouterr().err


def test_one_name_twice_and_pairs_without_a_question_are_refused(tmp_path, capsys):
    scout, oracle = Condition(CHOSEN, "auto", "scout", 64), Condition(ORACLE, "auto", "", 64)
    names = [str(tmp_path / folder / "answers.jsonl") for folder in "ab"]
    for name in names:
        Path(name).parent.mkdir()
        answers = AnswerRows.open(Path(name), {"model": "m"}, [("1", "1.jpg"), ("2", "2.jpg")])
        answers.add(scout, rows(0.5))
        answers.add(oracle, rows(None, 0.5))
    assert answer_differences.main(names) == 2 and "different file names" in capsys.readouterr().err
    assert answer_differences.main(names[:1]) == 2
    assert f"answers.jsonl must have questions that both {oracle} and {scout} were asked" in capsys.readouterr().err
