"""The corpus benchmark: what it times, on images small enough for a test."""

import pytest

from texturevlm_lab.bench import corpus as bench
from texturevlm_lab.bench import corpus_decoded, corpus_pools
from texturevlm_lab.bench import report as reports

pytest.importorskip("pyarrow", reason="needs the extra corpus")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(bench, "SIDE", 64)
    monkeypatch.setattr(corpus_decoded, "SIDE", 64)
    monkeypatch.setattr(bench, "GPU_IMAGES", 512)
    monkeypatch.setattr(bench, "CPU_RELEVANCE", ("none",))  # the scout takes a second per image
    monkeypatch.setattr(corpus_decoded, "MANY", 32)
    monkeypatch.setattr(reports, "copy_bandwidth", lambda device: 1e9)


def test_on_a_cpu():
    found = reports.measure("corpus", "cpu", quick=True)
    rows = {(row.work, row.by): row for row in found.rows}
    work, by = bench.ENGINE_WORK, "relevance none, 1 thread decodes"
    whole, chosen = rows[work, by], rows[f"{work}: choosing and sampling", by]
    assert whole.timing.median > 0 and whole.bar >= chosen.timing.median / 0.85
    assert all(rows[f"{work}: stage {stage}", by].timing.median > 0 for stage in bench.STAGES)
    assert any("images/s" in note and "(bar: 85%)" in note for note in found.notes)
    assert ("decoding alone, 1 threads", "pillow") in rows


def test_units_by_several_workers(tmp_path, monkeypatch):
    """Wall clock of what comes after each worker has begun."""
    monkeypatch.setattr(corpus_pools, "find_spec", lambda name: None)
    found = reports.Report("Corpus", "cpu", 1e9, quick=True)
    corpus_pools.processes(found, "files", "2 processes", bench._files(tmp_path / "in", 8), 2, 1, beside_decoding=True)
    corpus_pools.ray_workers(found)
    alone, whole, ray = found.rows
    assert (alone.work, alone.state) == ("files: reading and decoding", "alone") and alone.timing.median > 0
    assert whole.timing.median > 0 and whole.bar == pytest.approx(alone.timing.median / 0.85)
    assert " files, 2 processes: " in found.notes[0] and "of its slowest stage alone (bar: 85%)" in found.notes[0]
    assert ray.state == "not installed"


@pytest.mark.gpu
def test_on_a_gpu():
    found = reports.measure("corpus", "cuda", quick=True)
    assert not [note for note in found.notes if "NOT captured" in note]
    assert [round(row.bar) for row in found.rows[:4]] == [125, 125, 333, 333]  # what was asked for comes first
    assert all(row.timing is not None for row in found.rows if not row.work.startswith("decoding"))
    stages = [row.by for row in found.rows if row.work.startswith("a stage of decoded pages")]
    assert len(stages) == 13 and stages[0] == "bytes to planes" and "auto, by the scout" in stages


@pytest.mark.gpu
def test_what_comes_too_late_is_named(monkeypatch):
    monkeypatch.setattr(bench, "SECONDS", 0.0)
    found = reports.measure("corpus", "cuda", quick=True)
    assert {row.state for row in found.rows} - {"not installed"} == {"not begun: the time was over"}
