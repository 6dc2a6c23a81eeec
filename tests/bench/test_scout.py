"""The scout's benchmark: what it times, on a page small enough for a test."""

import pytest
import torch

from texturevlm.relevance.ocr import Page, Word
from texturevlm_lab.bench import report as reports
from texturevlm_lab.bench import scout as bench


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(bench, "SIZE", (220, 170))
    monkeypatch.setattr(reports, "copy_bandwidth", lambda device: 1e9)


@pytest.mark.parametrize("ocr", [False, True])
def test_on_a_cpu(monkeypatch, ocr):
    read = []

    def reading(image):
        read.append(image.shape)
        return Page((Word("total", (10, 10, 50, 20), 0, 1.0),), (220, 170))

    monkeypatch.setattr(bench, "read_page", reading)
    monkeypatch.setattr(bench, "find_spec", lambda name: object() if ocr else None)
    found = reports.measure("scout", "cpu", quick=True)
    assert [row.by for row in found.rows] == ["scout"] * 3 + ["words (RapidOCR)"] * ocr
    assert found.rows[0].bar == 5e5 and found.rows[0].work == "page 170×220 and question → map"
    assert all(row.timing.median > 0 for row in found.rows)
    assert found.rows[2].timing.median < found.rows[0].timing.median  # another question costs less than a page
    assert bool(read) is ocr and all(shape == torch.Size([1, 3, 220, 170]) for shape in read)
    assert "| the page alone | scout | cpu |" in found.table()
