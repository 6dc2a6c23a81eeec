"""The cost of a call: milliseconds, and peak memory above what was held before."""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch

_Result = TypeVar("_Result")
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # see proc(5): resets the peak of resident memory to what is resident now


class Cost(NamedTuple):
    ms: float
    mb: float | None  # None where the system does not report it


def costed(call: Callable[[], _Result], device: torch.device) -> tuple[_Result, Cost]:
    """The result of a call, its time including all work on the device, and its memory there (or resident)."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before: float | None = torch.cuda.memory_allocated(device) / 2**20
    else:
        before = _resident("VmRSS") if _reset_peak() else None
    start = time.perf_counter()
    result = call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    ms = 1000 * (time.perf_counter() - start)
    if before is None:
        return result, Cost(ms, None)
    peak = torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else _resident("VmHWM")
    return result, Cost(ms, max(0.0, (peak or 0.0) - before))


def _reset_peak() -> bool:
    try:
        _CLEAR.write_text(_RESET_PEAK)
    except OSError:
        return False
    return True


def _resident(name: str) -> float | None:
    """Megabytes, from /proc."""
    try:
        found = re.search(rf"^{name}:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found.group(1)) / 1024 if found else None
