"""Timing that leaves nothing out: device time by graph replay, cold caches by flushing them, host time by the clock.

Every figure is a median with its spread (the middle half of the repetitions), in microseconds.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Work = Callable[[], object]
FLUSH_BYTES = 256 << 20  # several times an H200's L2
WARM_UP_SECONDS = 0.1  # an idle GPU runs at a fifth of its clock


@dataclass(frozen=True)
class Timing:
    median: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: list[float]) -> "Timing":
        ordered = sorted(samples)
        quarter = len(ordered) // 4
        return cls(statistics.median(ordered), ordered[quarter], ordered[-1 - quarter])


def device_warm(work: Work, repeats: int = 20) -> Timing:
    """GPU time per call when calls follow one another, from a captured graph: no launch gaps, warm caches."""
    work()
    _spin(work)
    started = time.perf_counter()
    work()
    torch.cuda.synchronize()
    calls = max(1, min(20, int(5e-3 / max(time.perf_counter() - started, 1e-6))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            work()
    graph.replay()
    return Timing.of([_events(graph.replay) / calls for _ in range(repeats)])


def device_cold(work: Work, repeats: int = 40) -> Timing:
    """GPU time of one call after the L2 cache was overwritten."""
    work()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    flush = torch.empty(FLUSH_BYTES // 4, device="cuda")
    samples = []
    for _ in range(repeats):
        flush.fill_(1.0)
        samples.append(_events(graph.replay))
    return Timing.of(samples)


def host(work: Work, calls: int = 200, repeats: int = 15) -> Timing:
    """Wall-clock time per call from Python, steady state, the GPU's own time included where it is the longer."""
    on_gpu = torch.cuda.is_available()
    for _ in range(20):
        work()
    samples = []
    for _ in range(repeats):
        if on_gpu:
            torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(calls):
            work()
        if on_gpu:
            torch.cuda.synchronize()
        samples.append((time.perf_counter() - started) / calls * 1e6)
    return Timing.of(samples)


def cpu(work: Work, repeats: int = 7) -> Timing:
    """Wall-clock time of one call on the CPU."""
    work()
    samples = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        samples.append((time.perf_counter() - started) * 1e6)
    return Timing.of(samples)


def copy_bandwidth(device: str) -> float:
    """Bytes per second of a large copy, read and written counted, on a buffer far larger than any cache."""
    count = (1 << 30) if device == "cuda" else (1 << 26)
    source = torch.rand(count, device=device)
    target = torch.empty_like(source)

    def copy() -> None:
        target.copy_(source)

    if device == "cpu":
        timing = cpu(copy)
    else:  # not captured: inside a graph a copy goes through the copy engines, at two thirds of this rate
        _spin(copy)
        timing = Timing.of([_events(copy) for _ in range(20)])
    return 2 * 4 * count / (timing.median * 1e-6)


def _spin(work: Work) -> None:
    until = time.perf_counter() + WARM_UP_SECONDS
    while time.perf_counter() < until:
        work()
        torch.cuda.synchronize()


def _events(work: Work) -> float:
    event: Any = torch.cuda.Event
    start, stop = event(enable_timing=True), event(enable_timing=True)
    start.record()
    work()
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop)) * 1e3
