"""A benchmark's records: a table for people, JSON for later comparison, both with the machine they came from."""

import json
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from texturevlm_lab.bench.timing import TIMERS, Timing, Work, copy_bandwidth
from texturevlm_lab.evaluate.provenance import origin

_kept_in: ContextVar[Path | None] = ContextVar("_kept_in", default=None)


class Row(NamedTuple):
    """One measurement: what was done, by which implementation, how it was timed, and the least it could take."""

    work: str
    by: str
    state: str  # a key of TIMERS, or why there is no number
    timing: Timing | None
    floor: float | None = None  # microseconds
    bar: float | None = None  # microseconds, what the project asked for

    def cells(self) -> str:
        if self.timing is None:
            return f"| {self.work} | {self.by} | {self.state} | – | – | – | – | – |"
        median, low, high = self.timing
        floor = f"{self.floor:.1f} | {median / self.floor:.2f}" if self.floor else "– | –"
        bar = f"{self.bar:.1f} {'met' if median <= self.bar else 'MISSED'}" if self.bar else "–"
        return f"| {self.work} | {self.by} | {self.state} | {median:.1f} | {low:.1f}–{high:.1f} | {floor} | {bar} |"

    def record(self) -> dict[str, Any]:
        return self._asdict() | {"timing": self.timing and self.timing._asdict()}


@dataclass
class Report:
    """quick: few repetitions, no torch.compile; code: which code made it"""

    title: str
    device: str
    bandwidth: float
    quick: bool = False
    code: str = ""
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(
        self,
        work: str,
        by: str,
        call: Work,
        state: str,
        *,
        moved: float = 0,
        bar: float | None = None,
        per: int = 1,
        **counts: int,
    ) -> float:
        """Time `call` and add its row; returns the median.

        state:  how: a key of TIMERS
        moved:  the least it must read and write, in bytes
        per:    what the time is divided by, such as the images of a batch
        counts: calls and repeats of the timer
        """
        if self.quick:
            counts["repeats"] = min(3, counts.get("repeats", 3))
        measured = Timing(*(number / per for number in TIMERS[state](call, **counts)))
        floor = moved / self.bandwidth * 1e6 if moved else None
        self.append(Row(work, by, state, measured, floor, bar))
        return measured.median

    def add_missing(self, work: str, by: str, why: Exception | str) -> None:
        """A row without a number."""
        reason = why if isinstance(why, str) else f"failed: {str(why).splitlines()[0][:80]}"
        self.append(Row(work, by, reason, None))

    def append(self, row: Row) -> None:
        """Keep a row, and show it on stderr: a benchmark takes minutes, and may be cut."""
        self.rows.append(row)
        keep(self)
        time = f"{row.timing.median:.1f} µs, " if row.timing else ""
        print(f"{row.work}, {row.by}: {time}{row.state}", file=sys.stderr, flush=True)

    def add_compiled(
        self,
        work: str,
        function: Callable[..., Any],
        state: str,
        *arguments: Any,
        moved: float = 0,
        call: Callable[..., object] | None = None,
    ) -> None:
        """A baseline under torch.compile, or why not; call: what is timed of the compiled function, if not itself."""
        if self.quick:
            return
        torch.compiler.reset()  # else a second shape makes a slower kernel for any shape
        compiled = torch.compile(function, dynamic=False)
        timed = partial(call, compiled) if call else partial(compiled, *arguments)
        try:
            timed()
        except Exception as error:  # a missing compiler shows as many kinds of error; the table says which
            return self.add_missing(work, "PyTorch compiled", error)
        self.add(work, "PyTorch compiled", timed, state, moved=moved)

    def table(self) -> str:
        return "\n".join(
            [
                f"# {self.title}",
                "",
                *([f"{self.code}  "] if self.code else []),
                *(f"{key}: {value}  " for key, value in machine(self.device).items()),
                f"copy bandwidth in this run: {self.bandwidth / 1e12:.3f} TB/s, read and written  ",
                "",
                *self.notes,
                "",
                "| work | by | timed | median µs | middle half | floor µs | × floor | bar µs |",
                "|---|---|---|---|---|---|---|---|",
                *(row.cells() for row in self.rows),
            ]
        )

    def save(self, path: Path) -> None:
        """Write the measurements to a file, and the table beside it, with the suffix .md."""
        record = {
            "title": self.title,
            "code": self.code,
            "machine": machine(self.device),
            "copy_bandwidth": self.bandwidth,
            "notes": self.notes,
            "rows": [row.record() for row in self.rows],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        texts = {path: json.dumps(record, indent=1, ensure_ascii=False), path.with_suffix(".md"): self.table()}
        for place, text in texts.items():
            part = place.with_name(f".{place.name}.part")
            part.write_text(text + "\n", encoding="utf-8")
            part.replace(place)  # at once: a run that is cut leaves a whole file


class Saved(Protocol):
    """A report of any kind."""

    def save(self, path: Path) -> None: ...


@contextmanager
def kept_in(path: Path | None) -> Iterator[None]:
    """Inside, reports are written to this file row by row: a run that is cut leaves what it has measured."""
    token = _kept_in.set(path)
    try:
        yield
    finally:
        _kept_in.reset(token)


def keep(report: Saved) -> None:
    """Write what a report holds so far to the file of `kept_in`, if there is one."""
    if (path := _kept_in.get()) is not None:
        report.save(path)


def begin(module: str, title: str, device: str | None, quick: bool) -> Report:
    """An empty report of a module for a device (cuda if there is one and nothing else is asked), its copy bandwidth
    measured."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    return Report(title, device, copy_bandwidth(device), quick, str(origin(module)))


def machine(device: str) -> dict[str, str]:
    """What the numbers depend on."""
    cpu = f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
    return {
        "hardware": torch.cuda.get_device_name() if device == "cuda" else cpu,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
