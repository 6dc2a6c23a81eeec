"""A pool of pages with their samples on the device, filled by worker processes while training draws batches from it.

Workers write into shared memory, a thread moves what is done into the pool, and patches are sampled on the device, from
mip levels: a step needs no work of the CPU. The oldest pages are replaced, between two batches and never during one.
"""

from __future__ import annotations

import mmap
import os
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from texturevlm_lab.train.reader.forward import Prompts, positions
from texturevlm_lab.train.reader.network import TOKEN_SIDE
from texturevlm_lab.train.reader.pages import PAGE_SIZE, ReaderPage
from texturevlm_lab.train.reader.samples import CROPS, SHAPES, ReaderSample, as_arrays, sample_fields

Made = tuple[ReaderPage, dict[str, list[ReaderSample]]]
_LEVELS = 4
_SIZES = [(PAGE_SIZE[0] >> level, PAGE_SIZE[1] >> level) for level in range(_LEVELS)]
_STARTS = np.cumsum([0, *(height * width for height, width in _SIZES)]).tolist()
_SLOTS = 128  # pages in shared memory
_AT_ONCE = 24  # pages moved to the device together
_FAILURES = 20  # pages in a row that cannot be made: a worker ends


class Batch(NamedTuple):
    """Prompts, and what the heads need that are dropped: centre and step of tokens (B, K, 2).

    marks, boxes, named: as in ReaderSample, (B, T, 2) and (B, N, 4), with rows of zeros
    """

    prompts: Prompts
    centre: Tensor
    step: Tensor
    marks: Tensor
    boxes: Tensor
    named: Tensor


class Pool:
    """`room` pages on a device."""

    coordinates = "native"  # of patches in the vision tower, as in `places`

    def __init__(self, room: int, device: torch.device | str) -> None:
        self.room, self.filled, self.seen = room, 0, 0
        self.pages = torch.zeros(room, _STARTS[-1], dtype=torch.uint8, device=device)
        self.meta = torch.zeros(room, 3, device=device)  # height, width, colour of the paper
        self.samples = {
            name: {
                field: torch.zeros(room, SHAPES[name].per_page, *shape, dtype=_dtype(kind), device=device)
                for field, (shape, kind) in sample_fields(name).items()
            }
            for name in SHAPES
        }
        self._lock = threading.RLock()
        self._last = torch.cuda.Event() if self.pages.is_cuda else None  # the end of what was last queued
        with self._in_turn():  # the zeros come first
            pass

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        """Reads and writes of the pages in the order of their calls, on any thread and any stream.

        The lock is held while work is queued; the device waits on its own, and only for the work of others.
        """
        with self._lock:
            if self._last is None:
                yield
                return
            stream = torch.cuda.current_stream(self.pages.device)
            stream.wait_event(self._last)
            try:
                yield
            finally:
                self._last.record(stream)

    def put(self, images: Tensor, meta: Tensor, samples: dict[str, dict[str, Tensor]]) -> None:
        """Add n ≤ room pages: images (n, *PAGE_SIZE), meta (n, 3), samples by shape and field (n, per_page, …)."""
        device = self.pages.device
        pages, meta = with_levels(images.to(device)), meta.to(device)
        columns = [
            (self.samples[name][field], column.to(device))
            for name, own in samples.items()
            for field, column in own.items()
        ]
        at = torch.arange(len(images), device=device)
        with self._in_turn():  # all is on the device by now: batches wait for a copy within its memory
            at = (at + self.seen) % self.room
            self.pages[at], self.meta[at] = pages, meta
            for kept, column in columns:
                kept[at] = column
            self.seen += len(images)
            self.filled = min(self.room, self.seen)

    def add(self, made: Iterable[Made]) -> None:
        """Add pages one by one."""
        for page, samples in made:
            image, meta = _framed(page)
            arrays = {name: as_arrays(name, samples[name]) for name in SHAPES}
            table = {
                name: {field: torch.from_numpy(column)[None] for field, column in columns.items()}
                for name, columns in arrays.items()
            }
            self.put(torch.from_numpy(image)[None], torch.from_numpy(meta)[None], table)

    def draw(self, name: str, count: int) -> Batch:
        """`count` random samples of a shape, augmented."""
        device = self.pages.device
        more = count * 2  # some pages have none of a shape: those are left out, as far as possible
        with self._in_turn():
            page = torch.randint(self.filled, (more,), device=device)
            number = torch.randint(SHAPES[name].per_page, (more,), device=device)
            missing = (self.samples[name]["length"][page, number] == 0).to(torch.int8)
            order = missing.argsort(stable=True)[:count]
            return self.batch(name, page[order], number[order], augment=True)

    def batch(self, name: str, page: Tensor, number: Tensor, *, augment: bool = False) -> Batch:
        """Certain samples of a shape: (B,) pages and numbers."""
        count, device = len(page), self.pages.device
        sharper = torch.full((count, 1), 0.25, device=device)
        with self._in_turn():
            own = {field: column[page, number] for field, column in self.samples[name].items()}
            meta, tokens = self.meta[page], own["tokens"]
            centre, step = tokens[..., :2], tokens[..., 2:]
            if augment:
                centre = centre + (torch.rand(count, 1, 2, device=device) - 0.5) * 3
                sharper = torch.rand(count, 1, device=device) * 0.5
            pixels = self.sampler(self.pages, page, centre, step, sharper, own["keep"], meta[:, 2]) / 127.5 - 1
        if augment:
            pixels = _recoloured(pixels)
        larger = own["magnified"][:, None, None]
        patch, extent, token, after = positions(
            centre * larger, step * larger, meta[:, :2] * larger[:, 0], self.coordinates
        )
        segment = None if name in CROPS else own["segment"].long()
        text = (own[field].long() for field in ("used", "ids", "before", "length"))
        prompts = Prompts(pixels, patch, extent, segment, token, after, *text)
        return Batch(prompts, centre, step, own["marks"], own["boxes"], own["named"])

    sampler: Callable[..., Tensor] = staticmethod(lambda *given: sample_pages(*given))


def _dtype(kind: type) -> torch.dtype:
    return torch.from_numpy(np.zeros(0, kind)).dtype


def with_levels(images: Tensor) -> Tensor:
    """(n, H, W) uint8 → (n, texels of all mip levels)."""
    parts, level = [images.flatten(1)], images[:, None].float()
    for _ in range(_LEVELS - 1):
        level = functional.avg_pool2d(level, 2)
        parts.append(level.round().to(torch.uint8).flatten(1))
    return torch.cat(parts, 1)


def sample_pages(
    pages: Tensor, page: Tensor, centre: Tensor, step: Tensor, sharper: Tensor, keep: Tensor, paper: Tensor
) -> Tensor:
    """(B, K, TOKEN_SIDE, TOKEN_SIDE), 0 to 255: footprints, bilinear in the mip level below their step.

    pages:   (N, texels), see `with_levels`; page (B,) those to read
    sharper: (B, 1), levels are rounded down after adding this
    keep:    (B, 4), outside of this box the colour of the paper (B,) is shown
    """
    device = centre.device
    level = torch.floor(step.amin(-1).log2() + sharper).clamp(0, _LEVELS - 1)
    texel, level = torch.exp2(level)[..., None], level.long()
    offset = torch.arange(TOKEN_SIDE, device=device) - (TOKEN_SIDE - 1) / 2
    across = centre[..., :1] + offset * step[..., :1]  # (B, K, TOKEN_SIDE), in pixels
    down = centre[..., 1:] + offset * step[..., 1:]
    height, width = (torch.tensor(list(side), device=device)[level][..., None] for side in zip(*_SIZES))
    x, y = across / texel - 0.5, down / texel - 0.5
    left, top = x.floor(), y.floor()
    right_share, lower_share = (x - left)[:, :, None, :], (y - top)[:, :, :, None]
    columns = [torch.minimum((left + more).long().clamp(min=0), width - 1)[:, :, None, :] for more in (0, 1)]
    rows = [torch.minimum((top + more).long().clamp(min=0), height - 1)[:, :, :, None] for more in (0, 1)]
    start = page[:, None] * _STARTS[-1] + torch.tensor(_STARTS[:-1], device=device)[level]
    starts = [start[:, :, None, None] + row * width[..., None] for row in rows]
    texels = pages.view(-1)
    upper, lower = (
        texels[row + columns[0]].float() * (1 - right_share) + texels[row + columns[1]].float() * right_share
        for row in starts
    )
    value = upper * (1 - lower_share) + lower * lower_share
    x0, y0, x1, y1 = keep[:, :, None, None].unbind(1)
    shown = ((across >= x0) & (across <= x1))[:, :, None, :] & ((down >= y0) & (down <= y1))[:, :, :, None]
    return torch.where(shown, value, paper[:, None, None, None])


def _recoloured(pixels: Tensor) -> Tensor:
    """Random contrast, brightness and grain for each sample."""

    def between(low: float, high: float) -> Tensor:
        return torch.rand(len(pixels), 1, 1, 1, device=pixels.device) * (high - low) + low

    changed = pixels * between(0.65, 1.1) + between(-0.15, 0.15) + torch.randn_like(pixels) * between(0, 0.06)
    return changed.clamp(-1, 1)


def _framed(page: ReaderPage) -> tuple[np.ndarray, np.ndarray]:
    """The image in the corner of a full page, and its height, width and colour of the paper."""
    height, width = page.image.shape
    paper = float(np.median(page.image[::7, ::7]))
    image = np.full(PAGE_SIZE, round(paper), np.uint8)
    image[:height, :width] = page.image
    return image, np.array([height, width, paper], np.float32)


class Workers:
    """Processes that make pages forever, and the thread that puts them into a pool.

    They are forked at once: before the GPU is used, and while no thread of ours holds a lock.

    make:  (generator) → a page and its samples
    seeds: of the pages, together with the step that they are first made for: a resumed run sees other pages
    """

    def __init__(self, make: Callable[[np.random.Generator], Made], count: int, seeds: Sequence[int]) -> None:
        context = get_context("fork")
        self._first = context.Value("q", 0)
        self._free, self._done = context.SimpleQueue(), context.SimpleQueue()
        self._images, self._meta = _shared((*PAGE_SIZE,), np.uint8), _shared((3,), np.float32)
        self._samples = {
            name: {
                field: _shared((SHAPES[name].per_page, *shape), kind)
                for field, (shape, kind) in sample_fields(name).items()
            }
            for name in SHAPES
        }
        self._processes = [
            context.Process(target=self._work, args=(make, [*seeds, number]), daemon=True) for number in range(count)
        ]
        for process in self._processes:
            process.start()

    def _work(self, make: Callable[[np.random.Generator], Made], seeds: list[int]) -> None:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # no context per worker: asking for a GPU would make one
        torch.set_num_threads(1)
        os.nice(5)
        rng = None
        while True:
            slot = self._free.get()
            rng = rng or np.random.default_rng([*seeds, self._first.value])
            page, samples = make(rng)
            self._images[slot], self._meta[slot] = _framed(page)
            for name, columns in self._samples.items():
                for field, column in as_arrays(name, samples[name]).items():
                    columns[field][slot] = column
            self._done.put(slot)

    def feed(self, pool: Pool, step: int = 0) -> None:
        """Start to make pages, and the thread that fills a pool with them; step: that they are first made for."""
        self._first.value = step
        for slot in range(_SLOTS):
            self._free.put(slot)
        threading.Thread(target=self._feed, args=(pool,), daemon=True).start()

    def _feed(self, pool: Pool) -> None:
        stream = torch.cuda.Stream(pool.pages.device) if pool.pages.is_cuda else None
        images, meta = torch.from_numpy(self._images), torch.from_numpy(self._meta)
        samples = {
            name: {field: torch.from_numpy(column) for field, column in columns.items()}
            for name, columns in self._samples.items()
        }
        while True:
            slots = [self._done.get()]
            while len(slots) < min(_AT_ONCE, pool.room) and not self._done.empty():
                slots.append(self._done.get())
            at = torch.tensor(slots)
            copied = {name: {field: one[at] for field, one in columns.items()} for name, columns in samples.items()}
            some, own = images[at], meta[at]
            for slot in slots:
                self._free.put(slot)
            with torch.cuda.stream(stream):
                pool.put(some, own, copied)
                if stream is not None:
                    stream.synchronize()

    def close(self) -> None:
        """End the processes that make pages."""
        for process in self._processes:
            process.kill()

    @property
    def alive(self) -> bool:
        return all(process.is_alive() for process in self._processes)


def _shared(shape: tuple[int, ...], kind: type) -> np.ndarray[Any, Any]:
    """An array (_SLOTS, *shape) in memory that forked processes share."""
    count = int(np.prod((_SLOTS, *shape)))
    memory = mmap.mmap(-1, max(1, count) * np.dtype(kind).itemsize)  # mmap takes no length of 0
    return np.frombuffer(memory, kind, count).reshape(_SLOTS, *shape)


def report_errors(make: Callable[[np.random.Generator], Made]) -> Callable[[np.random.Generator], Made]:
    """Print the error of a page and make another one: one bad page among thousands must not end a worker, many must."""

    def safe(rng: np.random.Generator) -> Made:
        for _ in range(_FAILURES):
            try:
                return make(rng)
            except Exception:
                traceback.print_exc()
        raise RuntimeError(f"reader: {_FAILURES} pages in a row could not be made, see the errors above")

    return safe
