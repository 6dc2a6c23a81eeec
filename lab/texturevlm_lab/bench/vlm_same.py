"""The same few tokens on both sides: how much of a gain is fewer tokens, how much is capture, and what choosing costs.

transformers resizes an image to our budget by its own `max_pixels`. Our captured path reads the same resized image;
then it chooses by a question instead.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from torch import Tensor

from texturevlm.defaults import ALLOCATOR
from texturevlm.draw import to_pil
from texturevlm.placement import choose_tokens
from texturevlm.placement import compile as capture
from texturevlm.relevance import Relevance, find_relevance
from texturevlm.types import Texture
from texturevlm.vlm.captured import FixedBudget, TowerOutput
from texturevlm_lab.bench.pictures import page
from texturevlm_lab.bench.report import Report
from texturevlm_lab.bench.timing import Work
from texturevlm_lab.bench.vlm_rows import add_row, first_token_of
from texturevlm_lab.bench.vlm_theirs import (
    compiled_first_token,
    prompt_ids,
    their_first_token,
    their_inputs,
    their_processor,
    unhooked,
)

QUESTION = "What is the total amount of the invoice dated 14 March 1998?"
QUESTION_BAR = 13_000.0  # microseconds: scout, auto, tower, prefill
COMPILE_SECONDS = 80.0  # for all that transformers' models are compiled


class Resized(NamedTuple):
    """Microseconds until the first token at the same few tokens: transformers, eager; ours, captured; ours, asked."""

    theirs: float
    ours: float
    asked: float


def add_same_tokens(report: Report, fixed: FixedBudget, size: tuple[int, int]) -> Resized:
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
        theirs = add_row(report, work, f"transformers, resized to {tokens} tokens", reading)
    # It is not read by `resize`, but it would be made.
    relevance = find_relevance(Texture((image,)).mipmapped(), patch=adapter.side, relevance="none")
    reading = partial(resized_first_token, fixed, image, tokens, relevance)
    ours = add_row(report, work, f"texturevlm, the same {tokens} tokens, captured for {fixed.budget}", reading)
    reading = partial(asked_first_token, fixed, image)
    add_row(report, work, f"texturevlm, asked: scout, {ALLOCATOR}; tower and prefill captured", reading)
    reading = captured_first_token(report, fixed, image)
    bar = None if report.quick else QUESTION_BAR
    return Resized(
        theirs, ours, add_row(report, work, f"texturevlm, asked: scout, {ALLOCATOR}, all captured", reading, bar=bar)
    )


def resized_inputs(fixed: FixedBudget, size: tuple[int, int]) -> dict[str, Tensor]:
    """What transformers' processor makes of a page of this size when `max_pixels` is our budget."""
    adapter = fixed.adapter
    found = their_processor(adapter, fixed.budget * adapter.side**2)(to_pil(page(1, *size)), return_tensors="pt")
    rows = found["pixel_values"].to(fixed.device, adapter.tower.dtype)
    return their_inputs(adapter, rows, found["image_grid_thw"].to(fixed.device))


def resized_first_token(fixed: FixedBudget, image: Tensor, tokens: int, relevance: Relevance) -> list[int]:
    """The whole image in so many tokens, on the grid of transformers' resize."""
    texture, side = Texture((image,)).mipmapped(), fixed.adapter.side
    allocation = choose_tokens(texture, budget=tokens, patch=side, allocator="resize", relevance=relevance)
    return _first_token(fixed, fixed.encode(texture, in_slots(allocation, fixed.budget)))


def asked_first_token(fixed: FixedBudget, image: Tensor) -> list[int]:
    """By plain calls up to the tower, as `ask` does."""
    texture, side = Texture((image,)).mipmapped(), fixed.adapter.side
    allocation = choose_tokens(texture, QUESTION, budget=fixed.budget, patch=side, relevance="scout")
    return _first_token(fixed, fixed.encode(texture, allocation))


def captured_first_token(report: Report, fixed: FixedBudget, image: Tensor) -> Work:
    """Mips, scout, allocation and sampling in one graph; tower and prefill in two more."""
    size, side = (image.shape[2], image.shape[3]), fixed.adapter.side
    choose = capture(size, fixed.budget, ALLOCATOR, patch=side, relevance="scout", device=report.device, graphs=1)

    def read() -> list[int]:
        return _first_token(fixed, fixed.encode_patches(choose(image, QUESTION)))

    read()
    if choose.reason is not None:
        report.notes.append(f"{first_token_of(size)}, asked: {choose.reason}.  ")
    return read


def _first_token(fixed: FixedBudget, seen: TowerOutput) -> list[int]:
    logits = fixed.prefill([prompt_ids(fixed.adapter, fixed.budget)], seen).logits
    return [int(token) for token in logits.argmax(-1).tolist()]


def gain_note(size: tuple[int, int], full: float, resized: Resized) -> str:
    """What part of the gain over the full grid is fewer tokens, and what part is capture."""
    fewer, capture, asking = full / resized.theirs, resized.theirs / resized.ours, resized.asked - resized.ours
    return (
        f"{first_token_of(size)}: the same resize, captured, is {full / resized.ours:.1f} × faster than transformers "
        f"with all tokens: {fewer:.1f} × by fewer tokens (resized, both eager), {capture:.1f} × by capture (ours "
        f"against the same resize, eager). To choose by a question takes {abs(asking) / 1e3:.2f} ms "
        f"{'more' if asking > 0 else 'less'} than to resize, whose choice is not captured.  "
    )


def add_compiled(report: Report, fixed: FixedBudget, sizes: list[tuple[int, int]]) -> None:
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
                add_row(report, work, f"{by}, compiled in {took:.0f} s", reading)
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
