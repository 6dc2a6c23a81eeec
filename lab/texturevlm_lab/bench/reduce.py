"""`texturevlm bench reduce`: every published reduction beside plain resize and our choice of tokens, at equal tokens.

The model has Qwen3-VL-4B's architecture with random weights, which do not change the time. Each row begins with a page
on the device and ends with tokens read: mip levels, choice, sampling, tower and prefill, none of it captured, because
most reductions are not; then decoding from a graph. A reduction reads all tokens of the page and keeps as many as the
others choose. Methods for videos have further rows, on the parts of the page one after another. Rows are written as
they come.
"""

from __future__ import annotations

import gc
import statistics
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from texturevlm.placement import choose_tokens
from texturevlm.sampling import sample
from texturevlm.types import Texture
from texturevlm.vlm import CapturedDecode, PromptImage, View, moment_view, own_grid
from texturevlm.vlm.captured_generate import decoded_by_graph, dense_keys
from texturevlm.vlm.families.qwen import QwenAdapter
from texturevlm_lab.bench.pictures import page
from texturevlm_lab.bench.published import LEGEND, PUBLISHED, RESIZED
from texturevlm_lab.bench.report import Report
from texturevlm_lab.bench.vlm_model import PROMPT_WORDS, QUESTION, gibibytes, prompt_ids, random_model
from texturevlm_lab.rivals import METHODS, ReduceStep, steps_of
from texturevlm_lab.rivals.hooks.reducing import reduced

PAGE, KEEP, ANSWER = (3508, 2480), 273, 7
PARTS, FEW_PARTS = 4, 2  # of the page along each side: the moments of a clip
FPS = 2.0
SECONDS = 90.0  # for all rows; what comes later is not measured
# The controls and the best known first, in case the time runs out.
MEASURED_FIRST = ("stride", "tome", "visionzip", "divprune", "fastv", "pace", "pixelprune", "dyrate", "dtoma")
FOR_VIDEOS = ("prunevid", "dtoma", "pvc")
TITLE = "Reductions at equal tokens, Qwen3-VL-4B's architecture"
HEADS = ("tokens by", "chosen", "first layer", "last layer", "first token ms", "next token ms", "peak GiB", "published")


@dataclass(frozen=True)
class Way:
    """How tokens come to be: chosen by an allocator, then perhaps reduced in the model.

    video: of a clip, parts of the page along each side; 0: the whole page
    """

    name: str
    budget: int
    allocator: str = "resize"
    asked: bool = False
    steps: tuple[ReduceStep, ...] = ()
    published: str = ""
    video: int = 0


@dataclass(frozen=True)
class Measured:
    """One row; state: why there are no numbers, if there are none.

    chosen, first, last: visual tokens in front of the tower, in the first layer of the language model, in the last
    first_ms, next_ms:   from the page on the device to the first token; each further token
    peak:                GiB in use at most, weights and all
    eager:               why further tokens came from no graph although they should have
    """

    name: str
    published: str
    state: str = ""
    chosen: int = 0
    first: int = 0
    last: int = 0
    first_ms: float = 0.0
    next_ms: float = 0.0
    peak: float | None = None
    eager: str = ""

    def cells(self) -> list[str]:
        if self.state:
            return [f"{self.name}: {self.state}", *["–"] * 6, self.published or "–"]
        peak = "–" if self.peak is None else f"{self.peak:.2f}"
        times = [f"{self.first_ms:.1f}", f"{self.next_ms:.1f}" + (f", no graph: {self.eager}" if self.eager else "")]
        counts = [str(one) for one in (self.chosen, self.first, self.last)]
        return [self.name, *counts, *times, peak, self.published or "–"]

    def record(self) -> dict[str, Any]:
        return asdict(self)


def bench(report: Report) -> None:
    """Measure every way; a quick run takes a small model and a small page."""
    begun, report.heads = time.perf_counter(), HEADS
    adapter = random_model(report.device, small=report.quick)
    size, keep, parts = ((320, 256), 8, FEW_PARTS) if report.quick else (PAGE, KEEP, PARTS)
    report.notes += [
        f"A page of {size[1]} × {size[0]} pixels on the device → an answer of {ANSWER} tokens; {PROMPT_WORDS} words in "
        f"the prompt. Random weights in {adapter.model.dtype}, {gibibytes(adapter.model):.2f} GiB. Medians of two runs "
        "after one that is not counted. Nothing is captured up to the first token; further tokens come from a graph, "
        "which reads a copy of keys and values; those of dyrate do not, because tokens leave meanwhile.  ",
        "chosen: tokens in front of the tower. first and last layer: visual tokens there, in the prefill.  ",
        "video: parts of the page as the moments of a clip, two frames each.  ",
        LEGEND,
    ]
    image = page(1, *size).to(report.device)
    for way in ways(adapter, size, keep, parts):
        late = time.perf_counter() - begun > SECONDS
        missing = Measured(way.name, way.published, "not measured, the time was over")
        report.append(missing if late else measured(adapter, image, way))


def ways(adapter: QwenAdapter, size: tuple[int, int], keep: int, parts: int) -> list[Way]:
    """Everything, plain resize, ours, both together, then each reduction of everything, and those of a video."""
    rows, columns = adapter.grid_for(size)
    everything = rows * columns
    then = steps_of("bench", "visionzip", keep)
    found = [
        Way("everything", everything),
        Way(f"plain resize to {keep}", keep, published=RESIZED),
        Way(f"texturevlm, asked, {keep}", keep, "auto", True),
        Way(f"texturevlm, asked, {2 * keep}, then visionzip", 2 * keep, "auto", True, then),
    ]

    def reduction(name: str, video: int = 0) -> Way:
        steps, said = steps_of("bench", name, keep), PUBLISHED.get(name, "")
        return Way(f"video, {name}" if video else name, everything, steps=steps, published=said, video=video)

    found += [reduction(name) for name in MEASURED_FIRST]
    found += [Way("video, everything", everything, video=parts), Way(f"video, resized to {keep}", keep, video=parts)]
    found += [reduction(name, parts) for name in FOR_VIDEOS]
    return found + [reduction(name) for name in METHODS if name not in MEASURED_FIRST]


class Clock:
    """Notes when each token was read, as a stopping criterion that never stops."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, ids: Tensor, scores: Any, **more: Any) -> Tensor:
        int(ids[0, -1])
        self.times.append(time.perf_counter())
        return torch.zeros(len(ids), dtype=torch.bool, device=ids.device)


def measured(adapter: QwenAdapter, image: Tensor, way: Way) -> Measured:
    """Run a way three times; the first is not counted."""
    firsts, nexts, peak = [], [], None
    decode = CapturedDecode(adapter)
    on_gpu = image.device.type == "cuda"
    if on_gpu:
        gc.collect()  # what is left of the way before would count as this one's memory
    for number in range(3):
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        try:
            counts, begun, clock = answered(adapter, image, way, decode)
        except (ValueError, RuntimeError, torch.OutOfMemoryError) as error:  # one row must not end the others
            return Measured(way.name, way.published, f"failed: {str(error).splitlines()[0][:80]}")
        if number:
            firsts.append(clock[0] - begun)
            nexts += [after - before for before, after in pairwise(clock)]
            peak = torch.cuda.max_memory_allocated() / 2**30 if on_gpu else None
    first_ms, next_ms = (1e3 * statistics.median(one) for one in (firsts, nexts))
    chosen, first, last = counts
    eager = (decode.replay.reason or "") if on_gpu and decode.replay is not None else ""
    return Measured(way.name, way.published, "", chosen, first, last, first_ms, next_ms, peak, eager)


@torch.no_grad()
def answered(
    adapter: QwenAdapter, image: Tensor, way: Way, decode: CapturedDecode
) -> tuple[tuple[int, int, int], float, list[float]]:
    """Visual tokens in front of the tower, in the first and in the last layer; when it began; when each token came."""
    layers = adapter.language_of(adapter.model).layers
    counts: list[int] = []
    hooks = [
        one.register_forward_pre_hook(lambda _, args, kwargs: counts.append(_length(args, kwargs)), with_kwargs=True)
        for one in (layers[0], layers[-1])
    ]
    clock = Clock()
    if image.device.type == "cuda":
        torch.cuda.synchronize()
    begun = time.perf_counter()
    try:
        inputs = (_clip_inputs if way.video else _inputs)(adapter, image, way)
        options = {"max_new_tokens": ANSWER, "min_new_tokens": ANSWER, "do_sample": False}
        with reduced(adapter, way.steps, function="bench") as run:
            known = dense_keys if run is None else run.known
            with decoded_by_graph(adapter.model, decode, known, options):
                adapter.model.generate(**inputs, **options, stopping_criteria=[clock], pad_token_id=0)
    finally:
        for hook in hooks:
            hook.remove()
    chosen = int(torch.isin(inputs["input_ids"], torch.tensor(adapter.visual_ids, device=image.device)).sum())
    words = inputs["input_ids"].shape[1] - chosen
    return (chosen, counts[0] - words, counts[1] - words), begun, clock.times


def _length(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    hidden: Tensor = args[0] if args else kwargs["hidden_states"]
    return hidden.shape[1]


def _inputs(adapter: QwenAdapter, image: Tensor, way: Way) -> dict[str, Tensor]:
    """The model's inputs for a page on the device."""
    texture, side = Texture((image,)).mipmapped(), adapter.side
    asking, relevance = (QUESTION, "scout") if way.asked else ("", "none")
    allocation = choose_tokens(
        texture, asking, budget=way.budget, patch=side, allocator=way.allocator, relevance=relevance
    )
    views = [view for group in adapter.groups(PromptImage(texture, allocation)) for view in group]
    return adapter.assemble([prompt_ids(adapter, sum(len(view) for view in views))], views)


def _clip_inputs(adapter: QwenAdapter, image: Tensor, way: Way) -> dict[str, Tensor]:
    """The same for its parts, one after another."""
    parts = [part for row in image.chunk(way.video, 2) for part in row.chunk(way.video, 3)]
    views = [_moment(adapter, part, number, way.budget // len(parts)) for number, part in enumerate(parts)]
    start, end = adapter.wrapper_ids
    seen = [one for view in views for one in (start, *[adapter.visual_ids[1]] * len(view), end)]
    return adapter.assemble([[1, 2, 3, *seen, *range(4, 4 + PROMPT_WORDS - 3)]], views)


def _moment(adapter: QwenAdapter, part: Tensor, number: int, budget: int) -> View:
    """Two frames that are alike, at full resolution if the budget allows."""
    texture, side = Texture((part,)).mipmapped(), adapter.side
    allocation = own_grid(adapter, texture)
    if allocation.centre.shape[1] > budget:
        allocation = choose_tokens(texture, budget=budget, patch=side, allocator="resize", relevance="none")
    pixels = sample(texture, allocation).pixels[0][:, None].expand(-1, adapter.moments, -1, -1, -1)
    seconds = number * adapter.moments / FPS
    return moment_view(pixels, allocation, levels="joint", number=number, seconds=seconds, fps=FPS)
