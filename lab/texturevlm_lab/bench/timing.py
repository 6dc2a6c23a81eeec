"""Timing that leaves nothing out: device time by graph replay, cold caches by flushing them, host time by the clock.

Every figure is a median with its spread (the middle half of the repetitions), in microseconds.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

Work = Callable[[], object]
FLUSH_BYTES = 256 << 20  # several times an H200's L2
HOST_SECONDS = 0.05  # of one repetition of `host`
WARM_UP_SECONDS = 0.1  # an idle GPU runs at a fifth of its clock


class Timing(NamedTuple):
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
    calls = max(1, min(20, int(5e3 / max(elapsed(waited(work)), 1.0))))
    replay = _captured(work, calls)
    replay()
    return Timing.of([_events(replay) / calls for _ in range(repeats)])


def device_cold(work: Work, repeats: int = 40) -> Timing:
    """GPU time of one call after the L2 cache was overwritten."""
    work()
    replay = _captured(work, 1)
    flush = torch.empty(FLUSH_BYTES // 4, device="cuda")
    return Timing.of([_events(replay, before=lambda: flush.fill_(1.0)) for _ in range(repeats)])


def host(work: Work, calls: int = 200, repeats: int = 15) -> Timing:
    """Wall-clock time per call from Python, steady state, the GPU's own time included where it is the longer.

    calls: in a row, at most; fewer where they would take more than HOST_SECONDS
    """
    for _ in range(20):
        work()
    calls = max(1, min(calls, int(HOST_SECONDS * 1e6 / max(elapsed(waited(work)), 1.0))))
    return Timing.of([took / calls for took in _samples(_several(work, calls), repeats)])


def in_a_row(work: Work, calls: int = 16, repeats: int = 5) -> Timing:
    """Wall-clock time per call of so many in a row, until the GPU is done: the throughput of long calls.

    `host` makes few calls of what takes long, so that the first one's work on the host would count in full.
    """
    several = _several(work, calls)
    waited(several)()
    return Timing.of([took / calls for took in _samples(several, repeats)])


def one_call(work: Work, repeats: int = 50) -> Timing:
    """Wall clock from the call until the GPU is done."""
    return Timing.of(_samples(work, repeats))


def cpu(work: Work, repeats: int = 7) -> Timing:
    """Wall-clock time of one call on the CPU."""
    work()
    return Timing.of([elapsed(work) for _ in range(repeats)])


# By what the column "timed" of a report says.
TIMERS: dict[str, Callable[..., Timing]] = {
    "warm": device_warm,
    "cold": device_cold,
    "host": host,
    "in a row": in_a_row,
    "one call": one_call,
    "cpu": cpu,
}


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


def elapsed(work: Work) -> float:
    """Wall clock of one call."""
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1e6


def waited(work: Work) -> Work:
    """The same work, until the GPU is done."""

    def wait() -> object:
        found = work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return found

    return wait


def _several(work: Work, calls: int) -> Work:
    def several() -> None:
        for _ in range(calls):
            work()

    return several


def _samples(work: Work, repeats: int) -> list[float]:
    """Wall clock of calls, each begun when the GPU has nothing to do, until it is done."""
    samples = []
    for _ in range(repeats):
        waited(lambda: None)()
        samples.append(elapsed(waited(work)))
    return samples


def _spin(work: Work) -> None:
    until = time.perf_counter() + WARM_UP_SECONDS
    while time.perf_counter() < until:
        waited(work)()


def _captured(work: Work, calls: int) -> Work:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _several(work, calls)()
    return graph.replay


def _events(work: Work, before: Work = lambda: None) -> float:
    """GPU time of one call, without what is done before it."""
    event: Any = torch.cuda.Event
    start, stop = event(enable_timing=True), event(enable_timing=True)
    before()
    start.record()
    work()
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop)) * 1e3
