"""The files of a run: the loss curve as CSV and for TensorBoard, one line per evaluation, and a progress bar.

A resumed run first removes what the killed one wrote after its last checkpoint, so that the files equal those of an
uninterrupted run.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from texturevlm.journal import append, whole_lines
from texturevlm.progress import Progress

CURVE, EVALUATIONS = "log.csv", "evaluations.jsonl"


class Log:
    """Appends to the files of a run, from a step on."""

    def __init__(self, out: Path, *, step: int, steps: int) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.curve, self.evaluations = out / CURVE, out / EVALUATIONS
        self.names: list[str] = _truncate_curve(self.curve, step)
        _truncate_evaluations(self.evaluations, step)
        self.tensorboard = _summary_writer(out, step)
        self.progress = Progress(steps, "steps", done=step)

    def step(self) -> None:
        """One more step is done."""
        self.progress.step()

    def losses(self, step: int, numbers: Mapping[str, float]) -> None:
        """A row of the curve. All rows have the same names."""
        header = [] if self.names else [["step", *numbers]]
        self.names = self.names or ["step", *numbers]
        if self.names != ["step", *numbers]:
            raise ValueError(f"fit: losses must have the same names at every step, {self.names[1:]}, got {[*numbers]}")
        with self.curve.open("a", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([*header, [step, *(repr(one) for one in numbers.values())]])
        self._summarise("train", step, numbers)

    def evaluation(self, step: int, numbers: Mapping[str, float]) -> None:
        append(self.evaluations, [{"step": step, **numbers}])
        self._summarise("evaluation", step, numbers)

    def _summarise(self, group: str, step: int, numbers: Mapping[str, float]) -> None:
        if self.tensorboard is not None:
            for name, number in numbers.items():
                self.tensorboard.add_scalar(f"{group}/{name}", number, step)

    def close(self) -> None:
        if self.tensorboard is not None:
            self.tensorboard.close()


def _summary_writer(out: Path, step: int) -> Any:
    """TensorBoard's writer, or None without the extra `train`: the curve is in log.csv as well."""
    if importlib.util.find_spec("tensorboard") is None:
        print("no TensorBoard events: pip install 'texturevlm[train]' to get them", file=sys.stderr)
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(out), purge_step=step or None)


def _truncate_curve(path: Path, step: int) -> list[str]:
    """Remove rows after a step; returns the names of the columns, none if no row is left."""
    rows = [line.decode("utf-8").rstrip("\r") for line in whole_lines(path)]
    kept = rows[:1] + [row for row in rows[1:] if int(row.split(",")[0]) <= step]
    if not kept[1:]:
        path.unlink(missing_ok=True)
        return []
    path.write_text("".join(f"{row}\r\n" for row in kept), encoding="utf-8", newline="")
    return kept[0].split(",")


def _truncate_evaluations(path: Path, step: int) -> None:
    kept = [line for line in whole_lines(path) if json.loads(line)["step"] <= step]
    path.unlink(missing_ok=True)
    if kept:
        path.write_bytes(b"".join(line + b"\n" for line in kept))
