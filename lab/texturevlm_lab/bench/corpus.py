"""`texturevlm bench corpus`: images per second of `texturevlm corpus`, stage by stage, and of all stages together.

On a GPU: images that are decoded and on the device → patches, in batches by captured graphs (corpus_decoded.py); from
JPEGs on a disk to files, by several processes and with fewer and fewer threads that decode; then the stages. On a CPU:
the stages, the engine beside its slowest stage, and a local Ray cluster of 1, 2 and 4 workers, if Ray is installed.
Images are photographs and pages of 1024², half each, as JPEG. A GPU is lent by the minute: what is not begun after
SECONDS is left out there.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from PIL import Image

from texturevlm.corpus.build import CPU_BATCH, GPU_BATCH
from texturevlm.corpus.decode import DECODERS, find_decoder
from texturevlm.corpus.formats import DTYPES, FORMATS
from texturevlm.corpus.ledger import Ledger
from texturevlm.corpus.recipe import Recipe
from texturevlm.corpus.sources import entries_of
from texturevlm.corpus.store import Store
from texturevlm.corpus.worker import STAGES, Clock, UnitWorker
from texturevlm.defaults import BUDGET
from texturevlm_lab.bench.corpus_decoded import decoded, explained, pictures
from texturevlm_lab.bench.corpus_pools import SHARE_BAR, processes, ray_workers
from texturevlm_lab.bench.pictures import SIDE, as_bytes, page, photograph
from texturevlm_lab.bench.report import Report

TITLE = "Corpus"
ENGINE_WORK = f"JPEGs of {SIDE}² → files of {BUDGET} patches"
SECONDS = 90.0  # on a GPU
GPU_IMAGES, CPU_IMAGES = 1280, 12  # on a GPU ten units of the usual size, two of which warm up
CPU_RELEVANCE = ("none", "prior")
THREADS = (1, 2, 4, 8, 16)
GPU_THREADS = (16, 4, 1)  # of the engine in one process
CPU_WORKERS = ((1, 1), (2, 1))
GPU_WORKERS = (4, 4)  # processes of the engine, and threads of each, as on a machine of 16 cores
MEASURED_UNITS = 4  # at most, where one thread decodes


def bench(report: Report) -> None:
    """Measure everything; a quick run takes fewer images and leaves Ray out."""
    report.notes += [
        "µs per image; images per second: 1,000,000 divided by that. decoded: bytes of images on the device, a graph",
        "per batch; the patches stay there. in a row: wall clock of 8 batches per stream, one after another, questions",
        "encoded meanwhile. warm: device time of one stage.",
        "engine: from files to files, one worker, without its start. stage: what the engine's threads spent at it,",
        "divided by their number. alone: nothing else runs.",
        "",
    ]
    with tempfile.TemporaryDirectory(prefix="texturevlm-bench-") as folder:
        (_on_gpu if report.device == "cuda" else _on_cpu)(report, Path(folder))


def _on_gpu(report: Report, folder: Path) -> None:
    report.ends = time.perf_counter() + SECONDS
    raw = pictures(quick=report.quick)
    decoded(report, raw)
    files = _files(folder / "in", GPU_IMAGES // (4 if report.quick else 1))
    if not report.late(ENGINE_WORK, _workers_by(GPU_WORKERS)):
        processes(report, ENGINE_WORK, _workers_by(GPU_WORKERS), files, *GPU_WORKERS, beside_decoding=True)
    for threads in GPU_THREADS[:2] if report.quick else GPU_THREADS:
        if not report.late(ENGINE_WORK, _decoding_by(threads)):
            _engine(report, folder, files, threads, _decoding_by(threads))
    explained(report, raw)
    _decoding(report, files)


def _on_cpu(report: Report, folder: Path) -> None:
    files = _files(folder / "in", CPU_IMAGES // (2 if report.quick else 1))
    _decoding(report, files)
    for relevance in CPU_RELEVANCE:
        _engine(report, folder, files, 1, f"relevance {relevance}, {_decoding_by(1)}", relevance=relevance)
    if not report.quick:
        _engine(report, folder, files, 2, f"relevance none, {_decoding_by(2)}")
        for workers in CPU_WORKERS:
            processes(report, ENGINE_WORK, f"relevance none, {_workers_by(workers)}", files, *workers)
        ray_workers(report)


def _decoding_by(threads: int) -> str:
    return f"{threads} thread{'s' if threads > 1 else ''} decode{'' if threads > 1 else 's'}"


def _files(folder: Path, count: int) -> Path:
    """JPEGs of photographs and pages; eight are made, and written again and again."""
    folder.mkdir()
    contents = []
    for make in (photograph, page) * 4:
        Image.fromarray(as_bytes(make(1, SIDE, SIDE))[0].numpy()).save(folder / "made.jpg", quality=90)
        contents.append((folder / "made.jpg").read_bytes())
    (folder / "made.jpg").unlink()
    for number in range(count):
        (folder / f"{number:05}.jpg").write_bytes(contents[number % len(contents)])
    return folder


def _decoding(report: Report, folder: Path) -> None:
    """Decoding alone, by each decoder and by more and more threads."""
    contents = [path.read_bytes() for path in sorted(folder.iterdir())[:64]]
    for name, decode in DECODERS.items():
        if name != "pillow" and find_spec(name) is None:
            report.add_missing("decoding alone", name, "not installed")
            continue
        threads = [count for count in THREADS if count <= max(2, os.cpu_count() or 1)]  # a worker took torch's
        for count in threads if name == find_decoder() else [1]:
            work = f"decoding alone, {count} threads"
            if report.late(work, name):
                continue
            with ThreadPoolExecutor(count) as pool:
                run = partial(_each, pool, decode, contents)
                report.add(work, name, run, "cpu", per=len(contents), repeats=3)


def _each(pool: ThreadPoolExecutor, decode: Callable[[bytes], Any], contents: Sequence[bytes]) -> None:
    for _ in pool.map(decode, contents):
        pass


def _engine(report: Report, folder: Path, source: Path, threads: int, name: str, *, relevance: str = "none") -> None:
    """From files to files by one worker, as `LocalPool` runs it; its first units capture graphs and fill caches."""
    on_gpu = report.device == "cuda"
    images = len(list(source.iterdir()))
    batch, unit, slots = (GPU_BATCH, min(Recipe.unit, images // 4), 2) if on_gpu else (CPU_BATCH, 2, 1)
    how: Any = {
        "decoder": find_decoder("auto", report.device),
        "device": report.device,
        "relevance": relevance,
        "batch": batch,
    }
    url = tempfile.mkdtemp(dir=folder)
    recipe, ledger = Recipe(str(source), "images", unit=unit, **how), Ledger(Store(url))
    units = ledger.begin(recipe, entries_of(recipe.source, recipe.kind), unit).units
    worker = UnitWorker(url, device=report.device, threads=threads)
    measured = units - slots if threads > 1 else min(units - slots, MEASURED_UNITS)  # one thread takes long
    with ThreadPoolExecutor(slots) as pool:
        list(pool.map(worker, range(slots)))
        started = time.perf_counter()
        found = list(pool.map(worker, range(slots, slots + measured)))
        wall = time.perf_counter() - started
    count = sum(one.rows for one in found)
    for stage in STAGES:
        seconds = sum(one.seconds[stage] for one in found) / (threads if stage == "decode" else slots)
        report.add_figure(f"{ENGINE_WORK}: stage {stage}", name, "engine", seconds * 1e6 / count)
    alone = _alone(worker)
    for stage, each in alone.items():
        report.add_figure(f"{ENGINE_WORK}: {stage}", name, "alone", each)
    slowest, whole = max(alone.values()), wall * 1e6 / count
    report.add_figure(ENGINE_WORK, name, "engine", whole, bar=slowest / SHARE_BAR)
    report.notes.append(
        f"{count} {ENGINE_WORK}, {name}: {1e6 / whole:,.1f} images/s, {slowest / whole:.0%} of its slowest stage alone "
        f"(bar: {SHARE_BAR:.0%}).  "
    )


def _workers_by(workers: tuple[int, int]) -> str:
    return f"{workers[0]} process{'es' if workers[0] > 1 else ''}, {_decoding_by(workers[1])} in each"


def _alone(worker: UnitWorker) -> dict[str, float]:
    """µs per image of the stages that may be slow, one after the other."""
    clock, spent, count = Clock(), [0.0, 0.0, 0.0], 0
    for turn, number in enumerate((0, 0, 1, 2)):
        started = time.perf_counter()
        windows = list(worker.windows(worker.ledger.unit(number), clock))
        decoded = time.perf_counter()
        made = [worker.rows(window, clock)[0] for window in windows]
        chosen = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="texturevlm-bench-") as folder:
            file = FORMATS[worker.recipe.format].writer(Path(folder) / "rows", {}, DTYPES[worker.recipe.write])
            for rows in made:
                file.add(rows)
            file.close()
            written = time.perf_counter()
        if turn > 0:  # the first one captures graphs for this thread
            times = (decoded - started, chosen - decoded, written - chosen)
            spent = [sum(pair) for pair in zip(spent, times)]
            count += sum(len(window) for window in windows)
    names = ("reading and decoding", "choosing and sampling", "writing")
    return dict(zip(names, (one * 1e6 / count for one in spent)))
