"""The table of reductions from the rows of a run."""

import json

from studies.reduce_accuracy import main
from texturevlm.evaluate.answer_rows import AnswerRow, AnswerRows
from texturevlm.evaluate.conditions import CHOSEN, FULL, OWN, TEXT, Condition

QUESTIONS = [(f"q{number}", f"page{number // 2}") for number in range(8)]
SCORES = {
    Condition(FULL): [1, 1, 1, 1, 1, 1, 1, 1],
    Condition(TEXT): [0] * 8,
    Condition(OWN, budget=16): [0, 0, 0, 0, 1, 1, 1, 1],
    Condition(CHOSEN, "auto", "scout", 16): [1, 1, 1, 1, 1, 1, 0, 0],
    Condition(CHOSEN, "auto", "scout", 16, "fastv"): [1, 1, 1, 1, 0, 0, 0, 0],
}


def run(tmp_path, scores):
    rows = AnswerRows.open(tmp_path / "answers.jsonl", {"data set": "sroie", "model": "reader"}, QUESTIONS)
    for condition, values in scores.items():
        rows.add(condition, {n: AnswerRow(float(value), -1.0, 16, True, 5.0) for n, value in enumerate(values)})
    return rows.path


def test_differences_are_to_the_same_choice_and_to_resize(tmp_path, capsys):
    assert main([str(run(tmp_path, SCORES)), "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "reduce-accuracy.json").read_text())["conditions"]
    assert [one["choice"] for one in found][:2] == ["full resolution, by the model's own processor", found[1]["choice"]]
    reduced = next(one for one in found if one["reduce"] == "fastv")
    plain = next(one for one in found if one["choice"] == "auto, scout" and not one["reduce"])
    assert (reduced["score"], plain["score"]) == (0.5, 0.75)
    assert reduced["to_plain"][0] == -0.25 and reduced["to_resize"][0] == 0.0 and plain["to_resize"][0] == 0.25
    assert plain["to_plain"] is None
    table = capsys.readouterr().out
    assert "| auto, scout | fastv | 16 | 8 | 0.500 | -0.250" in table and "L 76.7" in table
    assert "no image" not in table


def test_a_run_without_reductions_is_refused(tmp_path, capsys):
    few = {condition: values for condition, values in SCORES.items() if not condition.reduce}
    assert main([str(run(tmp_path, few)), "--out", str(tmp_path / "out")]) == 2
    assert "must be the answers of a run with --reduce" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_not_there(tmp_path, capsys):
    assert main([str(tmp_path / "gone.jsonl"), "--out", str(tmp_path)]) == 2
    assert "gone.jsonl" in capsys.readouterr().err
