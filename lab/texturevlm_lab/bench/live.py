"""`texturevlm bench live`: a model that watches: frame → texture → tower → cache, and question → first token.

A still camera at 1080p before which a tenth of the tiles changes, a model of Qwen3-VL-4B's architecture with random
weights. The cache is filled first. Then frames follow one another, with what changed replaced in the cache, and
questions come in between. Memory is read before and after. The parts of a frame follow, each by itself: what is left
of a frame is work of the host.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import cycle

import torch

from texturevlm.defaults import BUDGET
from texturevlm.video.live import VideoStream
from texturevlm_lab.bench.report import Report, Row
from texturevlm_lab.bench.timing import Timing, elapsed, waited
from texturevlm_lab.bench.video import CAPTURABLE, FULL_HD, SMALL, clips
from texturevlm_lab.bench.vlm_model import QUESTION, asked_model, random_model

TITLE = "A model that watches"
TIMED_FRAMES, QUICK_TIMED = 240, 6
CLIP_FRAMES, QUICK_CLIP = 30, 4  # different frames, shown again and again
CACHED, QUICK_CACHED = 4096, 200
FRAME_RATE = 60.0
FRAME_BAR = 1e6 / 60  # microseconds
FIRST_TOKEN_BAR = 25e3
EVERY_FRAME = 1e-3  # seconds: an interval that makes every frame a moment, to fill the cache


def bench(report: Report) -> None:
    """Time frames and questions; a quick run takes small frames, few of them, and a small model."""
    quick, small = report.quick, report.quick or report.device == "cpu"
    report.title += ", small frames" if quick else ""
    model = asked_model(random_model(report.device, small=small), 24 if quick else BUDGET)
    size, frames = SMALL if small else FULL_HD, QUICK_TIMED if small else TIMED_FRAMES
    clip = next(clips(size, report.device, QUICK_CLIP if small else CLIP_FRAMES))
    limit = QUICK_CACHED if small else CACHED
    stream = VideoStream(
        size, model.budget, CAPTURABLE, model=model, relevance="none", keyframe=10**6, fps=FRAME_RATE, limit=limit
    )
    talk = stream.conversation
    assert talk is not None
    held = _fill(stream, clip.frames, limit)
    for frame in clip.frames:  # graphs are made when they are first needed
        stream.step(frame)
    waited(partial(stream.ask, QUESTION, max_new_tokens=2))()
    before = _memory(report.device)
    spent, tokens = _timed(stream, clip.frames, frames)
    bar = None if small else FRAME_BAR
    report.append(Row(f"{clip.name}: frame → cache", "texturevlm", "host", Timing.of(spent), bar=bar))
    asking = waited(partial(stream.ask, QUESTION, max_new_tokens=1))
    report.add(
        f"question → first token, {talk.tokens} tokens cached",
        "texturevlm",
        asking,
        "one call",
        bar=None if small else FIRST_TOKEN_BAR,
        repeats=3 if small else 30,
    )
    _add_parts(report, stream, clip.frames, round(tokens), repeats=3 if small else 30)
    after = _memory(report.device)
    report.notes += [
        f"{len(spent) * 1e6 / sum(spent):.1f} frames a second; {tokens:.1f} tokens a frame through the language model, "
        f"of {talk.tokens} that are kept; {held} frames filled the cache; {talk.evicted} moments were evicted.  ",
        f"Memory before and after {len(spent)} frames and the questions: {before / 2**20:.1f} and "
        f"{after / 2**20:.1f} MiB.  ",
    ]
    reasons = [f"{size} tokens: {graph.reason}" for size, graph in talk.memory.graphs.items() if graph.reason]
    report.notes += [f"Not captured: {reason}.  " for reason in reasons]


def _add_parts(report: Report, stream: VideoStream, frames: list[torch.Tensor], count: int, *, repeats: int) -> None:
    """The parts of a frame, each by itself. count: tokens that a frame takes through the language model"""
    talk, images = stream.conversation, cycle(frames)
    assert talk is not None
    step = stream.tokens.step(next(images))
    slots = list(talk.places)[:count]  # in reading order
    tokens = [slot for moment in talk.moments[::-1] for slot in moment.visual()][:count]
    parts = {
        "frame → patches": lambda: stream.tokens.step(next(images)),
        f"{len(slots)} tokens through the tower": lambda: talk.encode(step.patches.pixels[0], slots),
        f"{len(tokens)} tokens through the language model": lambda: talk.memory.run(tokens),
    }
    for name, work in parts.items():
        report.add(name, "texturevlm", waited(work), "one call", repeats=repeats)


def _fill(stream: VideoStream, frames: list[torch.Tensor], limit: int) -> int:
    """Make every frame a moment until the cache is full; returns how many frames that took."""
    talk = stream.conversation
    assert talk is not None
    usual, talk.config = talk.config, replace(talk.config, interval=EVERY_FRAME)
    count = 0
    while talk.evicted == 0 and count < limit:
        stream.step(frames[count % len(frames)])
        count += 1
    talk.config = usual
    return count


def _timed(stream: VideoStream, frames: list[torch.Tensor], count: int) -> tuple[list[float], float]:
    """Microseconds of each frame, until the cache holds it; and how many tokens went through the language model."""
    talk, spent, tokens = stream.conversation, [], 0
    assert talk is not None
    for index in range(count):
        spent.append(elapsed(waited(partial(stream.step, frames[index % len(frames)]))))
        tokens += talk.computed
    return spent, tokens / count


def _memory(device: str) -> int:
    return torch.cuda.memory_allocated() if device == "cuda" else 0
