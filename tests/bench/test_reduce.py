"""`texturevlm bench reduce`, small: every way has numbers, at equal tokens."""

import json

import pytest

from texturevlm_lab.bench import reduce as bench
from texturevlm_lab.bench.report import measure
from texturevlm_lab.rivals import METHODS


@pytest.fixture(scope="module")
def report():
    pytest.importorskip("transformers")
    return measure("reduce", "cpu", quick=True)


def test_every_way_is_measured(report):
    rows = {row.name: row for row in report.rows}
    assert set(METHODS) < set(rows)
    assert not [row.name for row in report.rows if row.state]
    assert all(row.first_ms > 0 and row.next_ms > 0 and row.peak is None for row in report.rows)


def test_all_have_the_same_tokens_in_the_end(report):
    rows = {row.name: row for row in report.rows}
    assert (rows["everything"].chosen, rows["everything"].last) == (80, 80)
    assert (rows["video, everything"].chosen, rows["video, everything"].last) == (80, 80)
    for name in ("prunevid", "dtoma", "pvc"):
        assert (rows[f"video, {name}"].chosen, rows[f"video, {name}"].last) == (80, 8), name
    assert rows["video, resized to 8"].last <= 8
    for name in METHODS:
        assert rows[name].chosen == 80
        assert rows[name].last == (80 if name == "dyrate" else 8), name
    assert rows["texturevlm, asked, 16, then visionzip"].chosen == 16
    assert rows["texturevlm, asked, 16, then visionzip"].first == 8
    assert rows["plain resize to 8"].last <= 8
    assert rows["fastv"].first == 80 and rows["tome"].first == 8


def test_the_table_and_its_files(report, tmp_path):
    report.save(tmp_path / "reduce.json")
    found = json.loads((tmp_path / "reduce.json").read_text())
    assert [row["name"] for row in found["rows"]] == [row.name for row in report.rows]
    table = (tmp_path / "reduce.md").read_text()
    assert found["code"] in table and "texturevlm_lab.bench.reduce, digest " in table
    assert "| pace | 80 |" in table and "p 73.5 / 78.4 / 69.6" in table and "hardware:" in table


def test_rows_are_written_as_they_come(monkeypatch, tmp_path):
    """A run that is cut leaves what it has measured."""
    ways, measured = bench.ways, bench.measured
    monkeypatch.setattr(bench, "ways", lambda *given: ways(*given)[1:3])

    def cut(adapter, image, way):
        if way.name != "plain resize to 8":
            raise KeyboardInterrupt
        return measured(adapter, image, way)

    monkeypatch.setattr(bench, "measured", cut)
    with pytest.raises(KeyboardInterrupt):
        measure("reduce", "cpu", quick=True, path=tmp_path / "reduce.json")
    found = json.loads((tmp_path / "reduce.json").read_text())
    assert [row["name"] for row in found["rows"]] == ["plain resize to 8"]
    assert "Random weights" in (tmp_path / "reduce.md").read_text()


def test_a_row_says_why_its_further_tokens_came_from_no_graph():
    row = bench.Measured("tome", "", first_ms=3.0, next_ms=2.0, eager="the capture failed: no")
    assert row.cells()[5] == "2.0, no graph: the capture failed: no"


def test_what_fails_or_comes_too_late_has_a_row(monkeypatch):
    def broken(adapter, image, way, decode):
        raise ValueError("no room\nand more")

    ways = bench.ways
    monkeypatch.setattr(bench, "ways", lambda *given: ways(*given)[:2])
    monkeypatch.setattr(bench, "answered", broken)
    report = measure("reduce", "cpu", quick=True)
    assert report.rows[0].cells()[0] == "everything: failed: no room"
    monkeypatch.setattr(bench, "SECONDS", -1)
    report = measure("reduce", "cpu", quick=True)
    assert all(row.state == "not measured, the time was over" for row in report.rows)
