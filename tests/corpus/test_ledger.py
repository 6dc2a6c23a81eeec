"""What is done stays done, whatever happens to the run; nothing else passes for done."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.corpus import FAST, content, fill, keys, made
from texturevlm import corpus
from texturevlm.corpus.ledger import Entry, Ledger, write_entries
from texturevlm.corpus.store import Store
from texturevlm.corpus.worker import UnitWorker

pytest.importorskip("pyarrow", reason="needs the extra corpus")
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def source(tmp_path):
    return fill(tmp_path / "in")


def test_a_second_run_makes_nothing_and_changes_nothing(source, tmp_path):
    first = made(source, tmp_path / "out")
    before = content(tmp_path / "out")
    second = made(source, tmp_path / "out")
    assert (first.made, second.made, second.rows) == (10, 0, 10)
    assert content(tmp_path / "out") == before


@pytest.mark.parametrize("step", ["reading", "data", "errors", "manifest"])
def test_a_run_that_stops_anywhere_is_finished_with_the_same_bytes(source, tmp_path, monkeypatch, step):
    """As kill -9 at that step: what was written before it stays, nothing after it happens."""
    (source / "part0" / "broken.png").write_bytes(b"no image")
    made(source, tmp_path / "whole")
    stop_at(monkeypatch, step)
    with pytest.raises(Killed):
        made(source, tmp_path / "out")
    monkeypatch.undo()
    done = len(list((tmp_path / "out" / "done").rglob("*.json")))
    assert done < 3
    if step in ("errors", "manifest"):  # data without a manifest do not count
        assert len(list((tmp_path / "out" / "data").rglob("*.parquet"))) == done + 1
    assert made(source, tmp_path / "out").units == 3
    assert content(tmp_path / "out") == content(tmp_path / "whole")


class Killed(BaseException):
    """Not an Exception: nothing may catch it."""


def stop_at(monkeypatch, step):
    """The second unit, and the first with an error, gets no further than this step."""
    seen = []
    write, read = Store.write, UnitWorker.rows

    def stopped(store, name, data):
        if step == "errors" and name.startswith("errors/"):
            raise Killed
        if step == "manifest" and name.startswith("done/"):
            seen.append(name)
            if len(seen) == 2:
                raise Killed
        return write(store, name, data)

    def reading(worker, window, clock):
        seen.append(window)
        if step == "reading" and len(seen) == 2:
            raise Killed
        return read(worker, window, clock)

    def hand_in(*_, **__):
        raise Killed

    monkeypatch.setattr(Store, "write", stopped)
    if step == "reading":
        monkeypatch.setattr(UnitWorker, "rows", reading)
    if step == "data":
        monkeypatch.setattr(os, "replace", lambda a, b: hand_in() if "data" in str(b) else os.rename(a, b))


def test_kill_9_of_the_whole_run(source, tmp_path):
    """A real kill of the driver and its worker in the middle; the next run makes the same bytes as an unbroken one."""
    made(source, tmp_path / "whole", unit=2)
    code = f"""
import time
from texturevlm.corpus import build
from texturevlm.corpus.worker import UnitWorker
rows = UnitWorker.rows
UnitWorker.rows = lambda *given: time.sleep(0.3) or rows(*given)
build({str(source)!r}, {str(tmp_path / "out")!r}, workers=0, unit=2, **{FAST!r})
"""
    run = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, start_new_session=True)
    try:
        until = time.monotonic() + 60
        while not list((tmp_path / "out" / "done").rglob("*.json")) and time.monotonic() < until:
            time.sleep(0.02)
    finally:
        os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    done = len(list((tmp_path / "out" / "done").rglob("*.json")))
    assert 1 <= done < 5, "the kill came too late or too early to mean anything"
    found = made(source, tmp_path / "out", unit=2)
    assert found.rows == 10 and found.made <= 10 - 2 * done
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def test_another_configuration_is_refused_by_name(source, tmp_path):
    made(source, tmp_path / "out")
    before = content(tmp_path / "out")
    with pytest.raises(ValueError, match=r"was begun with budget 12, got 13; go on with the same options"):
        made(source, tmp_path / "out", budget=13)
    with pytest.raises(ValueError, match=r"format 'parquet', got 'webdataset'"):
        made(source, tmp_path / "out", format="webdataset")
    assert content(tmp_path / "out") == before


def test_a_second_run_at_the_same_time_is_refused(source, tmp_path):
    with Store(tmp_path / "out").locked(), pytest.raises(OSError, match=r"another run works on .*out; wait until it"):
        made(source, tmp_path / "out")
    assert made(source, tmp_path / "out").rows == 10


def test_a_folder_of_something_else_is_refused(source, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("mine")
    with pytest.raises(ValueError, match=r"must be empty or hold a corpus, got .* with thesis\.tex in it"):
        made(source, tmp_path / "out")


def test_a_corpus_inside_its_source_is_refused(source):
    with pytest.raises(ValueError, match=r"out must lie outside of the source, got .*/in/out in "):
        made(source, source / "out")
    assert not (source / "out").exists()


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_data_that_are_gone_or_cut_are_made_again(source, tmp_path, damage):
    made(source, tmp_path / "out")
    whole = content(tmp_path / "out")
    path = tmp_path / "out" / "data" / "0000" / "0000001.parquet"
    path.unlink() if damage == "missing" else path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ValueError, match="2 of 3 units are done"):
        corpus.open(tmp_path / "out")
    assert made(source, tmp_path / "out").made == 4
    assert content(tmp_path / "out") == whole


def test_unfinished_files_are_removed(source, tmp_path):
    made(source, tmp_path / "out")
    left = tmp_path / "out" / "data" / "0000" / ".0000001.parquet.host-1-0.part"
    left.write_bytes(b"half")
    made(source, tmp_path / "out")
    assert not left.exists() and keys(tmp_path / "out") == sorted(keys(tmp_path / "out"))


def test_the_plan_stays_when_the_source_grows(source, tmp_path):
    made(source, tmp_path / "out")
    for path in (tmp_path / "out" / "done").rglob("*.json"):
        path.unlink()
    fill(source, 12)
    assert made(source, tmp_path / "out").rows == 10


def test_units_with_errors_are_done_again_if_asked(source, tmp_path):
    broken = source / "part0" / "000.jpg"
    right = broken.read_bytes()
    broken.write_bytes(bytes(len(right)))
    assert made(source, tmp_path / "out").errors == 1
    broken.write_bytes(right)
    assert made(source, tmp_path / "out").errors == 1
    found = made(source, tmp_path / "out", retry_errors=True)
    assert (found.errors, found.rows, found.made) == (0, 10, 4)
    assert list(corpus.open(tmp_path / "out").faults()) == []


def test_a_listing_of_any_length_is_read_unit_by_unit(tmp_path):
    store = Store(tmp_path)
    entries = [Entry(f"/images/{index}.png", index, "etag", {"key": str(index)}) for index in range(25)]
    planned = write_entries(store, iter(entries), 10)
    assert (planned.units, planned.entries) == (3, 25)
    listing = Ledger(store)
    assert [len(listing.unit(number).entries) for number in range(3)] == [10, 10, 5]
    assert listing.unit(2).entries == tuple(entries[20:])
    assert [listing.unit(number).digest for number in range(3)] == list(listing.digests())
    changed = [*entries[:24], entries[24]._replace(etag="other")]
    assert write_entries(Store(tmp_path / "b"), iter(changed), 10).digest != planned.digest


def test_manifests_have_times_and_counts(source, tmp_path):
    made(source, tmp_path / "out")
    first = json.loads((tmp_path / "out" / "done" / "0000" / "0000000.json").read_text())
    assert first["rows"] == 4 and first["errors"] == 0 and first["wall"] > 0
    assert all(first["seconds"][stage] > 0 for stage in ("read", "decode", "choose", "encode", "write"))
