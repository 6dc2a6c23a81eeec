"""The table of reductions from the rows of a run."""

import json

import pytest

from texturevlm_lab.evaluate.answer_rows import AnswerRow, AnswerRows
from texturevlm_lab.evaluate.conditions import CHOSEN, FULL, TEXT, Condition
from texturevlm_lab.studies.reduce_accuracy import main

QUESTIONS = [(f"q{number}", f"page{number // 2}") for number in range(8)]
SCORES = {
    Condition(FULL): [1, 1, 1, 1, 1, 1, 1, 1],
    Condition(TEXT): [0] * 8,
    Condition(CHOSEN, "resize", "none", 16): [0, 0, 0, 0, 1, 1, 1, 1],
    Condition(CHOSEN, "auto", "scout", 16): [1, 1, 1, 1, 1, 1, 0, 0],
    Condition(CHOSEN, "auto", "scout", 16, "fastv"): [1, 1, 1, 1, 0, 0, 0, 0],
    Condition(CHOSEN, "auto", "scout", 16, "random"): [0, 0, 0, 0, 0, 0, 0, 0],
    Condition(CHOSEN, "resize", "none", 16, "fastv"): [1, 1, 1, 1, 1, 1, 1, 1],
}


def run(folder, scores, name="sroie", part=""):
    rows = AnswerRows.open(folder / f"{name}{part}.jsonl", {"data set": name, "model": "reader"}, QUESTIONS)
    for condition, values in scores.items():
        rows.add(condition, {n: AnswerRow(float(value), value - 2.0, 16, True) for n, value in enumerate(values)})
    return rows.path


def test_differences_are_to_the_same_choice_to_random_tokens_and_to_resize(tmp_path, capsys):
    assert main([str(run(tmp_path, SCORES)), "--out", str(tmp_path)]) == 0
    (found,) = json.loads((tmp_path / "reduce-accuracy.json").read_text())["runs"]
    ours, resized = found["choices"]
    assert (ours["choice"], resized["choice"]) == ("auto, scout", "resize, none")
    fastv, control = ours["reduced"]
    assert (fastv["score"], ours["alone"]["score"], control["method"]) == (0.5, 0.75, "random")
    assert fastv["score − own"][0] == -0.25 and fastv["score − control"][0] == 0.5
    assert fastv["likelihood"] == -1.5 and fastv["likelihood − own"][0] == -0.25
    assert control["score − control"] is None
    assert ours["alone"]["score − resize"][0] == 0.25 and "score − resize" not in resized["alone"]
    assert resized["reduced"][0]["score − own"][0] == 0.5 and resized["reduced"][0]["score − control"] is None
    table = capsys.readouterr().out
    assert "### auto, scout, 16 tokens" in table and "L 76.7" in table
    assert "| fastv | 8 | 0.500 | -0.250" in table and "full resolution" not in table
    assert "Beyond the interval of not reducing by log-likelihood: better none; worse random." in table


def test_a_folder_of_data_sets(tmp_path, capsys):
    for name in ("sroie", "funsd"):
        run(tmp_path, SCORES, name)
    assert main([str(tmp_path), "--out", str(tmp_path / "out"), "--limit", "4"]) == 0
    found = json.loads((tmp_path / "out" / "reduce-accuracy.json").read_text())["runs"]
    assert [one["settings"]["data set"] for one in found] == ["funsd", "sroie"]
    assert found[0]["choices"][0]["alone"]["questions"] == 4
    assert "## funsd" in capsys.readouterr().out


def test_parts_of_one_run(tmp_path):
    """By two processes, one per choice of tokens: as by one."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(whole, SCORES)
    for part in ("auto", "resize"):
        run(parts, {one: values for one, values in SCORES.items() if one.allocator in (part, "")}, part=part)
    for folder in (whole, parts):
        assert main([str(folder), "--out", str(folder / "out")]) == 0
    found = [json.loads((one / "out" / "reduce-accuracy.json").read_text())["runs"] for one in (whole, parts)]
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_run_without_reductions_is_refused(tmp_path, capsys, kind):
    few = {condition: values for condition, values in SCORES.items() if not condition.reduce}
    path = run(tmp_path, few)
    assert main([str(path if kind == "file" else tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "must be the answers of a run with --reduce" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["gone.jsonl", "empty"])
def test_what_is_not_there(tmp_path, capsys, name):
    (tmp_path / "empty").mkdir()
    assert main([str(tmp_path / name), "--out", str(tmp_path)]) == 2
    assert name in capsys.readouterr().err
