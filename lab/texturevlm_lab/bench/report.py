"""A benchmark's records: a table for people, JSON for later comparison, both with the machine they came from."""

import json
import math
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch

from texturevlm_lab.bench.timing import TIMERS, Timing, Work, copy_bandwidth, waited
from texturevlm_lab.evaluate.markdown import markdown_table
from texturevlm_lab.evaluate.provenance import origin

HEADS = ("work", "by", "timed", "median µs", "middle half", "floor µs", "× floor", "bar µs")


class Row(NamedTuple):
    """One measurement: what was done, by which implementation, how it was timed, and the least it could take."""

    work: str
    by: str
    state: str  # a key of TIMERS, or why there is no number
    timing: Timing | None
    floor: float | None = None  # microseconds
    bar: float | None = None  # microseconds, what the project asked for

    def cells(self) -> list[str]:
        if self.timing is None:
            return [self.work, self.by, self.state, *["–"] * 5]
        median, low, high = self.timing
        floor = [f"{self.floor:.1f}", f"{median / self.floor:.2f}"] if self.floor else ["–", "–"]
        bar = f"{self.bar:.1f} {'met' if median <= self.bar else 'MISSED'}" if self.bar else "–"
        return [self.work, self.by, self.state, f"{median:.1f}", f"{low:.1f}–{high:.1f}", *floor, bar]

    def record(self) -> dict[str, Any]:
        return self._asdict() | {"timing": self.timing and self.timing._asdict()}


@dataclass
class Report:
    """The rows of a benchmark: `add` times one and keeps it.

    quick: few repetitions, no torch.compile
    code:  which code made it
    heads: of the cells of its rows
    path:  the file that is written whenever a row comes
    ends:  when no further row is begun that asks `late`, by `time.perf_counter`
    """

    title: str
    device: str
    bandwidth: float
    quick: bool = False
    code: str = ""
    rows: list[Any] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    heads: Sequence[str] = HEADS
    path: Path | None = None
    ends: float = math.inf

    def add(
        self,
        work: str,
        by: str,
        call: Work,
        state: str = "",
        *,
        moved: float = 0,
        bar: float | None = None,
        per: int = 1,
        **counts: int,
    ) -> float:
        """Time `call` and add its row; returns the median.

        state:  how: a key of TIMERS; by default the device's own time, which is `warm` on a GPU
        moved:  the least it must read and write, in bytes
        per:    what the time is divided by, such as the images of a batch
        counts: calls and repeats of the timer
        """
        state = state or ("warm" if self.device == "cuda" else "cpu")
        if self.quick:
            counts["repeats"] = min(3, counts.get("repeats", 3))
        measured = Timing(*(number / per for number in TIMERS[state](call, **counts)))
        floor = moved / self.bandwidth * 1e6 if moved else None
        self.append(Row(work, by, state, measured, floor, bar))
        return measured.median

    def add_call(self, work: str, by: str, call: Work, *, bar: float | None = None, slow: bool = False) -> float:
        """Time one call after another of what takes milliseconds; slow: it takes more than a hundred."""
        if self.device == "cpu":
            return self.add(work, by, call, "cpu", bar=bar, repeats=2)
        if slow:
            waited(call)()
            return self.add(work, by, call, "one call", bar=bar, repeats=5)
        return self.add(work, by, call, "host", bar=bar, calls=1, repeats=5 if self.quick else 30)

    def add_figure(self, work: str, by: str, state: str, figure: float, bar: float | None = None) -> None:
        """A row of one measurement in microseconds that was made elsewhere."""
        self.append(Row(work, by, state, Timing(figure, figure, figure), bar=bar))

    def add_missing(self, work: str, by: str, why: Exception | str) -> None:
        """A row without a number."""
        reason = why if isinstance(why, str) else f"failed: {str(why).splitlines()[0][:80]}"
        self.append(Row(work, by, reason, None))

    def late(self, work: str, by: str) -> bool:
        """Whether the time is over, which the row says then."""
        if over := time.perf_counter() > self.ends:
            self.add_missing(work, by, "not begun: the time was over")
        return over

    def append(self, row: Any) -> None:
        """Keep a row, and show it on stderr: a benchmark takes minutes, and may be cut."""
        self.rows.append(row)
        if self.path is not None:
            self.save(self.path)
        print(" | ".join(row.cells()), file=sys.stderr, flush=True)

    def add_compiled(
        self,
        work: str,
        function: Callable[..., Any],
        *arguments: Any,
        state: str = "",
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
        about = [self.code] if self.code else []
        about += [f"{key}: {value}" for key, value in machine(self.device).items()]
        about.append(f"copy bandwidth in this run: {self.bandwidth / 1e12:.3f} TB/s, read and written")
        table = markdown_table(self.heads, [row.cells() for row in self.rows])
        return "\n".join([f"# {self.title}", "", *(f"{line}  " for line in about), "", *self.notes, "", table])

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


def measure(name: str, device: str, *, quick: bool = False, path: Path | None = None) -> Report:
    """Run a benchmark: the module of this name, whose function `bench` adds rows to the report that is returned.

    path: a file to which the report is written row by row: a run that is cut leaves what it has measured
    """
    module: Any = import_module(f"texturevlm_lab.bench.{name}")
    torch.manual_seed(0)
    report = Report(module.TITLE, device, copy_bandwidth(device), quick, str(origin(module.__name__)), path=path)
    module.bench(report)
    return report


def machine(device: str) -> dict[str, str]:
    """What the numbers depend on."""
    cpu = f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
    return {
        "hardware": torch.cuda.get_device_name() if device == "cuda" else cpu,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
