"""A benchmark's records: a table for people, JSON for later comparison, both with the machine they came from."""

import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from texturevlm.bench.timing import Timing, copy_bandwidth


@dataclass(frozen=True)
class Row:
    """One measurement: what was done, by whom, how it was timed, and the least it could take."""

    work: str
    by: str
    state: str  # warm, cold, host, cpu, or why there is no number
    timing: Timing | None
    floor: float | None = None  # microseconds
    bar: float | None = None  # microseconds, what the project asked for


@dataclass
class Report:
    title: str
    device: str
    bandwidth: float
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def table(self) -> str:
        lines = [f"# {self.title}", "", *self._machine(), "", *self.notes, ""]
        lines += [
            "| work | by | timed | median µs | middle half | floor µs | × floor | bar µs |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for row in self.rows:
            if row.timing is None:
                lines.append(f"| {row.work} | {row.by} | {row.state} | – | – | – | – | – |")
                continue
            floor = f"{row.floor:.1f} | {row.timing.median / row.floor:.2f}" if row.floor else "– | –"
            bar = f"{row.bar:.1f} {'met' if row.timing.median <= row.bar else 'MISSED'}" if row.bar else "–"
            lines.append(
                f"| {row.work} | {row.by} | {row.state} | {row.timing.median:.1f} | "
                f"{row.timing.low:.1f}–{row.timing.high:.1f} | {floor} | {bar} |"
            )
        return "\n".join(lines)

    def _machine(self) -> list[str]:
        return [f"{key}: {value}  " for key, value in machine(self.device).items()] + [
            f"copy bandwidth in this run: {self.bandwidth / 1e12:.3f} TB/s, read and written  "
        ]

    def save(self, path: Path) -> None:
        record = {
            "title": self.title,
            "machine": machine(self.device),
            "copy_bandwidth": self.bandwidth,
            "notes": self.notes,
            "rows": [asdict(row) for row in self.rows],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def begin(title: str, device: str | None) -> Report:
    """An empty report for a device (cuda if there is one and nothing else is asked), its copy bandwidth measured."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("bench: device must be one that PyTorch sees, got 'cuda', which this machine lacks")
    torch.manual_seed(0)
    return Report(title, device, copy_bandwidth(device))


def machine(device: str) -> dict[str, str]:
    """What the numbers depend on."""
    hardware = (
        torch.cuda.get_device_name()
        if device == "cuda"
        else f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
    )
    return {
        "hardware": hardware,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": _commit(),
    }


def _commit() -> str:
    """From git, or from $TEXTUREVLM_COMMIT where the sources were copied without it."""
    if commit := os.environ.get("TEXTUREVLM_COMMIT"):
        return commit
    try:
        folder = Path(__file__).parent
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=folder, capture_output=True, text=True, check=True
        )
        return found.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
