"""The corpus benchmark: what it times, on images small enough for a test."""

import pytest

from texturevlm.bench import corpus as bench
from texturevlm.bench import report as reports

pytest.importorskip("pyarrow", reason="needs the extra corpus")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(bench, "SIDE", 64)
    monkeypatch.setattr(bench, "GPU_IMAGES", 512)
    monkeypatch.setattr(bench, "CPU_RELEVANCE", ("none",))  # the scout takes a second per image
    monkeypatch.setattr(bench, "BATCHES", (4,))
    monkeypatch.setattr(reports, "copy_bandwidth", lambda device: 1e9)


def test_on_a_cpu():
    found = bench.bench_corpus("cpu", quick=True)
    rows = {(row.work, row.by): row for row in found.rows}
    work, by = "JPEGs of 64² → files of 273 patches", "relevance none"
    whole, chosen = rows[work, by], rows[f"{work}: choosing and sampling", by]
    assert whole.timing.median > 0 and whole.bar >= chosen.timing.median / 0.85
    assert all(rows[f"{work}: stage {stage}", by].timing.median > 0 for stage in bench.STAGES)
    assert any("images/s" in note and "(bar: 85%)" in note for note in found.notes)
    assert ("decoding alone, 1 threads", "pillow") in rows


@pytest.mark.gpu
def test_on_a_gpu():
    found = bench.bench_corpus("cuda", quick=True)
    assert not [note for note in found.notes if "NOT captured" in note]
    assert {row.bar and round(row.bar) for row in found.rows if row.work.startswith("decoded")} == {125, 333, None}
