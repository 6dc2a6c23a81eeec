"""`texturevlm bench vlm`: an image → the first token of an answer, transformers' own path beside ours.

Their side begins with `pixel_values` on the device (the processor's work is a row of its own) and ends with the first
token read. Ours begins with the image on the device and does everything: mip levels, allocation, sampling, tower,
prefill, token. Where both sides read the same few tokens, transformers resizes an image by its own `max_pixels`; the
rows say how much of a gain is fewer tokens, how much is capture, and what choosing by a question costs. The rows of
vlm_file.py begin with a file on disk.
"""

from __future__ import annotations

import gc
import io
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor

from texturevlm.channels import PRESETS, build
from texturevlm.defaults import ALLOCATOR, BUDGET
from texturevlm.draw import to_pil
from texturevlm.relevance import find_relevance
from texturevlm.sampling import sample
from texturevlm.types import Texture
from texturevlm.vlm import CapturedPrefill
from texturevlm.vlm.captured import TowerOutput
from texturevlm.vlm.families.qwen import QwenAdapter
from texturevlm_lab.bench.pictures import page
from texturevlm_lab.bench.report import Report
from texturevlm_lab.bench.timing import Work, waited
from texturevlm_lab.bench.vlm_file import add_file, add_first_calls, write_page
from texturevlm_lab.bench.vlm_model import (
    PROMPT_WORDS,
    QUESTION,
    asked_model,
    captured_first_token,
    chosen,
    compiled_first_token,
    first_token_of,
    gibibytes,
    our_first_token,
    pixel_values,
    prompt_ids,
    random_model,
    their_first_token,
    their_inputs,
    their_processor,
    unhooked,
)

TITLE = "Vision-language model, Qwen3-VL-4B's architecture"

PAGE, SQUARE = (3508, 2480), (1024, 1024)
TIMES_FASTER = {PAGE: 30.0, SQUARE: 2.5}  # what the project asked for
QUICK_BUDGET = 24
TOWER_BAR = 3500.0  # microseconds
MEMORY_BAR = 3.0  # times less
QUESTION_BAR = 13_000.0  # microseconds: scout, auto, tower, prefill
COMPILE_SECONDS = 80.0  # for all that transformers' models are compiled
# The stages between an image and the first token; the others are measured beside them.
PATH = ("texture: mip levels", "relevance + allocation: cascade", "sampling + tower, captured", "prefill, captured")


def bench(report: Report) -> None:
    """Add all rows; a quick run takes a small model, small images and few repetitions."""
    quick, budget = report.quick, QUICK_BUDGET if report.quick else BUDGET
    report.title += ", a small copy" if quick else ""
    adapter = random_model(report.device, small=quick)
    large, square = ((192, 160), (160, 160)) if quick else (PAGE, SQUARE)
    with TemporaryDirectory() as folder:
        files = [write_page(Path(folder), size) for size in (large, square)]
        # Before anything is compiled. What it captured is freed, since memory is measured next.
        add_first_calls(report, asked_model(adapter, budget), files)
        full = [add_first_token(report, adapter, size, budget) for size in (large, square)]
        add_first_token(report, adapter, square, budget, batch=2 if quick else 8)
        add_stages(report, adapter, large, budget)
        fixed, vlm = CapturedPrefill(adapter, budget, masked=True), asked_model(adapter, budget)
        for size, file, theirs in zip((large, square), files, full):
            resized = add_same_tokens(report, fixed, size)
            report.notes.append(gain_note(size, theirs, resized))
            add_file(report, vlm, fixed, file, resized.asked)
    add_compiled(report, fixed, [large, square])
    report.notes += [
        "Wall clock until the first token is read. transformers: from pixel_values on the device, its own forward with",
        "sdpa, eager unless it says so. texturevlm: from the image on the device, all stages. × faster: than",
        "transformers with all tokens; what part is capture is said where both sides read the same resize. Tokens are",
        "chosen by the salience cascade, without a question; by a question, on a page of words, where it says asked.",
        "Rows of .jpg begin with the file on disk; `ask` has its default settings, relevance being the scout.",
        f"Prompt: {PROMPT_WORDS} tokens beside the image's. Tower and prefill are captured per budget, not per size.",
    ]


def add_first_token(report: Report, adapter: QwenAdapter, size: tuple[int, int], budget: int, batch: int = 1) -> float:
    """Both paths, their memory, and the processor's work; returns what transformers takes."""
    height, width = size
    image = torch.rand(batch, 3, height, width, device=report.device)
    work = first_token_of(size, batch)
    slow = height * width * batch > 4_000_000
    preparing = partial(pixel_values, adapter, image)
    inputs = their_inputs(adapter, *preparing())
    by = "resize, normalise, cut on the device"
    report.add_call(f"{width}×{height}, batch {batch} → pixel_values", by, preparing, slow=slow)
    if batch == 1:
        processor = partial(their_processor(adapter), to_pil(image), return_tensors="pt")
        report.add(f"{width}×{height} → pixel_values", "transformers' processor", processor, "cpu", repeats=3)
    reading = partial(their_first_token, adapter, inputs)
    tokens = int((inputs["mm_token_type_ids"] == 1).sum()) // batch
    with unhooked(adapter):
        theirs = report.add_call(work, f"transformers, {tokens} tokens an image", reading, slow=slow)
        their_peak = _peak(report, reading)
    del inputs, reading

    fixed = CapturedPrefill(adapter, budget, batch=batch)
    reading = partial(our_first_token, fixed, image, allocator="cascade")
    bar = theirs / TIMES_FASTER[size] if batch == 1 and size in TIMES_FASTER else None
    ours = report.add_call(work, f"texturevlm, {fixed.budget} tokens an image", reading, bar=bar)
    report.notes.append(f"{work}: {theirs / ours:.1f} × faster.  ")
    report.notes += [f"{work}: {reason}.  " for reason in fixed.reasons]
    if report.device == "cuda":
        weights = gibibytes(adapter.model)
        report.notes.append(f"{work}: {memory_note(their_peak, _peak(report, reading), weights, size == PAGE)}  ")
    return theirs


def memory_note(theirs: float, ours: float, weights: float, barred: bool) -> str:
    """Peaks in GiB, whole and without the weights, which both sides hold and no choice of tokens makes smaller."""
    less, third, rest = theirs / ours, theirs / MEMORY_BAR, (theirs - weights, ours - weights)
    verdict = "met" if less >= MEMORY_BAR else "MISSED"
    if weights > third:
        verdict = f"cannot be met, the weights alone are more than {third:.2f} GiB"
    bar = f" (bar {MEMORY_BAR:g} ×: {verdict})" if barred else ""
    return (
        f"peak memory {theirs:.2f} GiB against {ours:.2f}, {less:.1f} × less{bar}. Weights: {weights:.2f} of both. "
        f"All else: {rest[0]:.2f} against {rest[1]:.2f}, {rest[0] / rest[1]:.1f} × less."
    )


def add_stages(report: Report, adapter: QwenAdapter, size: tuple[int, int], budget: int) -> None:
    """What each part of our path takes by itself, each waited for."""
    height, width = size
    image = torch.rand(1, 3, height, width, device=report.device)
    texture, words = Texture.open(image).mipmapped(), Texture.open(page(1, height, width).to(report.device)).mipmapped()
    fixed = CapturedPrefill(adapter, budget)
    choosing = partial(chosen, fixed, texture, allocator="cascade")
    allocation, ids = choosing(), [prompt_ids(adapter, fixed.budget)]
    seen = fixed.encode(texture, allocation)
    replayed = TowerOutput(seen.place.clone(), seen.used.clone(), tuple(one.clone() for one in seen.embeds), seen.sizes)
    finding = partial(find_relevance, words, patch=adapter.side, relevance="none")
    stages: dict[str, Work] = {
        "texture: mip levels": lambda: Texture((image,)).mipmapped(),
        "channels: the mvp preset with mips": partial(build, texture, list(PRESETS["mvp"])),
        "relevance: information and salience": finding,
        "relevance + allocation: cascade": choosing,
        "allocation: auto, by relevance": partial(chosen, fixed, words, relevance=finding()),
        "sampling": partial(sample, texture, allocation),
        "sampling + tower, captured": partial(fixed.encode, texture, allocation),
        "prefill, captured": partial(fixed.prefill, ids, replayed),
    }
    where = f"{width}×{height}"
    file = io.BytesIO()
    to_pil(image).save(file, "jpeg", quality=90)
    decode = f"{where}, stage decode: a JPEG of noise"
    report.add(decode, "Pillow", lambda: Texture.open(Image.open(file)), "cpu", repeats=3)
    taken = {
        name: report.add_call(f"{where}, stage {name}", "texturevlm", waited(work)) for name, work in stages.items()
    }
    whole_way = sum(taken[name] for name in PATH)
    shares = ", ".join(f"{name} {100 * taken[name] / whole_way:.0f} %" for name in PATH)
    report.notes.append(f"{where}, shares of the way from image to first token: {shares}.  ")
    whole = partial(our_first_token, CapturedPrefill(adapter, budget, masked=True), words.levels[0])
    report.add_call(first_token_of(size), "texturevlm, chosen by relevance", whole)
    tower = f"vision tower alone, {fixed.budget} tokens"
    if fixed.tower is not None and fixed.tower.reason is None:
        report.add(tower, "captured", fixed.tower.graph.replay, "host", bar=TOWER_BAR, calls=20)
    pixels = sample(texture, allocation).pixels.unsqueeze(2).flatten(0, 1)
    rows = adapter.patch_rows(adapter.normalised(pixels)).to(adapter.tower.dtype)
    grid = torch.tensor([[1, 2, 2 * fixed.budget]], device=report.device)
    with torch.no_grad():
        theirs = waited(partial(adapter.tower, rows, grid_thw=grid))
        report.add_call(tower, "transformers' own forward", theirs)


def _peak(report: Report, work: Work) -> float:
    """GiB that were in use at most; nothing on a CPU."""
    if report.device != "cuda":
        return 0.0
    gc.collect()  # graphs of earlier rows
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    waited(work)()
    return torch.cuda.max_memory_allocated() / 2**30


class Resized(NamedTuple):
    """Microseconds until the first token at the same few tokens: transformers, eager; ours, captured; ours, asked."""

    theirs: float
    ours: float
    asked: float


def add_same_tokens(report: Report, fixed: CapturedPrefill, size: tuple[int, int]) -> Resized:
    """Both sides at the budget of `fixed`, for a page (height, width) on the device."""
    adapter, (height, width) = fixed.adapter, size
    image = page(1, height, width).to(report.device)
    work = first_token_of(size)
    resize = their_processor(adapter, fixed.budget * adapter.side**2)
    processor = partial(resize, to_pil(image), return_tensors="pt")
    report.add(f"{width}×{height} → pixel_values", "transformers' processor, resized", processor, "cpu", repeats=3)
    inputs = resized_inputs(fixed, size)
    tokens = int(inputs["mm_token_type_ids"].sum())
    with unhooked(adapter):
        reading: Work = partial(their_first_token, adapter, inputs)
        theirs = report.add_call(work, f"transformers, resized to {tokens} tokens", reading)
    # It is not read by `resize`, but it would be made.
    relevance = find_relevance(Texture((image,)).mipmapped(), patch=adapter.side, relevance="none")
    reading = partial(our_first_token, fixed, image, allocator="resize", budget=tokens, relevance=relevance)
    ours = report.add_call(work, f"texturevlm, the same {tokens} tokens, captured for {fixed.budget}", reading)
    reading = partial(our_first_token, fixed, image, QUESTION, relevance="scout")
    report.add_call(work, f"texturevlm, asked: scout, {ALLOCATOR}; tower and prefill captured", reading)
    reading = captured_first_token(report, fixed, image, QUESTION, partial(prompt_ids, adapter, fixed.budget))
    bar = None if report.quick else QUESTION_BAR
    return Resized(
        theirs, ours, report.add_call(work, f"texturevlm, asked: scout, {ALLOCATOR}, all captured", reading, bar=bar)
    )


def resized_inputs(fixed: CapturedPrefill, size: tuple[int, int]) -> dict[str, Tensor]:
    """What transformers' processor makes of a page of this size when `max_pixels` is our budget."""
    adapter = fixed.adapter
    found = their_processor(adapter, fixed.budget * adapter.side**2)(to_pil(page(1, *size)), return_tensors="pt")
    rows = found["pixel_values"].to(fixed.device, adapter.tower.dtype)
    return their_inputs(adapter, rows, found["image_grid_thw"].to(fixed.device))


def gain_note(size: tuple[int, int], full: float, resized: Resized) -> str:
    """What part of the gain over the full grid is fewer tokens, and what part is capture."""
    fewer, capture, asking = full / resized.theirs, resized.theirs / resized.ours, resized.asked - resized.ours
    return (
        f"{first_token_of(size)}: the same resize, captured, is {full / resized.ours:.1f} × faster than transformers "
        f"with all tokens: {fewer:.1f} × by fewer tokens (resized, both eager), {capture:.1f} × by capture (ours "
        f"against the same resize, eager). To choose by a question takes {abs(asking) / 1e3:.2f} ms "
        f"{'more' if asking > 0 else 'less'} than to resize, whose choice is not captured.  "
    )


def add_compiled(report: Report, fixed: CapturedPrefill, sizes: list[tuple[int, int]]) -> None:
    """transformers' resized rows under torch.compile, or why not."""
    ends = time.perf_counter() + COMPILE_SECONDS
    for size in sizes:
        work, by = first_token_of(size), "transformers, resized, torch.compile and static cache"
        if report.quick:
            report.add_missing(work, by, "not compiled in a quick run")
            continue
        begun = time.perf_counter()
        try:
            with unhooked(fixed.adapter):
                with _time_limit(ends - begun):
                    reading = compiled_first_token(fixed.adapter, resized_inputs(fixed, size))
                    reading()
                took = time.perf_counter() - begun
                report.add_call(work, f"{by}, compiled in {took:.0f} s", reading)
        except Exception as error:  # a missing compiler shows as many kinds of error; the table says which
            late = time.perf_counter() >= ends
            report.add_missing(work, by, f"not compiled within {COMPILE_SECONDS:.0f} s" if late else error)


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the main thread when the time is over."""

    def over(*_: object) -> None:
        raise TimeoutError("the time is over")

    if seconds <= 0:
        over()
    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
