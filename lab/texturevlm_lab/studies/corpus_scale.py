"""Memory and time of `texturevlm corpus` at scale, without a large data set.

1. 100,000 tiny images in tars through one worker process: memory must stay flat.
2. A ledger of 100 million images, no pixels: planned, half of its units marked done, resumed.

python -m texturevlm_lab.studies.corpus_scale --out results          (about fifteen minutes on a quiet core)
"""

from __future__ import annotations

import argparse
import io
import json
import resource
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from PIL import Image

from texturevlm.check import check_count
from texturevlm.corpus.build import build
from texturevlm.corpus.ledger import Entry, Ledger
from texturevlm.corpus.recipe import Recipe
from texturevlm.corpus.store import Store
from texturevlm_lab.studies.study import code_of, option, table_main

TINY, ROWS = 100_000, 100_000_000
PER_SHARD, PER_UNIT = 2_000, 1_000
SIDE = 16  # pixels of a tiny image
MEGABYTE = 1 << 20


def tiny_shards(folder: Path, count: int) -> None:
    """Tars of PNGs; each image is another one."""
    random = np.random.default_rng(0)
    for shard in range(-(-count // PER_SHARD)):
        with tarfile.open(folder / f"{shard:05}.tar", "w") as tar:
            for number in range(shard * PER_SHARD, min(count, (shard + 1) * PER_SHARD)):
                file = io.BytesIO()
                Image.fromarray(random.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)).save(file, "PNG")
                member = tarfile.TarInfo(f"{number:08}.png")
                member.size = file.tell()
                file.seek(0)
                tar.addfile(member, file)


class Memory(threading.Thread):
    """Megabytes of this process and of all that it began, twice a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.samples: list[float] = []
        self.stopped = threading.Event()

    def run(self) -> None:
        own = psutil.Process()
        while not self.stopped.wait(0.5):
            total = 0
            for process in (own, *own.children(recursive=True)):
                try:
                    total += process.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            self.samples.append(total / MEGABYTE)

    def at(self, share: float) -> float:
        """The median around a share of the run."""
        middle = min(len(self.samples) - 1, int(share * len(self.samples)))
        return float(np.median(self.samples[max(0, middle - 3) : middle + 4]))


def tiny_images(folder: Path, count: int) -> list[str]:
    (folder / "in").mkdir()
    tiny_shards(folder / "in", count)
    memory = Memory()
    memory.start()
    plain: Any = {"budget": 4, "patch": 8, "allocator": "resize", "relevance": "none", "device": "cpu", "batch": 64}
    found = build(folder / "in", folder / "out", workers=1, **plain)
    memory.stopped.set()
    if found.rows != count or found.errors:
        raise RuntimeError(f"corpus_scale: wanted {count} rows, got {found.rows} and {found.errors} errors")
    shares = (0.1, 0.25, 0.5, 0.75, 0.95)
    return [
        f"| {count:,} images of {SIDE}², one worker | {found.seconds:.0f} s, {count / found.seconds:,.0f} images/s |",
        *(f"| … memory at {share:.0%} of the run | {memory.at(share):,.0f} MB |" for share in shares),
    ]


def entries(first: int, last: int) -> Iterator[Entry]:
    """As a listing of folders of 10,000 files gives them."""
    times = [str(1_700_000_000 + second) for second in range(777)]
    for number in range(first, last):
        key = f"{number // 10_000:05}/{number:09}.jpg"
        yield Entry("/data/images/" + key, 100_000 + number % 9999, times[number % 777], {"key": key})


class Clock:
    """Wall clock and CPU time of this process since it was made."""

    def __init__(self) -> None:
        self.began = time.perf_counter(), time.process_time()

    def taken(self) -> str:
        wall, own = time.perf_counter() - self.began[0], time.process_time() - self.began[1]
        return f"{wall:.0f} s, {own:.0f} s of CPU"


def ledger_alone(folder: Path, rows: int) -> list[str]:
    recipe, ledger = Recipe("simulated", "images"), Ledger(Store(folder))
    clock = Clock()
    plan = ledger.begin(recipe, entries(0, rows), PER_UNIT)
    planned = clock.taken()
    _mark_done(folder, ledger, plan.units // 2)
    clock = Clock()
    plan = ledger.begin(recipe, iter(()), PER_UNIT)
    found = bytearray(plan.units)
    for number, _ in ledger.done(plan):
        found[number] = True
    resumed = clock.taken()
    if sum(found) != plan.units // 2 or ledger.unit(plan.units - 1).entries[-1:] != tuple(entries(rows - 1, rows)):
        raise RuntimeError("corpus_scale: the plan that was read is not the one that was written")
    size = sum(path.stat().st_size for path in (folder / "plan").iterdir()) / MEGABYTE
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return [
        f"| plan of {rows:,} images in {plan.units:,} units | {planned}, {size:,.0f} MB on disk |",
        f"| resume with {sum(found):,} units done | {resumed} |",
        f"| most memory of the process | {most:,.0f} MB |",
    ]


def _mark_done(folder: Path, ledger: Ledger, count: int) -> None:
    """Manifests and empty data of the first units, as a run leaves them."""
    fields = {"rows": PER_UNIT, "errors": 0, "bytes": 0, "digest": "", "seconds": {}, "wall": 0.0}
    for number, digest in zip(range(count), ledger.digests()):
        for kind, suffix in (("data", "parquet"), ("done", "json")):
            path = folder / kind / f"{number // 1000:04}" / f"{number:07}.{suffix}"
            if number % 1000 == 0:
                path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"unit": f"{number:07}-{digest}", **fields}) if kind == "done" else "")


def made(options: argparse.Namespace) -> str:
    check_count("corpus_scale", "--images", options.images, 1)
    check_count("corpus_scale", "--rows", options.rows, 1)
    with tempfile.TemporaryDirectory(prefix="texturevlm-scale-") as folder:
        (Path(folder) / "ledger").mkdir()
        lines = ledger_alone(Path(folder) / "ledger", options.rows)
        (Path(folder) / "tiny").mkdir()
        lines = tiny_images(Path(folder) / "tiny", options.images) + lines
    about = [
        f"{code_of('corpus_scale')}  ",
        "Single runs on a CPU that others used too, one process each. Memory of the images: this process, its worker",
        "and what starts it. About half of the CPU time of the plan goes into making up the entries.",
        "",
    ]
    return "\n".join(["# Corpus at scale", "", *about, "| | |", "|---|---|", *lines]) + "\n"


main = table_main(
    __name__,
    __doc__,
    made,
    "corpus-scale.md",
    option("--images", type=int, default=TINY, metavar="N", help="tiny images (default: %(default)s)"),
    option("--rows", type=int, default=ROWS, metavar="N", help="rows of the ledger (default: %(default)s)"),
)
