"""Each bar holds or does not, by each engine, from a file of scores."""

import pytest

from tests.evaluate.test_compare import results, rows
from texturevlm_lab.evaluate.results import IDEAL_RESIZE, Configuration
from texturevlm_lab.evaluate.rows import write_rows
from texturevlm_lab.studies.bars import main

PAGES = [f"p{number}" for number in range(20)]
GOOD = {(64, "scout"): 0.85, (96, "scout"): 0.85, (273, "scout"): 0.85, (273, "none"): 0.84, (273, "prior"): 0.84}


def write(path, own, resize):
    made = []
    for budget, score in resize.items():
        made += rows(Configuration(IDEAL_RESIZE, budget=budget), PAGES, one=[score] * 20, two=[score] * 20)
    for (budget, relevance), score in own.items():
        made += rows(Configuration("auto", relevance, budget), PAGES, one=[score] * 20, two=[0.9] * 20)
    write_rows(path, results(made))
    return str(path)


@pytest.mark.parametrize(
    ("own", "resize", "missed"),
    [
        ({}, {}, ""),
        ({(64, "scout"): 0.81}, {}, "scout, 64 tokens: at least 0.82"),
        ({}, {64: 0.56}, "scout − resize, 64 tokens: at least +0.30"),
        ({(96, "scout"): 0.82}, {}, "scout at 96 − resize at 273 tokens: at least -0.02"),
        ({(273, "scout"): 0.82}, {}, "scout − resize, 273 tokens: lower bound at least -0.02"),
        ({(273, "prior"): 0.81}, {}, "prior − resize, 273 tokens: lower bound at least -0.03"),
    ],
)
def test_a_bar_that_is_missed_says_no(tmp_path, own, resize, missed, capsys):
    path = write(tmp_path / "x-rows.csv", {**GOOD, **own}, {64: 0.5, 96: 0.6, 273: 0.85, **resize})
    assert main([path, "--out", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    found = [line.split(" | ")[0].removeprefix("| ") for line in text.splitlines() if "**no**" in line]
    assert found == ([missed] if missed else []) and text.count("| yes |") == 12 - len(found)
    assert "| scout at 273 tokens − resize at 273 | " in text and "another page's" not in text
    assert "20 questions on 20 pages" in text and (tmp_path / "out" / "bars.md").read_text().strip() == text.strip()


def test_a_missing_budget_is_named(tmp_path, capsys):
    path = write(tmp_path / "x-rows.csv", GOOD, {64: 0.5, 273: 0.85})
    short = write(tmp_path / "y-rows.csv", {(64, "scout"): 0.9}, {64: 0.5, 273: 0.85})
    assert main([path]) == 0
    assert main([short]) == 2 and "ROWS must hold auto, scout at 96 tokens, got none" in capsys.readouterr().err
