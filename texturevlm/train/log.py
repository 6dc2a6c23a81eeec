"""What a run writes down: the loss curve as CSV and as TensorBoard events, evaluations a line each, a live bar.

A resumed run first forgets what the killed one wrote after its last checkpoint, so that the files are those of a run
that was never killed.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path

from texturevlm.journal import append, whole_lines
from texturevlm.progress import Progress
from texturevlm.train.events import Events

CURVE, EVALUATIONS = "log.csv", "evaluations.jsonl"


class LiveProgress(Progress):
    """The project's bar, with the loss at its end."""

    note = ""

    def _words(self) -> str:
        return f"{super()._words()}{self.note}"


class Log:
    """The files of a run, gone on with from a step."""

    def __init__(self, out: Path, *, step: int, steps: int) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.curve, self.evaluations = out / CURVE, out / EVALUATIONS
        self.names: list[str] = _forget_curve(self.curve, step)
        _forget_evaluations(self.evaluations, step)
        self.events = Events(out)
        self.progress = LiveProgress(steps, "steps", done=step)

    def step(self) -> None:
        """One more is done."""
        self.progress.step()

    def loss(self, loss: float) -> None:
        """What the bar shows from now on."""
        self.progress.note = f", loss {loss:.4f}"

    def losses(self, step: int, numbers: Mapping[str, float]) -> None:
        """A row of the curve. All rows have the same names."""
        fresh = not self.names
        self.names = self.names or ["step", *numbers]
        if self.names != ["step", *numbers]:
            raise ValueError(f"fit: losses must have the same names at every step, {self.names[1:]}, got {[*numbers]}")
        with self.curve.open("a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            if fresh:
                writer.writerow(self.names)
            writer.writerow([step, *(repr(one) for one in numbers.values())])
        self.events.add(step, {f"train/{name}": one for name, one in numbers.items()})

    def evaluation(self, step: int, numbers: Mapping[str, float]) -> None:
        append(self.evaluations, [{"step": step, **numbers}])
        self.events.add(step, {f"evaluation/{name}": one for name, one in numbers.items()})

    def close(self) -> None:
        self.events.close()


def _forget_curve(path: Path, step: int) -> list[str]:
    """Rows after a step are cut off; the names of the columns, none where there is no row."""
    rows = [line.decode("utf-8").rstrip("\r") for line in whole_lines(path)]
    kept = rows[:1] + [row for row in rows[1:] if int(row.split(",")[0]) <= step]
    if not kept[1:]:
        path.unlink(missing_ok=True)
        return []
    path.write_text("".join(f"{row}\r\n" for row in kept), encoding="utf-8", newline="")
    return kept[0].split(",")


def _forget_evaluations(path: Path, step: int) -> None:
    kept = [line for line in whole_lines(path) if json.loads(line)["step"] <= step]
    path.unlink(missing_ok=True)
    if kept:
        path.write_bytes(b"".join(line + b"\n" for line in kept))
