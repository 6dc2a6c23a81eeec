"""The table of a benchmark says which code made it, as other tables do."""

import json

from texturevlm_lab.bench import channels
from texturevlm_lab.bench import report as reports
from texturevlm_lab.evaluate.provenance import ROOT, dependencies, named_origin, origin
from texturevlm_lab.studies.results_check import check


def test_a_table_names_its_origin_and_is_checked(tmp_path, monkeypatch):
    monkeypatch.setattr(reports, "copy_bandwidth", lambda device: 1e9)
    monkeypatch.setattr(channels, "bench", lambda report: None)
    found = reports.measure("channels", "cpu", quick=True)
    found.add("nothing", "us", lambda: None, "cpu", repeats=1)
    made = named_origin(found.table())
    assert made == origin("texturevlm_lab.bench.channels")
    (tmp_path / "channels-cpu.md").write_text(found.table() + "\n")
    (table,) = check(tmp_path)
    assert table.reason == "" and table.marked
    (tmp_path / "channels-cpu.md").write_text(found.table().replace(made.digest, "0" * 16) + "\n")
    (table,) = check(tmp_path)
    assert table.reason.startswith("It was made by code and weights with digest 0000000000000000") and not table.marked
    found.save(tmp_path / "channels.json")
    record = json.loads((tmp_path / "channels.json").read_text())
    assert record["code"] == str(made) and "commit" not in record["machine"]


def test_a_benchmark_does_not_depend_on_rooms_that_it_never_enters():
    rooms = {path.relative_to(ROOT).parts[1] for path in dependencies("texturevlm_lab.bench.allocate")}
    assert {"allocate", "relevance", "scout"} <= rooms and not {"video", "vlm", "ask", "train"} & rooms


def test_a_run_that_is_cut_short_leaves_its_rows(tmp_path):
    found = reports.Report("Cut", "cpu", 1e9, path=tmp_path / "cut.json")
    found.add("first", "us", lambda: None, "in a row", repeats=1, calls=3)
    text = found.table() + "\n"
    assert [row["work"] for row in json.loads((tmp_path / "cut.json").read_text())["rows"]] == ["first"]
    assert (tmp_path / "cut.md").read_text() == text and "| first | us | in a row |" in text
    assert {path.name for path in tmp_path.iterdir()} == {"cut.json", "cut.md"}
