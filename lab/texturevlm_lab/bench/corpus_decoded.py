"""Images that are decoded and on a GPU → patches: images per second in batches, and what each stage takes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from texturevlm.allocate import ALLOCATORS
from texturevlm.corpus.choose import Bucket, Chooser
from texturevlm.corpus.recipe import Recipe
from texturevlm.defaults import BUDGET, PATCH
from texturevlm.ops.pixels import bytes_of, planes_of
from texturevlm.relevance import Balance, find_scorer
from texturevlm.relevance.prepared import image_maps
from texturevlm.sampling import sample
from texturevlm.scout import Question, encode
from texturevlm.scout.scout import load_scout
from texturevlm.types import Texture
from texturevlm_lab.bench.pictures import SIDE, as_bytes, page, photograph
from texturevlm_lab.bench.report import Report

MANY, FEW = 64, 32  # images of a batch
PICTURES: dict[str, Callable[..., Tensor]] = {"pages": page, "photographs": photograph}
# Images per second that the project asked for, by relevance. `prior` is what `auto` is without a question today.
BARS = {"none": 8000.0, "scout": 3000.0}
Pictures = dict[str, Tensor]  # by name, (B, H, W, 3) bytes on the device
LANES = 2  # batches at once, each on a stream of its own with a graph of its own, as units of a worker are
AT_ONCE = (4, 16, 64)  # pages whose convolutions run together, beside what the scout does


@contextmanager
def convolutions(*, alike: bool) -> Iterator[None]:
    """alike: by algorithms that every process chooses alike, as in a worker; else by the fastest."""
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = alike
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic = before


def pictures(*, quick: bool) -> Pictures:
    """A batch of each kind."""
    with torch.device("cuda"):
        return {name: as_bytes(make(MANY // 8 if quick else MANY, SIDE, SIDE)) for name, make in PICTURES.items()}


def decoded(report: Report, raw: Pictures) -> None:
    """Rows of images per second that have a bar."""
    with convolutions(alike=True):
        for relevance, name in itertools.product(BARS, PICTURES):
            _batches(report, relevance, name, raw[name])


def explained(report: Report, raw: Pictures) -> None:
    """The stages of these rows, and what may be done otherwise."""
    pages = raw["pages"]
    with convolutions(alike=False):
        _batches(report, "scout", "pages", pages, by=", convolutions tuned")
    with convolutions(alike=True):
        for name in PICTURES:
            _stages(report, name, raw[name])
        for relevance, name in itertools.product(BARS, PICTURES):
            _batches(report, relevance, name, raw[name], lanes=1)
        for name in PICTURES:
            _batches(report, "prior", name, raw[name])
        for relevance in BARS:
            _batches(report, relevance, "pages", pages[: len(pages) * FEW // MANY])


def _batches(report: Report, relevance: str, name: str, raw: Tensor, *, lanes: int = LANES, by: str = "") -> None:
    """One row: batches one after another, on so many streams."""
    batch = len(raw)
    work = f"decoded {name} of {SIDE}² → {BUDGET} patches, batches of {batch}"
    by = f"auto, relevance {relevance}, {lanes} stream{'s' if lanes > 1 else ''}{by}"
    if report.late(work, by):
        return
    recipe = Recipe("bench", "images", relevance=relevance, batch=batch, device="cuda")
    own = [(Chooser(recipe, torch.device("cuda")), torch.cuda.Stream()) for _ in range(lanes)]
    bucket, sizes = Bucket((SIDE, SIDE), relevance, ""), [(SIDE, SIDE)] * batch
    turns, numbers = itertools.cycle(own), itertools.count()
    torch.cuda.synchronize()  # the images are there, for any stream

    def call() -> Any:
        chooser, stream = next(turns)
        # Every image is asked something else, every time: questions are encoded on the host.
        asked = [f"What is the total amount of invoice {next(numbers)} dated 14 March 1998?" for _ in sizes]
        with torch.cuda.stream(stream):
            return chooser.choose(bucket, raw, None, asked, sizes)

    bar = BARS.get(relevance)
    median = report.add(work, by, call, "in a row", bar=1e6 / bar if bar else None, per=batch, calls=8 * lanes)
    report.notes.append(f"{work}, {by}: {1e6 / median:,.0f} images/s{f' (bar: {bar:,.0f})' if bar else ''}.  ")
    if reason := next((chooser.reason for chooser, _ in own if chooser.reason), None):
        report.notes.append(f"NOT captured: {reason}  ")


@torch.no_grad()
def _stages(report: Report, name: str, raw: Tensor) -> None:
    """The parts of a batch one by one, each in a graph of its own: their sum is what a batch takes on one stream."""
    batch, given = len(raw), {"budget": BUDGET, "patch": PATCH}
    auto, scorer, size = ALLOCATORS["auto"], find_scorer("bench", "scout"), (SIDE, SIDE)
    asked = Question(*(part.cuda() for part in encode([f"What is the total of invoice {i}?" for i in range(batch)])))
    work = f"a stage of decoded {name}, batches of {batch}"

    def timed(stage: str, call: Callable[[], Any]) -> Any:
        if not report.late(work, stage):
            report.add(work, stage, call, per=batch, repeats=5)
        return call()

    image = timed("bytes to planes", lambda: planes_of(raw))
    texture = timed("mips", lambda: Texture((image,)).mipmapped())
    maps = timed("maps of information and salience", lambda: image_maps(texture, patch=PATCH))
    alone = Balance().weigh(None, maps, size)
    timed("auto, by salience alone", lambda: auto(texture, alone, **given))
    spots = timed("the scout reads", lambda: scorer.prepare(texture))
    query, maps = timed("the scout answers", lambda: scorer.score(spots, asked, maps))
    relevance = timed("balance", lambda: Balance().weigh(query, maps, size, "scout"))
    allocation = timed("auto, by the scout", lambda: auto(texture, relevance, **given))
    pixels = timed("samples", lambda: sample(texture, allocation, backend="cuda").pixels)
    timed("samples to bytes", lambda: bytes_of(pixels))
    if name == next(iter(PICTURES)):
        fused = load_scout(device="cuda").fused
        for count in AT_ONCE:
            usual, fused.pages_at_once = fused.pages_at_once, count
            timed(f"the scout reads, {count} pages at once", lambda: scorer.prepare(texture))
            fused.pages_at_once = usual
