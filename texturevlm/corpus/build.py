"""`build`: a source → a corpus, by any engine. It may be killed at any moment and called again."""

from __future__ import annotations

import hashlib
import os
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from texturevlm.allocate import ALLOCATORS
from texturevlm.check import check_choice, check_count
from texturevlm.corpus.decode import find_decoder
from texturevlm.corpus.formats import check_format
from texturevlm.corpus.ledger import Ledger, Plan
from texturevlm.corpus.pools import (
    CannotBegin,
    Died,
    Failed,
    Finished,
    InProcessPool,
    LocalPool,
    Pool,
    Progress,
    RayPool,
)
from texturevlm.corpus.questions import check_questions, write_questions
from texturevlm.corpus.recipe import Recipe
from texturevlm.corpus.sources import KINDS, entries_of, find_kind
from texturevlm.corpus.store import Store
from texturevlm.corpus.watch import Watch
from texturevlm.corpus.worker import STAGES
from texturevlm.paths import is_url
from texturevlm.relevance import check_relevance, find_scorer

ENGINES = ("local", "ray")
TRIES = 3  # of a unit on which workers die, and as many more as images were found that kill them
MOST_FAILED = 10  # units, after which a run stops
GPU_BATCH, CPU_BATCH = 32, 8
MOST_PER_GPU, CORES_PER_WORKER, MEMORY_PER_WORKER = 4, 4, 8 << 30  # workers of a GPU; bytes of its memory


@dataclass(frozen=True)
class Summary:
    """What a run did, and what the corpus holds now.

    rows, errors: of the whole corpus; made: rows of this run, in `seconds`
    asked, unasked: of the questions in a file, how many were asked, and how many have no image that could be read
    rates:  images per second that each stage could do alone
    failed: units that are not done, by number, and why
    """

    units: int
    rows: int
    errors: int
    made: int
    seconds: float
    rates: dict[str, float] = field(default_factory=dict)
    bottleneck: str = ""
    failed: dict[int, str] = field(default_factory=dict)
    asked: int = 0
    unasked: int = 0


@dataclass(frozen=True)
class Machines:
    """What works on a corpus: as in `build`. workers: None for as many as a cluster has room for"""

    engine: str
    workers: int | None
    threads: int
    device: str
    address: str | None

    @property
    def slots(self) -> int:
        """Units that a worker has at once: on a GPU two, so that one is read and written while the other computes."""
        return 2 if self.engine == "local" and self.workers and self.device.startswith("cuda") else 1

    def pool(self, url: str) -> Pool:
        """Workers for the corpus in a folder."""
        given: Any = {"device": self.device, "threads": self.threads}
        if self.engine == "ray":
            return RayPool(url, workers=self.workers, address=self.address, **given)
        if not self.workers:
            return InProcessPool(url, **given)
        count = torch.cuda.device_count() if self.device == "cuda" else 0
        devices = [f"cuda:{place % count}" if count > 1 else self.device for place in range(self.workers)]
        return LocalPool(url, devices=devices, threads=self.threads, slots=self.slots)

    def at_once(self, workers: int) -> dict[str, int]:
        """Threads that work at each stage."""
        decoding = workers * self.threads
        return {stage: decoding if stage in ("read", "decode") else workers * self.slots for stage in STAGES}


def build(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    engine: str = "local",
    workers: int | None = None,
    threads: int | None = None,
    device: str | None = None,
    address: str | None = None,
    kind: str = "auto",
    questions: str | os.PathLike[str] | None = None,
    decoder: str = "auto",
    batch: int | None = None,
    retry_errors: bool = False,
    quiet: bool = True,
    **options: Any,
) -> Summary:
    """Choose the tokens of every image of a source and write them, in units that are done or not done.

    source:    a folder of images, tars (WebDataset), parquet files or PDFs; one such file; a pattern; or a list (.txt,
               .jsonl) of paths and URLs; here or where fsspec reaches
    out:       a folder, here or where fsspec reaches. If it holds a part of this corpus, the rest is made
    engine:    local: processes of this machine; ray: actors of a Ray cluster
    workers:   processes; 0: in this one; by default up to four per GPU (`gpu_workers`), or one per core, or as many as
               a cluster has room for
    threads:   that decode, per worker; by default all cores are shared by the workers of GPUs, else 1
    address:   of the Ray cluster; None begins one here
    kind:      what the source is, a key of sources.KINDS
    questions: JSONL with key and question: tokens are chosen for them, one row per question
    retry_errors: whether units with errors are done again
    options:   of Recipe: write, format, model, codebook, budget, patch, allocator, relevance, turn, buckets, unit
    """
    check_choice("corpus", "engine", engine, ENGINES)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.startswith("cuda")
    if on_gpu and engine == "local" and not torch.cuda.is_available():
        raise ValueError(f"corpus: device must be usable, got {device} and no GPU")
    asked = None if questions is None else check_questions(Path(questions))
    recipe = Recipe(
        source=_absolute(source),
        kind=find_kind(os.fspath(source), kind),
        decoder=find_decoder(decoder, device),
        device="cuda" if on_gpu else "cpu",
        batch=batch or (GPU_BATCH if on_gpu else CPU_BATCH),
        asked=find_scorer("corpus", "auto", "what").name if options.get("relevance", "auto") == "auto" else "",
        questions="" if asked is None else asked.digest,
        code=_codebook_digest(options["codebook"]) if options.get("codebook") else "",
        **options,
    )
    check_recipe(recipe)
    store = Store(_absolute(out))
    _check_out(store, recipe.source)
    if workers is None and engine == "local":
        workers = gpu_workers(recipe) if on_gpu else os.cpu_count() or 1
    if workers is not None:
        check_count("corpus", "workers", workers, 0 if engine == "local" else 1)
    threads = threads or (max(1, (os.cpu_count() or 1) // max(1, workers or 1)) if on_gpu else 1)
    machines = Machines(engine, workers, threads, device, address)
    ledger = Ledger(store)
    with store.locked():
        fresh = ledger.plan() is None
        if asked is not None and fresh:
            write_questions(store, asked)
        per_unit = KINDS[recipe.kind].per_unit or recipe.unit
        plan = ledger.begin(recipe, entries_of(recipe.source, recipe.kind), per_unit)
        try:
            found = _drive(ledger, plan, machines, retry_errors=retry_errors, quiet=quiet)
        except (CannotBegin, ValueError):
            if fresh:  # nothing was made: the folder is free for a recipe that works
                ledger.withdraw(plan)
            raise
    return replace(found, unasked=0 if asked is None else asked.count - found.asked)


def gpu_workers(recipe: Recipe) -> int:
    """How many processes use the GPUs of this machine: decoding holds Python's lock for a part of its time, so that
    several processes decode more than one with as many threads. With a model, which each would load, one per GPU."""
    count = torch.cuda.device_count()
    if recipe.model:
        return count
    memory = min(torch.cuda.get_device_properties(index).total_memory for index in range(count))
    cores = (os.cpu_count() or 1) // count
    return count * max(1, min(MOST_PER_GPU, cores // CORES_PER_WORKER, memory // MEMORY_PER_WORKER))


def check_recipe(recipe: Recipe) -> None:
    """What a recipe names must exist, before anything is listed."""
    ALLOCATORS.find("corpus", recipe.allocator)
    check_relevance("corpus", recipe.relevance)
    check_format(recipe.format)


def _codebook_digest(path: str) -> str:
    """A digest of a codebook's file. Whether it belongs to the model, workers find out when they have loaded that."""
    from texturevlm.codebook import Codebook

    Codebook.load(path)
    return hashlib.blake2b(Path(path).read_bytes(), digest_size=16).hexdigest()


def _absolute(path: str | os.PathLike[str]) -> str:
    return os.fspath(path) if is_url(path) else os.path.abspath(path)


def _check_out(store: Store, source: str) -> None:
    """A folder that is ours, or none yet, and not a part of the source, which would grow by it."""
    if f"{store.url}/".startswith(f"{source}/"):
        raise ValueError(f"corpus: out must lie outside of the source, got {store.url} in {source}")
    if store.local:
        path = Path(store.path())
        if path.is_file():
            raise ValueError(f"corpus: out must be a folder, got the file {path}")
        others = [entry.name for entry in path.iterdir()] if path.is_dir() else []
        if others and "plan.json" not in others and "plan" not in others:
            raise ValueError(f"corpus: out must be empty or hold a corpus, got {path} with {others[0]} in it")


def _drive(ledger: Ledger, plan: Plan, machines: Machines, *, retry_errors: bool, quiet: bool) -> Summary:
    """Hand out the units that are not done until all are."""
    finished, totals = bytearray(plan.units), Counter[str]()
    for number, done in ledger.done(plan):
        if retry_errors and done.errors:
            ledger.forget(number)
            continue
        finished[number] = True
        totals.update(rows=done.rows, errors=done.errors, asked=done.asked)
    failed: dict[int, str] = {}
    watch = Watch(plan.units, sum(finished), quiet=quiet)
    made_before = totals["rows"]
    if not all(finished):
        pool = machines.pool(ledger.store.url)
        watch.begin(machines.at_once(pool.workers))
        try:
            for number, done in _events(pool, ledger, finished, failed, watch):
                finished[number] = True
                totals.update(rows=done.rows, errors=done.errors, asked=done.asked)
                if machines.engine == "ray":  # whose workers tell nothing in between
                    watch.add(done.rows, done.errors, done.seconds)
                watch.finished()
        finally:
            pool.close()
            ledger.store.remove_unfinished()  # of workers that were killed
    rows, errors = totals["rows"], totals["errors"]
    made, rates = rows - made_before, watch.rates()
    return Summary(plan.units, rows, errors, made, watch.wall, rates, watch.bottleneck(), failed, totals["asked"])


def _events(
    pool: Pool, ledger: Ledger, finished: bytearray, failed: dict[int, str], watch: Watch
) -> Iterator[tuple[int, Any]]:
    """The units as they are finished."""
    fresh = (number for number in range(len(finished)) if not finished[number])
    again: deque[int] = deque()
    tries: Counter[int] = Counter()
    running = 0
    while True:
        while pool.room and (number := again.popleft() if again else next(fresh, -1)) >= 0:
            pool.submit(number, tries[number])
            running += 1
        if not running:
            return
        event = pool.next()
        if isinstance(event, Progress):
            watch.add(*event)
        elif isinstance(event, Finished):
            running -= 1
            yield event.number, event.done
        elif isinstance(event, Died):
            running -= 1
            tries[event.number] += 1
            if tries[event.number] < TRIES + len(ledger.noted(event.number)):
                again.append(event.number)
            else:
                failed[event.number] = f"its worker died {tries[event.number]} times, {event.how}"
        elif isinstance(event, Failed):
            running -= 1
            failed[event.number] = event.error
            if event.stop or len(failed) >= MOST_FAILED:
                counts = f"{sum(finished)} of {len(finished)} units are done"
                raise OSError(
                    f"corpus: stopped at unit {event.number}: {event.error}; {counts}; mend it and start again"
                )
