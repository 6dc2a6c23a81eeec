"""The load test, small, on the CPU."""

import asyncio
import time

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")

from texturevlm.bench.report import Report
from texturevlm.bench.serve import _row, bench_serve
from texturevlm.bench.serve_clients import send


def test_a_quick_run():
    report = bench_serve("cpu", quick=True)
    assert [row.by for row in report.rows] == ["1 client", "1 client", "4 clients", "32 clients"]
    said = " ".join(report.notes)
    assert "requests/s" in said and "0 failed otherwise; a chat after it was answered 200" in said


def test_a_row_that_comes_too_late_says_so():
    report = Report("Server", "cpu", 1e9)
    assert not _row(report, "chat", "http://127.0.0.1:1", "/", [{}], 8, ends=time.monotonic() + 1)
    assert [row[:3] for row in report.rows] == [("chat", "8 clients", "no time was left")]


@pytest.mark.parametrize("address", ["http://10.0.0.1:80", "http://example.com", "http://0.0.0.0:1"])
def test_nothing_but_this_machine_is_a_target(address):
    with pytest.raises(ValueError, match="must be on this machine"):
        asyncio.run(send(address, "/", [{}], 1, 1))
