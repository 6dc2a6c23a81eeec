"""What a call costs: milliseconds, and memory at its peak above what was held before it."""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch

Result = TypeVar("Result")
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"  # see proc(5): the peak of resident memory begins again at what is resident now


class Cost(NamedTuple):
    ms: float
    mb: float | None  # None where the system does not say


def costed(call: Callable[[], Result], device: torch.device) -> tuple[Result, Cost]:
    """The result of a call, its time with all that it started on the device, and its memory there (or resident)."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before: float | None = torch.cuda.memory_allocated(device) / 2**20
    else:
        before = _resident("VmRSS") if _peak_forgotten() else None
    start = time.perf_counter()
    result = call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    ms = 1000 * (time.perf_counter() - start)
    if before is None:
        return result, Cost(ms, None)
    peak = torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else _resident("VmHWM")
    return result, Cost(ms, max(0.0, (peak or 0.0) - before))


def _peak_forgotten() -> bool:
    try:
        CLEAR.write_text(RESET_PEAK)
    except OSError:
        return False
    return True


def _resident(name: str) -> float | None:
    """Megabytes, from the kernel's account of this process."""
    try:
        found = re.search(rf"^{name}:\s+(\d+) kB", STATUS.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found.group(1)) / 1024 if found else None
