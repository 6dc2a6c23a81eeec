"""`texturevlm bench corpus`: images per second of `texturevlm corpus`, stage by stage, and of all stages together.

On a GPU: images that are decoded and on the device → patches, in batches by a captured graph; then from JPEGs on a disk
to files, with more and more threads that decode. On a CPU: the stages, the engine beside its slowest stage, and a local
Ray cluster of 1, 2 and 4 workers, if Ray is installed. Images are photographs and pages of 1024², half each, as JPEG.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from texturevlm.bench.pictures import SIDE, page, photograph
from texturevlm.bench.report import Report, Row, begin
from texturevlm.bench.timing import Timing
from texturevlm.corpus.build import CPU_BATCH, GPU_BATCH, build
from texturevlm.corpus.choose import Bucket, Chooser
from texturevlm.corpus.decode import DECODERS, find_decoder
from texturevlm.corpus.formats import FORMATS
from texturevlm.corpus.ledger import Ledger
from texturevlm.corpus.recipe import Recipe
from texturevlm.corpus.rows import DTYPES
from texturevlm.corpus.sources import entries_of
from texturevlm.corpus.store import Store
from texturevlm.corpus.worker import STAGES, Clock, UnitWorker
from texturevlm.defaults import BUDGET

BATCHES = (32, 64)
QUESTION = "What is the total amount of the invoice dated 14 March 1998?"
# Images per second that the project asked for, by relevance; prior is what `auto` is without a question today.
BARS = {"none": 8000.0, "prior": None, "scout": 3000.0}
SHARE_BAR = 0.85  # of the slowest stage alone, for the engine
GPU_IMAGES, CPU_IMAGES, RAY_IMAGES = 1280, 12, 32  # on a GPU ten units of the usual size, two of which warm up
CPU_RELEVANCE = ("none", "prior")
THREADS = (1, 2, 4, 8, 16)


def bench_corpus(device: str | None = None, *, quick: bool = False) -> Report:
    """Measure everything; `quick` takes fewer images and leaves Ray out."""
    report = begin(__name__, "Corpus", device, quick)
    with tempfile.TemporaryDirectory(prefix="texturevlm-bench-") as folder:
        if report.device == "cuda":
            _decoded_batches(report)
            files = _files(Path(folder) / "in", GPU_IMAGES // (4 if quick else 1))
            _decoding(report, files)
            for threads in (4, 16) if quick else (1, 4, 16):
                _engine(report, Path(folder), files, threads, f"{threads} threads decode")
        else:
            files = _files(Path(folder) / "in", CPU_IMAGES // (2 if quick else 1))
            _decoding(report, files)
            for relevance in CPU_RELEVANCE:
                _engine(report, Path(folder), files, 1, f"relevance {relevance}", relevance=relevance)
            if not quick:
                _ray(report, Path(folder))
    report.notes += [
        "µs per image; images per second: 1,000,000 divided by that. decoded: bytes of images on the device, one graph",
        "per batch, from a call until the next can begin. engine: from files to files, one worker, without its start.",
        "stage: what the engine's threads spent at it, divided by their number. alone: nothing else runs.",
    ]
    return report


# On a GPU: images that are decoded.


def _decoded_batches(report: Report) -> None:
    pictures = {"photographs": photograph, "pages": page}
    for relevance, bar in BARS.items():
        for name, make in pictures.items():
            for batch in BATCHES[-1:] if report.quick else BATCHES:
                _decoded_batch(report, relevance, bar, name, make, batch)


def _decoded_batch(
    report: Report, relevance: str, bar: float | None, name: str, make: Callable[..., Tensor], batch: int
) -> None:
    recipe = Recipe("bench", "images", relevance=relevance, batch=batch, device="cuda")
    chooser, bucket = Chooser(recipe, torch.device("cuda")), Bucket((SIDE, SIDE), relevance, "")
    raw = _bytes(make(batch, SIDE, SIDE)).cuda()
    sizes = [(SIDE, SIDE)] * batch
    call = partial(chooser.choose, bucket, raw, None, [QUESTION] * batch, sizes)
    work = f"decoded {name} of {SIDE}² → {BUDGET} patches, batches of {batch}"
    limit = 1e6 / bar if bar else None
    median = report.add(work, f"auto, relevance {relevance}", call, "host", bar=limit, per=batch, calls=8, repeats=5)
    report.notes.append(f"{work}, relevance {relevance}: {1e6 / median:,.0f} images/s{_asked(bar)}.  ")
    if chooser.reason is not None:
        report.notes.append(f"NOT captured: {chooser.reason}  ")


def _asked(bar: float | None) -> str:
    return f" (bar: {bar:,.0f})" if bar else ""


def _bytes(images: Tensor) -> Tensor:
    """(B, 3, H, W), 0 to 1 → (B, H, W, 3) uint8."""
    return images.mul(255).round().byte().permute(0, 2, 3, 1).contiguous()


# From files.


def _files(folder: Path, count: int) -> Path:
    """JPEGs of photographs and pages; eight are made, and written again and again."""
    folder.mkdir()
    contents = []
    for make in (photograph, page) * 4:
        Image.fromarray(_bytes(make(1, SIDE, SIDE))[0].numpy()).save(folder / "made.jpg", quality=90)
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
        threads = [count for count in THREADS if count <= max(2, torch.get_num_threads())]
        for count in threads if name == find_decoder() else [1]:
            with ThreadPoolExecutor(count) as pool:
                run = partial(_each, pool, decode, contents)
                report.add(f"decoding alone, {count} threads", name, run, "cpu", per=len(contents), repeats=3)


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
    with ThreadPoolExecutor(slots) as pool:
        list(pool.map(worker, range(slots)))
        started = time.perf_counter()
        found = list(pool.map(worker, range(slots, units)))
        wall = time.perf_counter() - started
    count = sum(one.rows for one in found)
    work = f"JPEGs of {SIDE}² → files of {BUDGET} patches"
    for stage in STAGES:
        seconds = sum(one.seconds[stage] for one in found) / (threads if stage == "decode" else slots)
        _row(report, f"{work}: stage {stage}", name, "engine", seconds * 1e6 / count)
    alone = _alone(worker)
    for stage, each in alone.items():
        _row(report, f"{work}: {stage}", name, "alone", each)
    slowest, whole = max(alone.values()), wall * 1e6 / count
    _row(report, work, name, "engine", whole, bar=slowest / SHARE_BAR)
    report.notes.append(
        f"{count} {work}, {name}: {1e6 / whole:,.1f} images/s, {slowest / whole:.0%} of its slowest stage alone "
        f"(bar: {SHARE_BAR:.0%}).  "
    )


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


def _row(report: Report, work: str, by: str, how: str, each: float, bar: float | None = None) -> None:
    report.append(Row(work, by, how, Timing(each, each, each), bar=bar))


def _ray(report: Report, folder: Path) -> None:
    """The same units on 1, 2 and 4 workers of a cluster on this machine."""
    work = f"{RAY_IMAGES} JPEGs of 256², {BUDGET} tokens, without the start of the workers"
    if find_spec("ray") is None:
        return report.add_missing(work, "ray", "not installed")
    import ray

    source = folder / "small"
    source.mkdir()
    for number in range(RAY_IMAGES):
        Image.fromarray(_bytes(photograph(1, 256, 256))[0].numpy()).save(source / f"{number:03}.jpg")
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=300 << 20, log_to_driver=False)
    try:
        for workers in (1, 2, 4):
            out = Path(tempfile.mkdtemp(dir=folder)) / "out"
            given: Any = {"relevance": "none", "device": "cpu", "unit": 2}
            build(source, out, engine="ray", workers=workers, **given)
            ledger = Ledger(Store(out))
            plan = ledger.plan()
            assert plan is not None
            each = sum(done.wall for _, done in ledger.done(plan)) * 1e6 / RAY_IMAGES / workers
            _row(report, work, f"ray, {workers} workers", "engine", each)
    finally:
        ray.shutdown()
