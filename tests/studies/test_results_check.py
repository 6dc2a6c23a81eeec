"""Which tables are of today's code, what they say about it, and that committed rows give the committed numbers."""

import csv
import json
from pathlib import Path
from statistics import mean

import pytest

from texturevlm_lab.evaluate.compare import score_names, to_resize, units
from texturevlm_lab.evaluate.provenance import origin
from texturevlm_lab.evaluate.results import Configuration, by_configuration
from texturevlm_lab.evaluate.rows import read_rows
from texturevlm_lab.studies import recompute
from texturevlm_lab.studies.results_check import check, main, mark

RESULTS = Path(__file__).parents[2] / "results"
ROWS = sorted(RESULTS.rglob("*-rows.csv"))


@pytest.fixture
def tables(tmp_path):
    today = origin("texturevlm_lab.studies.results_check")
    (tmp_path / "deep").mkdir()
    (tmp_path / "new.md").write_text(f"# New\n\n{today}; torch 2.\n\nText.\n")
    (tmp_path / "old.md").write_text(f"# Old\n\n{today._replace(digest='0' * 16, commit='1a2b3c4')}; torch 2.\n")
    (tmp_path / "gone.md").write_text(f"# Gone\n\n{today._replace(module='texturevlm_lab.studies.removed')}.\n")
    (tmp_path / "deep" / "without.md").write_text("# Without\n\nText.\n")
    return tmp_path


def test_old_tables_are_listed_and_marked(tables, capsys):
    before = (tables / "new.md").read_text()
    assert main([str(tables)]) == 1
    said = capsys.readouterr()
    assert "old.md: It was made by code and weights with digest 0000000000000000 (commit 1a2b3c4)." in said.out
    assert "deep/without.md: It names no digest" in said.out and "new.md" not in said.out
    assert "3 of 4 tables are not of today's code." in said.out
    assert "not marked rightly (make results-mark): deep/without.md, gone.md, old.md" in said.err
    assert main([str(tables), "--mark"]) == 0 and main([str(tables)]) == 0
    assert (tables / "new.md").read_text() == before
    lines = (tables / "old.md").read_text().splitlines()
    assert lines[:3] == ["# Old", "", lines[2]] and lines[2].startswith("> **Not today's code.** It was made by")
    marked = (tables / "old.md").read_text()
    assert main([str(tables), "--mark"]) == 0 and (tables / "old.md").read_text() == marked


def test_other_code_that_makes_the_same_keeps_tables_unmarked(tables, capsys):
    assert main([str(tables), "--same", "nothing", "--only", "other"]) == 1
    assert "0 tables are the same" in capsys.readouterr().out
    assert main([str(tables), "--same", "its goldens"]) == 1  # the others name no digest, or a module that is gone
    assert "1 tables are the same by today's code." in capsys.readouterr().out
    assert json.loads((tables / "same.json").read_text())["0" * 16]["why"] == "its goldens"
    assert main([str(tables), "--mark"]) == 0
    said = capsys.readouterr().out
    assert "2 of 4 tables are not" in said and "old.md" not in said
    assert "Not today's" not in (tables / "old.md").read_text()
    (tables / "same.json").write_text(json.dumps({"0" * 16: {"today": "1" * 16, "why": ""}}))  # other code again
    assert main([str(tables)]) == 1 and "old.md" in capsys.readouterr().out


def test_a_table_made_again_loses_its_mark(tables):
    path = tables / "new.md"
    before = path.read_text()
    path.write_text(before.replace("# New\n", "# New\n\n> **Not today's code.** It names no digest.\n"))
    (table,) = [one for one in check(tables) if one.path == path]
    assert table.reason == "" and not table.marked
    mark(table)
    assert path.read_text() == before


@pytest.mark.parametrize("path", ROWS, ids=lambda path: path.parent.name + "/" + path.name)
def test_committed_rows_give_the_committed_numbers(path):
    """All means, and a few intervals: each takes a tenth of a second."""
    results = read_rows(path)
    every = by_configuration(results)
    scores = {name: {own: units(rows, name) for own, rows in every.items()} for name in score_names(results)}
    with path.with_name(path.name.replace("-rows", "")).open(newline="") as file:
        table = list(csv.DictReader(file))
    checked = 0
    for line in table:
        known = scores[line["score_name"]]
        own = Configuration(line["allocator"], line["relevance"], int(line["budget"] or 0), line["question"])
        assert len(known[own]) == int(line["count"])
        assert mean(unit.score for unit in known[own].values()) == pytest.approx(float(line["score"]), abs=1e-3)
        if line["low"] and own.allocator == "auto" and checked < 3:
            assert to_resize(own, known).low == pytest.approx(float(line["low"]), abs=2e-3)
            checked += 1
    assert checked


def test_a_table_is_computed_again(tmp_path, capsys):
    rows = tmp_path / "rows.csv"
    rows.write_text(
        "sample,page,resize (ideal)||64|own|legibility/eyes,a|scout|64|own|legibility/eyes\n1,p,0,1\n2,q,0.5,0.5\n"
    )
    assert recompute.main([str(rows)]) == 0
    assert "| a | scout | its own | 64 | 0.750 | +0.500 (+0.000 to +1.000) | 2 |" in capsys.readouterr().out
    assert recompute.main([str(tmp_path / "none.csv")]) == 2 and "No such file" in capsys.readouterr().err
