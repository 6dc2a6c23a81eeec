"""The load test, small, on the CPU."""

import asyncio
import subprocess
import time

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")

from texturevlm_lab.bench.report import Report, measure
from texturevlm_lab.bench.serve import _Rows
from texturevlm_lab.bench.serve_clients import send


def test_a_quick_run():
    report = measure("serve", "cpu", quick=True)
    assert [row.by for row in report.rows] == ["1 client", "4 clients", "32 clients", "1 client"]
    said = " ".join(report.notes)
    assert "requests/s" in said and "0 failed otherwise; a chat after it was answered 200" in said


def test_a_row_that_comes_too_late_says_so():
    report = Report("Server", "cpu", 1e9)
    assert not _Rows(report, [{}], time.monotonic() + 1).add("chat", "http://127.0.0.1:1", "/", [{}], 8)
    assert [row[:3] for row in report.rows] == [("chat", "8 clients", "failed: no time was left")]


def test_a_row_that_fails_does_not_end_the_others(monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "Traceback\nhttpx.ConnectError: nobody listens")
    monkeypatch.setattr("texturevlm_lab.bench.serve.subprocess.run", lambda *given, **options: failed)
    report = Report("Server", "cuda", 1e9)
    rows = _Rows(report, [{}], time.monotonic() + 60)
    rows.warm("http://127.0.0.1:1", 1)
    assert not rows.add("chat", "http://127.0.0.1:1", "/", [{}], 2)
    assert [row[1:4] for row in report.rows] == [
        ("2 clients", "failed: the clients failed: httpx.ConnectError: nobody listens", None)
    ]


def test_a_row_without_an_answer_says_what_came(monkeypatch):
    refused = {"seconds": [0.1, 0.1], "statuses": [500, 429], "all": 0.1}
    monkeypatch.setattr(_Rows, "sent", lambda *given: refused)
    report = Report("Server", "cpu", 1e9)
    assert not _Rows(report, [{}], 0.0).add("chat", "http://127.0.0.1:1", "/", [{}], 2)
    assert report.rows[0].state == "none was answered 200, got {500: 1, 429: 1}"


@pytest.mark.parametrize("address", ["http://10.0.0.1:80", "http://example.com", "http://0.0.0.0:1"])
def test_nothing_but_this_machine_is_a_target(address):
    with pytest.raises(ValueError, match="must be on this machine"):
        asyncio.run(send(address, "/", [{}], 1, 1))
