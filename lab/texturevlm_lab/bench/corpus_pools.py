"""Units by several workers: processes that share a device, and actors of a Ray cluster on this machine."""

from __future__ import annotations

import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from PIL import Image

from texturevlm.corpus.build import CPU_BATCH, GPU_BATCH
from texturevlm.corpus.decode import find_decoder
from texturevlm.corpus.ledger import Ledger
from texturevlm.corpus.pools import Died, Failed, Finished, LocalPool, Pool, process_context
from texturevlm.corpus.recipe import Recipe
from texturevlm.corpus.sources import entries_of
from texturevlm.corpus.store import Store
from texturevlm.corpus.worker import Clock, UnitWorker
from texturevlm.defaults import BUDGET
from texturevlm_lab.bench.pictures import as_bytes, photograph
from texturevlm_lab.bench.report import Report

SHARE_BAR = 0.85  # of the slowest stage alone, for the engine
BEGIN_SECONDS = 30.0  # for a process
RAY_IMAGES, RAY_UNIT, RAY_WORKERS = 64, 2, (1, 2, 4)


def processes(
    report: Report, work: str, by: str, source: Path, workers: int, threads: int, *, beside_decoding: bool = False
) -> None:
    """From files to files by several processes.

    beside_decoding: whether reading and decoding, the slowest stage on a GPU, is measured alone, for the bar
    """
    slots = 2 if report.device == "cuda" else 1  # units at once, per process
    unit = max(1, len(list(source.iterdir())) // (5 * workers * slots))
    with tempfile.TemporaryDirectory(prefix="texturevlm-bench-") as folder:
        units = _planned(folder, source, unit, min(unit, GPU_BATCH), report.device)
        pool = LocalPool(folder, devices=[report.device] * workers, threads=threads, slots=slots)
        each, rows = _driven(pool, units, workers * slots)
        alone = _decoding_alone(folder, units, report.device, workers, threads) if beside_decoding else None
    if alone is not None:
        report.add_figure(f"{work}: reading and decoding", by, "alone", alone)
    report.add_figure(work, by, "engine", each, bar=alone and alone / SHARE_BAR)
    share = f", {alone / each:.0%} of its slowest stage alone (bar: {SHARE_BAR:.0%})" if alone else ""
    report.notes.append(f"{rows} {work}, {by}: {1e6 / each:,.1f} images/s{share}.  ")


def ray_workers(report: Report) -> None:
    """The same units on more and more workers of a cluster on this machine."""
    work = f"{RAY_IMAGES} JPEGs of 256² → files of {BUDGET} patches"
    if find_spec("ray") is None:
        return report.add_missing(work, "ray", "not installed")
    import ray

    from texturevlm.corpus.pools import RayPool

    alone = 0.0
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=300 << 20, log_to_driver=False)
    try:
        with tempfile.TemporaryDirectory(prefix="texturevlm-bench-") as source:
            for number in range(RAY_IMAGES):
                Image.fromarray(as_bytes(photograph(1, 256, 256))[0].numpy()).save(Path(source) / f"{number:03}.jpg")
            for workers in RAY_WORKERS:
                with tempfile.TemporaryDirectory(prefix="texturevlm-bench-") as folder:
                    units = _planned(folder, Path(source), RAY_UNIT, CPU_BATCH, "cpu")
                    given: Any = {"workers": workers, "device": "cpu", "threads": 1, "address": None}
                    pool = RayPool(folder, **given)
                    ray.get([actor.ready.remote() for actor in pool.actors.values()])  # they begin one after another
                    each, _ = _driven(pool, units, workers)
                by = f"ray, {workers} worker{'s' if workers > 1 else ''}"
                report.add_figure(work, by, "engine", each)
                alone = alone or each
                report.notes.append(f"{work}, {by}: {1e6 / each:,.1f} images/s, {alone / each:.2f} × one worker.  ")
    finally:
        ray.shutdown()


def _planned(folder: str, source: Path, unit: int, batch: int, device: str) -> int:
    """Plan a corpus; how many units it has."""
    recipe = Recipe(
        str(source), "images", unit=unit, batch=batch, relevance="none", device=device,
        decoder=find_decoder("auto", device),
    )  # fmt: skip
    return Ledger(Store(folder)).begin(recipe, entries_of(recipe.source, recipe.kind), unit).units


def _decoding_alone(folder: str, units: int, device: str, workers: int, threads: int) -> float:
    """µs per image of processes that read and decode the units of a corpus, and do nothing with them."""
    context = process_context()
    begun = context.Barrier(workers + 1, timeout=BEGIN_SECONDS)
    arguments = (begun, folder, device, threads)
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=arguments) as pool:
        found = pool.map(_decode, range(units))
        begun.wait()
        started = time.perf_counter()
        images = sum(found)
        return (time.perf_counter() - started) * 1e6 / images


_worker: UnitWorker  # of a process that decodes


def _begin(begun: Any, folder: str, device: str, threads: int) -> None:
    """Begin a process that decodes; all go on at once."""
    global _worker
    _worker = UnitWorker(folder, device=device, threads=threads)
    begun.wait()


def _decode(number: int) -> int:
    return sum(len(window) for window in _worker.windows(_worker.ledger.unit(number), Clock()))


def _driven(pool: Pool, units: int, warm: int) -> tuple[float, int]:
    """Have all units made: µs per image, and of how many, by the wall clock from when the first `warm` units are done.

    warm: as many as the pool works on at once: every worker gets some of these, and the others wait until it has begun
    """
    rows, started = 0, 0.0
    try:
        for numbers in (range(warm), range(warm, units)):
            waiting, left, rows, started = iter(numbers), len(numbers), 0, time.perf_counter()
            while left:
                while pool.room and (number := next(waiting, None)) is not None:
                    pool.submit(number, 0)
                event = pool.next()
                if isinstance(event, (Failed, Died)):
                    raise RuntimeError(f"bench corpus: {event}")
                if isinstance(event, Finished):
                    left, rows = left - 1, rows + event.done.rows
        return (time.perf_counter() - started) * 1e6 / rows, rows
    finally:
        pool.close()
