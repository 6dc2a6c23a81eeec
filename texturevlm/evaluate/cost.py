"""The cost of a call: milliseconds, and peak memory above what was held before."""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

_Result = TypeVar("_Result")
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # see proc(5): resets the peak of resident memory to what is resident now


def costed(call: Callable[[], _Result], device: torch.device) -> tuple[_Result, float, float | None]:
    """The result of a call, its milliseconds including all work on the device, and the megabytes it took there (or
    resident); None where the system does not report them."""
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before: float | None = torch.cuda.memory_allocated(device) / 2**20
    else:
        before = _resident("VmRSS", reset=True)
    start = time.perf_counter()
    result = call()
    if on_gpu:
        torch.cuda.synchronize(device)
    ms = 1000 * (time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated(device) / 2**20 if on_gpu else _resident("VmHWM")
    return result, ms, None if before is None else max(0.0, (peak or 0.0) - before)


def _resident(name: str, *, reset: bool = False) -> float | None:
    """Megabytes, from /proc; None where it cannot be read, or its peak not be reset."""
    try:
        if reset:
            _CLEAR.write_text(_RESET_PEAK)
        found = re.search(rf"^{name}:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found.group(1)) / 1024 if found else None
