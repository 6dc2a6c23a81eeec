"""One unit from its entries to its files. Every engine runs this code, so that every engine makes the same bytes.

Reading, decoding, choosing and writing overlap: a thread reads and has a pool decode into windows, at most WAITING of
which wait; this thread chooses and samples; another one writes. Windows and batches depend on the unit alone, not on
how fast anything is.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch

from texturevlm.corpus.choose import Bucket, Chooser, DecodedImage
from texturevlm.corpus.decode import decoder_of, find_decoder, pixel_digest
from texturevlm.corpus.formats import DTYPES, FORMATS, Row
from texturevlm.corpus.ledger import Fault, Ledger, Manifest, Unit, file_digest
from texturevlm.corpus.payloads import PAYLOADS
from texturevlm.corpus.questions import Questions
from texturevlm.corpus.recipe import VERSION
from texturevlm.corpus.sources import Item, items_of, said
from texturevlm.corpus.store import Store

WINDOW = 64  # images, and
WINDOW_BYTES = 1 << 27  # of their pixels, whichever is reached first; up to twice that, so that the last batch is whole
WAITING = 1  # windows that are decoded and wait
STAGES = ("read", "decode", "choose", "encode", "write")
# What torch and our launches say when a GPU is lost to this process, and every later call fails, too.
LOST = ("CUDA error", "cuDNN error", "CUBLAS_STATUS")
Window = list[DecodedImage | Fault]
Tell = Callable[[int, int, dict[str, float]], None]  # images, errors and seconds by stage since the last call


class Clock:
    """Seconds by stage, summed over all threads; and how many questions were asked."""

    def __init__(self) -> None:
        self.seconds, self.asked = dict.fromkeys(STAGES, 0.0), 0
        self._told = dict(self.seconds)
        self._lock = threading.Lock()

    @contextmanager
    def timing(self, stage: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                self.seconds[stage] += time.perf_counter() - started

    def count_asked(self, count: int) -> None:
        with self._lock:
            self.asked += count

    def since_last(self) -> dict[str, float]:
        """Seconds since this was last called."""
        with self._lock:
            now = dict(self.seconds)
        since = {stage: now[stage] - self._told[stage] for stage in STAGES}
        self._told = now
        return since


class UnitWorker:
    """Works on the units of a planned corpus.

    url:     its folder
    device:  cpu, cuda or cuda:1, of the kind that the recipe says
    threads: that decode
    """

    def __init__(self, url: str, *, device: str = "cpu", threads: int = 1) -> None:
        self.ledger = Ledger(Store(url))
        plan = self.ledger.plan()
        if plan is None:
            raise FileNotFoundError(f"corpus: {url} has no plan; begin it with `texturevlm corpus`")
        if plan.recipe.version != VERSION:
            raise ValueError(
                f"corpus: texturevlm must make version {plan.recipe.version} of the bytes, as the plan says, and the "
                f"one that is installed here makes {VERSION}"
            )
        self.recipe, self.device, self.threads = plan.recipe, torch.device(device), threads
        if self.device.type != self.recipe.device:
            raise ValueError(f"corpus: device must be {self.recipe.device}, as the recipe says, got {device}")
        # Sums depend on how work is split; and each thread that decodes would begin as many of torch's as there are
        # cores, which then wait for one another.
        torch.set_num_threads(1)
        if self.device.type != "cpu":
            torch.backends.cudnn.deterministic = True  # else each process may pick another algorithm for the scout
        self.decode = decoder_of(find_decoder(self.recipe.decoder, self.device.type), self.device)
        self.payload = PAYLOADS[self.recipe.write](self.recipe, self.device)
        # A run that was killed while it planned may have left questions that this recipe does not have.
        self.questions = Questions(self.ledger.store if self.recipe.questions else None)
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix="decode")
        self.device_lost = False  # whether the GPU failed, after which nothing works in this process
        self._encoding = threading.Lock()
        self._own = threading.local()

    @property
    def chooser(self) -> Chooser:
        """One per thread: a graph has its memory, which two batches cannot use at once."""
        if not hasattr(self._own, "chooser"):
            self._own.chooser = Chooser(self.recipe, self.device, keep_texture=self.payload.keep_texture)
            self._own.stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        chooser: Chooser = self._own.chooser
        return chooser

    def __call__(self, number: int, tries: int = 0, tell: Tell | None = None) -> Manifest:
        """Make a unit's files.

        tries: how often a worker died on it. Then it is noted what is being decoded, and passed over if noted before
        tell:  called after every window
        """
        started, clock, faults = time.perf_counter(), Clock(), list[Fault]()
        unit = self.ledger.unit(number)
        name, rows = self.ledger.data_name(number, self.recipe), 0
        about = {"write": self.recipe.write, "patch": self.recipe.patch, "unit": unit.id, "recipe": self.recipe.digest}
        with (
            self.ledger.store.writing(name) as path,
            ThreadPoolExecutor(1, thread_name_prefix="write") as writing,
            closing(self.windows(unit, clock, tries)) as windows,
        ):
            writer = FORMATS[self.recipe.format].writer(path, about, DTYPES[self.recipe.write])
            written = writing.submit(self._write, writer, [], clock)
            for window in windows:
                made, bad = self.rows(window, clock)
                faults += bad
                written.result()
                written = writing.submit(self._write, writer, made, clock)
                rows += len(made)
                if tell is not None:
                    tell(len(made), len(bad), clock.since_last())
            written.result()
            with clock.timing("write"):
                writer.close()
                size, digest = path.stat().st_size, file_digest(path)
        if tell is not None:
            tell(0, 0, clock.since_last())
        if tries:
            self.ledger.clear_note(number)
        wall = time.perf_counter() - started
        counts: Any = {"rows": rows, "asked": clock.asked, "bytes": size, "digest": digest}
        return self.ledger.commit(unit, faults, **counts, seconds=clock.seconds, wall=wall)

    def _write(self, writer: Any, rows: list[Row], clock: Clock) -> None:
        with clock.timing("write"):
            writer.add(rows)

    # Reading and decoding.

    def windows(self, unit: Unit, clock: Clock, tries: int = 0) -> Generator[Window, None, None]:
        """The images of a unit in order, decoded ahead by another thread."""
        made = self._windows(unit, clock, tries)
        reader = ThreadPoolExecutor(1, thread_name_prefix="read")
        try:
            ahead = deque(reader.submit(next, made, None) for _ in range(1 + WAITING))
            while (window := ahead.popleft().result()) is not None:
                ahead.append(reader.submit(next, made, None))
                yield window
        finally:
            reader.shutdown(cancel_futures=True)

    def _windows(self, unit: Unit, clock: Clock, tries: int) -> Iterator[Window]:
        window, held = Window(), 0
        for found in self._decoded(unit, clock, tries):
            window.append(found)
            held += found.pixels.nbytes if isinstance(found, DecodedImage) else 0
            whole = len(window) % self.recipe.batch == 0
            if len(window) >= WINDOW or held >= WINDOW_BYTES * (1 if whole else 2):
                yield window
                window, held = Window(), 0
        yield window

    def _decoded(self, unit: Unit, clock: Clock, tries: int) -> Iterator[DecodedImage | Fault]:
        ahead = 1 if tries else 2 * self.threads
        passed = self.ledger.noted(unit.number) if tries else []
        waiting: deque[Future[list[DecodedImage | Fault]]] = deque()
        items = enumerate(items_of(unit, self.recipe.kind))
        while True:
            with clock.timing("read"):
                place, item = next(items, (-1, None))
            if item is not None:
                if place in passed:
                    item = Item(item.key, error="a worker died while it was decoded")
                note = noted_while(self.ledger, unit.number, [*passed, place], passed) if tries else nullcontext()
                waiting.append(self.pool.submit(self._decode, item, clock, note))
            while waiting and (item is None or len(waiting) >= ahead):
                yield from waiting.popleft().result()
            if item is None:
                return

    def _decode(self, item: Item, clock: Clock, note: Any) -> list[DecodedImage | Fault]:
        """One image, once per question about it."""
        if item.error is not None:
            return [Fault(item.key, item.error)]
        try:
            with clock.timing("read"):
                content = item.load()
            with note, clock.timing("decode"):
                pixels = content if isinstance(content, np.ndarray) else self.decode(content)
                digest = pixel_digest(content)
        except Exception as error:  # decoders raise anything for damaged files; it costs this image alone
            return [Fault(item.key, said(error))]
        asked = self.questions.about(item.key)
        clock.count_asked(len(asked))
        asked = asked or [(item.question, {})]
        keys = [item.key] if len(asked) == 1 else [f"{item.key}?{number}" for number in range(len(asked))]
        return [
            DecodedImage(key, digest, pixels, question, {**item.more, **more})
            for key, (question, more) in zip(keys, asked)
        ]

    # Choosing, sampling, encoding.

    def rows(self, window: Window, clock: Clock) -> tuple[list[Row], list[Fault]]:
        """The rows of a window in order, and what went wrong."""
        buckets: dict[Bucket, list[int]] = {}
        found: dict[int, Row | Fault] = {}
        for place, image in enumerate(window):
            if isinstance(image, Fault):
                found[place] = image
            else:
                buckets.setdefault(self.chooser.bucket(image), []).append(place)
        with torch.cuda.stream(getattr(self._own, "stream", None)):  # None: no other than now
            for bucket, places in buckets.items():
                most = self.chooser.most(bucket.size)
                for first in range(0, len(places), most):
                    some = places[first : first + most]
                    images = [image for place in some if isinstance(image := window[place], DecodedImage)]
                    found.update(zip(some, self._batch(bucket, images, clock)))
        ordered = [found[place] for place in range(len(window))]
        return [row for row in ordered if isinstance(row, Row)], [bad for bad in ordered if isinstance(bad, Fault)]

    def _batch(self, bucket: Bucket, images: list[DecodedImage], clock: Clock) -> list[Row | Fault]:
        try:
            with clock.timing("choose"):
                chosen = self.chooser(bucket, images)
                footprints, used = chosen.table()
            with clock.timing("encode"), self._encoding:
                payloads = self.payload(images, chosen, used)
        except torch.OutOfMemoryError:
            raise
        except (ValueError, RuntimeError) as error:
            if any(mark in str(error) for mark in LOST):  # no image is to blame
                self.device_lost = True
                raise
            if len(images) > 1:  # one of them is to blame: each by itself
                return [row for image in images for row in self._batch(bucket, [image], clock)]
            return [Fault(images[0].key, said(error))]
        return [
            Row(image.key, image.digest, image.size, image.question, table[slots], payload, image.more)
            for image, table, slots, payload in zip(images, footprints, used, payloads)
        ]


@contextmanager
def noted_while(ledger: Ledger, number: int, during: list[int], after: list[int]) -> Iterator[None]:
    """Note what is being decoded, for the case that the decoder kills this process."""
    ledger.note_reading(number, during)
    try:
        yield
    finally:
        ledger.note_reading(number, after)
