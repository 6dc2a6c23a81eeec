"""Each allocator gets its verdict against `auto`, by every engine, and its time from the table beside the rows."""

import pytest

from tests.evaluate.test_compare import results, rows
from texturevlm_lab.evaluate.results import IDEAL_RESIZE, Configuration
from texturevlm_lab.evaluate.rows import write_rows
from texturevlm_lab.studies.razor import main

PAGES = [f"p{number}" for number in range(20)]
HALF = [0.5] * 20
WILD = [float(number % 2) for number in range(20)]  # .5 in the mean, with a wide interval


@pytest.mark.parametrize(
    ("one", "two", "ms", "verdict"),
    [
        ([0.54] * 20, [0.6] * 20, 90, "**wins**"),
        ([0.52] * 20, [0.6] * 20, 90, "as good"),
        ([0.48] * 20, HALF, 50, "as good"),
        ([0.48] * 20, HALF, 20, "**2 × faster**"),
        ([0.4] * 20, [0.45] * 20, 20, "loses"),
        ([0.4] * 20, HALF, 20, "not shown"),
        (WILD, HALF, 20, "not shown"),
    ],
)
def test_verdicts(tmp_path, capsys, one, two, ms, verdict):
    own, rival = Configuration("new", "scout", 64), Configuration("auto", "scout", 64)
    made = rows(own, PAGES, one=one, two=two) + rows(rival, PAGES, one=HALF, two=HALF)
    made += rows(Configuration(IDEAL_RESIZE, budget=64), PAGES, one=HALF, two=HALF)
    write_rows(tmp_path / "x-rows.csv", results(made))
    lines = ["allocator,relevance,budget,question,ms_later_question", "full image,,,own,"]
    lines += [f"new,scout,64,own,{ms}", "auto,scout,64,own,50"]
    (tmp_path / "x.csv").write_text("\n".join(lines) + "\n")
    assert main([str(tmp_path / "x-rows.csv"), "--out", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    assert f"| allocator | x 64 |\n|---|---|\n| new | {verdict} |\n" in text
    assert f"| {ms / 50:.2f} | {verdict} |" in text and "20 samples on 20 images." in text
    assert (tmp_path / "out" / "razor.md").read_text() in text


def test_few_pages_show_nothing(tmp_path, capsys):
    own, rival, few = Configuration("new", "scout", 64), Configuration("auto", "scout", 64), PAGES[:9]
    made = rows(own, few, one=[0.9] * 9) + rows(rival, few, one=[0.5] * 9)
    write_rows(tmp_path / "x-rows.csv", results(made))
    assert main([str(tmp_path / "x-rows.csv")]) == 0
    assert "| new | not shown |" in capsys.readouterr().out


def test_rows_without_auto_are_refused(tmp_path, capsys):
    write_rows(tmp_path / "x-rows.csv", results(rows(Configuration("new", "scout", 64), PAGES, one=HALF)))
    assert main([str(tmp_path / "x-rows.csv")]) == 2
    assert "razor: ROWS must hold auto and other allocators, got none in" in capsys.readouterr().err
