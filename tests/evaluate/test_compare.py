"""Comparisons of results: pages are resampled, every OCR engine must agree, and rows can be read again."""

import csv

import pytest

from texturevlm_lab.evaluate.compare import decision_rule, summarise
from texturevlm_lab.evaluate.report import markdown
from texturevlm_lab.evaluate.results import IDEAL_RESIZE, Configuration, ResultRow, Results
from texturevlm_lab.evaluate.rows import read_rows, write_rows

RESIZE = Configuration(IDEAL_RESIZE, budget=64)
OWN = Configuration("a", "scout", 64)


def results(rows):
    settings = {"patch": 32, "ocr": {"one": "One", "two": "Two"}, "device": "cpu", "code": "0" * 16}
    return Results(None, settings, {(row.sample, row.configuration): row for row in rows})


def rows(configuration, pages, *, ms=10.0, strata=None, **engines):
    """One row per entry of `pages`; engines: their scores, in that order."""
    return [
        ResultRow(
            f"{page}-{number}",
            page,
            configuration,
            ("legibility",),
            {f"legibility/{engine}": scores[number] for engine, scores in engines.items()},
            64,
            ms,
            strata=strata[number] if strata else {},
        )
        for number, page in enumerate(pages)
    ]


def test_differences_resample_pages():
    """Four questions on one page and one on another: only two pages are drawn, so the interval spans both."""
    pages = ["p", "p", "p", "p", "q"]
    found = results(rows(RESIZE, pages, one=[0] * 5) + rows(OWN, pages, one=[1, 1, 1, 1, 0]))
    assert summarise(found)["legibility/one"][OWN].difference == (0.8, 0, 1)


def test_a_lead_must_be_sure_for_every_engine_and_over_every_rival():
    pages = [f"p{number}" for number in range(40)]
    even, rising = [0.5] * 40, [0.6 + 0.2 * (number % 2) for number in range(40)]
    wild = [float(number % 4 > 0) for number in range(40)]  # .75 on average, but the interval reaches far down
    grid = Configuration("grid", "scout", 64)

    def verdict(own, rival=even):
        base = rows(RESIZE, pages, ms=None, one=even, two=even) + rows(grid, pages, one=rival, two=even)
        return decision_rule(results(base + rows(OWN, pages, ms=99, **own)))["a, scout"]

    sure = verdict({"one": rising, "two": rising})
    assert len(sure.worth) == 1 and sure.worth[0].startswith("at least +1") and sure.lead.mean == pytest.approx(0.2)
    for own in ({"one": rising, "two": even}, {"one": [0.5 + 0.04 * one for one in wild], "two": rising}):
        assert verdict(own).worth == ()
    assert verdict({"one": rising, "two": rising}, rival=rising).worth == ()
    assert verdict({"one": wild, "two": wild}).lead.low < sure.lead.low


def test_the_surest_budget_is_reported():
    pages = [f"p{number}" for number in range(9)]
    made = []
    for budget, score in ((32, 0.6), (64, 0.9), (96, 0.7)):
        made += rows(Configuration(IDEAL_RESIZE, budget=budget), pages, ms=None, one=[0.5] * 9)
        made += rows(Configuration("a", "scout", budget), pages, one=[score] * 9)
    verdict = decision_rule(results(made))["a, scout"]
    assert verdict.budget == 64 and verdict.lead.low == pytest.approx(0.4)
    assert [reason.split()[-1] for reason in verdict.worth] == ["32", "64", "96"]


def test_speed_counts_only_without_a_sure_loss():
    pages = [f"p{number}" for number in range(30)]
    grid = Configuration("grid", "scout", 64)
    for score, worth in ((0.48, ("2.5 × faster at 64",)), (0.4, ())):
        found = rows(grid, pages, one=[0.5] * 30) + rows(OWN, pages, ms=4.0, one=[score] * 30)
        assert decision_rule(results(found))["a, scout"].worth == worth


def test_a_table_has_columns_per_engine_and_strata():
    strata = [{"answer length": "1–3"}, {"answer length": "9+"}]
    found = results(
        rows(RESIZE, ["p", "q"], one=[0, 0.5], two=[0.5, 0.5], strata=strata)
        + rows(OWN, ["p", "q"], one=[1, 0.5], two=[1, 1], strata=strata)
    )
    text = markdown(found, summarise(found), title="T")
    assert "| budget | one | difference to resize | two | difference to resize | n |" in text
    assert "Each cell: one / two." in text and "| 64 | 0.250 / 0.500 | 0.750 / 1.000 |" in text
    assert "| a | scout | its own | 64 | 0.750 | +0.500 (+0.000 to +1.000) | 1.000 | +0.500" in text
    assert "| answer length 1–3 | a | scout | its own | 64 | 1.000 | +1.000 (+1.000 to +1.000) | 1.000 |" in text
    assert "| answer length 9+ | resize (ideal) | – | its own | 64 | 0.500 | – | 0.500 | – | 1 |" in text
    assert "legibility by one and legibility by two" in text


def test_few_pages_decide_nothing():
    pages = ["p", "q", "r"]
    base = rows(RESIZE, pages, ms=None, one=[0.5] * 3)
    for own, said in (([1, 0, 1], "not shown: the interval is too wide"), ([0.5] * 3, "**not worth its complexity**")):
        found = results(base + rows(OWN, pages, one=own))
        assert f" at 64 | {said} |" in markdown(found, summarise(found), title="T")


def test_rows_make_the_same_table_again(tmp_path):
    strata = [{"answer length": "1–3", "kind": "form, filled"}, {"answer length": "9+"}]
    found = results(
        rows(RESIZE, ["p", "q"], one=[0, 1 / 3], two=[0.5, 0.5], strata=strata)
        + rows(Configuration("a, b", "scout", 64, "other"), ["p", "q"], one=[1, 0.5], two=[1, 1], strata=strata)
    )
    write_rows(tmp_path / "rows.csv", found)
    again = read_rows(tmp_path / "rows.csv")
    wanted, got = summarise(found), summarise(again)
    assert list(got) == list(wanted)
    for name, lines in wanted.items():
        for own, line in lines.items():
            assert got[name][own].score == pytest.approx(line.score, abs=1e-4)
            assert got[name][own].difference == pytest.approx(line.difference, abs=1e-4)
    assert next(row.strata for row in again.rows.values()) == strata[0]
    with (tmp_path / "rows.csv").open() as file:
        lines = list(csv.reader(file))
    assert len(lines) == 3 and "resize (ideal)||64|own|legibility/one" in lines[0] and "0.3333" in lines[2]
