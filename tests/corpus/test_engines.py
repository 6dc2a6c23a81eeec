"""Every engine makes the same bytes, and lives through the death of its workers."""

import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.corpus import content, encoded, faults, fill, made, picture
from texturevlm import corpus
from texturevlm.corpus import pools, worker
from texturevlm.corpus.build import gpu_workers
from texturevlm.corpus.choose import Chooser
from texturevlm.corpus.decode import DECODERS
from texturevlm.corpus.recipe import VERSION, Recipe

pytest.importorskip("pyarrow", reason="needs the extra corpus")
serve = pools._serve


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return fill(tmp_path_factory.mktemp("source") / "in")


@pytest.fixture(scope="module")
def whole(source, tmp_path_factory):
    """What one process makes."""
    out = tmp_path_factory.mktemp("whole") / "out"
    made(source, out)
    return content(out)


def test_processes_make_the_same_bytes(source, whole, tmp_path):
    found = made(source, tmp_path / "out", workers=2, threads=2)
    assert (found.rows, found.made, found.failed) == (10, 10, {})
    assert content(tmp_path / "out") == whole
    assert set(found.rates) == {"read", "decode", "choose", "encode", "write"} and found.bottleneck in found.rates


def serve_deadly(*given):
    """A worker whose decoder kills it on marked images: always, or only the first time."""
    mark_decoders()
    serve(*given)


def mark_decoders() -> None:
    for name, decode in list(DECODERS.items()):
        DECODERS[name] = lambda data, decode=decode: deadly(data) or decode(data)


def deadly(data: bytes) -> None:
    once = Path(data[at:].split(b"|")[0].decode()) if (at := data.find(b"/")) >= 0 and b"|once" in data else None
    if b"|always" in data or (once is not None and not once.exists()):
        if once is not None:
            once.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def test_workers_that_die(tmp_path, monkeypatch):
    """kill -9 in the middle of a unit costs nothing; an image that kills every worker costs one row."""
    source = fill(tmp_path / "in", 6)
    mark = f"{tmp_path / 'killed'}|once".encode()
    (source / "a.jpg").write_bytes(encoded(picture(20), "JPEG", comment=mark))
    made(source, tmp_path / "whole")
    monkeypatch.setattr(pools, "_serve", serve_deadly)
    found = made(source, tmp_path / "out", workers=1)
    assert (tmp_path / "killed").exists() and found.rows == 7 and not found.failed
    assert content(tmp_path / "out") == content(tmp_path / "whole")
    (source / "b.jpg").write_bytes(encoded(picture(21), "JPEG", comment=b"|always"))
    found = made(source, tmp_path / "again", workers=1)
    assert found.rows == 7 and not found.failed
    assert faults(tmp_path / "again") == {"b.jpg": "a worker died while it was decoded"}
    assert not list((tmp_path / "again" / "tries").rglob("*.json"))


def serve_dying(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_unit_that_kills_every_worker_is_given_up_by_name(source, tmp_path, monkeypatch):
    monkeypatch.setattr(pools, "_serve", serve_dying)
    found = made(source, tmp_path / "out", workers=1, unit=10)
    assert found.failed == {0: "its worker died 3 times, killed by SIGKILL"} and found.rows == 0
    monkeypatch.undo()
    assert made(source, tmp_path / "out", unit=10).rows == 10


def serve_without_gpu(*given):
    """A worker whose GPU fails."""

    def fail(chooser, bucket, images):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    Chooser.__call__ = fail
    serve(*given)


def test_a_gpu_that_fails_costs_no_row(source, tmp_path, monkeypatch):
    """No image is to blame: the worker is replaced, and the unit stays undone if that does not help."""
    monkeypatch.setattr(pools, "_serve", serve_without_gpu)
    found = made(source, tmp_path / "out", workers=1, unit=10)
    assert found.failed == {0: "its worker died 3 times, its GPU failed"} and found.errors == found.rows == 0
    monkeypatch.undo()
    assert made(source, tmp_path / "out", unit=10).rows == 10


def test_workers_end_by_themselves(source, tmp_path):
    """Else what libraries hold, such as semaphores, would be left behind."""
    made(source, tmp_path / "out")
    pool = pools.LocalPool(str(tmp_path / "out"), devices=["cpu"], threads=1, slots=1)
    pool.close()
    assert [one.process.exitcode for one in pool._running] == [0]


@pytest.mark.parametrize(
    ("gpus", "cores", "gigabytes", "model", "wanted"),
    [
        (1, 16, 139, "", 4),
        (8, 192, 80, "", 32),
        (1, 16, 24, "", 3),
        (1, 4, 80, "", 1),
        (2, 2, 8, "", 2),
        (2, 64, 80, "reader", 2),
    ],
)
def test_how_many_processes_share_a_gpu(monkeypatch, gpus, cores, gigabytes, model, wanted):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    properties = SimpleNamespace(total_memory=gigabytes << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    recipe = Recipe("in", "images", model=model, write="features" if model else "patches", device="cuda")
    assert gpu_workers(recipe) == wanted


def test_another_version_on_a_node_is_refused(source, tmp_path, monkeypatch):
    made(source, tmp_path / "out")
    monkeypatch.setattr(worker, "VERSION", 77)
    with pytest.raises(ValueError, match=rf"version {VERSION} of the bytes, as the plan says, and .* here makes 77"):
        worker.UnitWorker(str(tmp_path / "out"))


def test_a_worker_that_cannot_begin_says_why(source, tmp_path):
    with pytest.raises(OSError, match=r"a worker could not begin: .*no-such-model"):
        made(source, tmp_path / "out", workers=1, write="features", model="/no-such-model")
    assert made(source, tmp_path / "out").rows == 10  # the folder is free again


class DeadlyActor(pools._Actor):
    """As `serve_deadly`, on a node of a cluster."""

    def __init__(self, *given):
        mark_decoders()
        super().__init__(*given)


def test_a_ray_cluster_makes_the_same_bytes(source, whole, tmp_path, monkeypatch):
    """And lives through the death of a worker."""
    ray = pytest.importorskip("ray", reason="needs the extra ray")
    monkeypatch.setenv("RAY_worker_niceness", "0")  # else its workers get nothing of a busy machine
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=300 << 20, log_to_driver=False)
    try:
        found = made(source, tmp_path / "out", engine="ray", workers=2)
        assert (found.rows, found.failed) == (10, {}) and content(tmp_path / "out") == whole
        monkeypatch.setattr(pools, "_Actor", DeadlyActor)
        deadly = fill(tmp_path / "in", 2)
        (deadly / "b.jpg").write_bytes(encoded(picture(21), "JPEG", comment=b"|always"))
        found = made(deadly, tmp_path / "deadly", engine="ray", workers=1)
        assert found.rows == 2 and faults(tmp_path / "deadly") == {"b.jpg": "a worker died while it was decoded"}
        with pytest.raises(ValueError, match="a worker needs 9 CPUs and 0 GPUs of the Ray cluster, which has 4 and 0"):
            made(deadly, tmp_path / "large", engine="ray", workers=1, threads=9)
    finally:
        ray.shutdown()


@pytest.mark.gpu
@pytest.mark.parametrize("relevance", ["none", "prior"])
def test_on_a_gpu_every_run_makes_the_same_bytes(tmp_path, relevance):
    """In this process, and in one that has two units at once; batches are captured where they are full."""
    source = fill(tmp_path / "in", 40)
    given = {"device": "cuda", "relevance": relevance, "unit": 10, "batch": 4}
    made(source, tmp_path / "here", **given)
    made(source, tmp_path / "again", **given)
    made(source, tmp_path / "process", workers=1, threads=4, **given)
    assert content(tmp_path / "here") == content(tmp_path / "again") == content(tmp_path / "process")


@pytest.mark.gpu
def test_a_gpu_chooses_what_a_cpu_chooses(tmp_path):
    source = fill(tmp_path / "in", 12)
    rows = {}
    for device in ("cpu", "cuda"):
        made(source, tmp_path / device, device=device)
        opened = corpus.open(tmp_path / device)
        rows[device] = [opened.row(number) for number in range(len(opened))]
    for one, other in zip(rows["cpu"], rows["cuda"], strict=True):
        assert one.key == other.key and one.footprints == pytest.approx(other.footprints, abs=1e-2)
        assert abs(one.payload.astype(int) - other.payload.astype(int)).max() <= 2
