"""The results of a run, one JSON object per line, appended as it goes, so that a stopped run resumes where it was.

The first line holds the settings that every result depends on. An unfinished last line of a killed run is cut off;
any other broken line is an error that names it.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from texturevlm.journal import append, whole_lines

OWN, OTHER, NONE = "own", "other", "none"  # the question asked: the sample's, another page's, none
FULL_IMAGE = "full image"  # the ceiling
IDEAL_RESIZE = "resize (ideal)"  # the whole image at one scale, fractions of a token allowed: the baseline
PACKAGE = Path(__file__).parents[1]
# What no result depends on. Everything else in the package is part of the digest, new rooms included.
_UNRELATED = ("ask", "bench", "cli", "commands", "doctor", "draw", "sheet", "train", "video", "vlm")
_SOURCES = (".py", ".cu", ".cuh", ".npz", ".json")  # code and shipped weights
Key = tuple[str, str, str, int, str]


@dataclass(frozen=True, order=True)
class Configuration:
    """How a budget is spent: names of allocator and relevance (scorer), the budget, and which question was asked."""

    allocator: str
    relevance: str = ""
    budget: int = 0
    asked: str = OWN

    @property
    def method(self) -> str:
        """Allocator and relevance."""
        return f"{self.allocator}, {self.relevance}" if self.relevance else self.allocator

    def key(self, sample: str) -> Key:
        """The key of a sample's row under this configuration."""
        return sample, self.allocator, self.relevance, self.budget, self.asked


@dataclass(frozen=True)
class ResultRow:
    """One sample under one configuration.

    scores:  by name; missing where the sample does not allow a metric
    tokens:  used; None where nothing was allocated
    ms:      of the choice itself, which is what a later question about the same page costs
    ms_page: of work done once per page, which its first question pays in addition: reading its words
    mb:      peak memory above what was held before
    read:    what OCR read, one text per box
    """

    sample: str
    image: str
    configuration: Configuration
    metrics: tuple[str, ...]
    scores: dict[str, float]
    tokens: int | None = None
    ms: float | None = None
    ms_page: float = 0.0
    mb: float | None = None
    read: tuple[str, ...] = ()

    @property
    def key(self) -> Key:
        return self.configuration.key(self.sample)


@dataclass
class Results:
    """The rows of a run, by sample and configuration, and the file that keeps them."""

    path: Path
    settings: dict[str, Any]
    rows: dict[Key, ResultRow] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path, settings: dict[str, Any], *, fresh: bool = False) -> "Results":
        """Resume the file if it was made with the same settings, or begin; `fresh` begins anyway."""
        results = cls(path, settings)
        if path.exists() and not fresh:
            found, rows = _read(path)
            if found is not None and found != settings:
                differing = ", ".join(
                    f"{name} {found.get(name)!r} there, {settings.get(name)!r} now"
                    for name in sorted({*found, *settings})
                    if found.get(name) != settings.get(name)
                )
                raise ValueError(
                    f"evaluate: {path} must hold results of the same settings, got {differing} "
                    "(use another folder, or --fresh to start over)"
                )
            results.rows = {row.key: row for row in rows}
            if found is not None:
                return results
        path.unlink(missing_ok=True)
        append(path, [{"settings": settings}])
        return results

    @classmethod
    def load(cls, path: Path) -> "Results":
        """The results of an earlier run."""
        settings, rows = _read(path)
        if settings is None:
            raise ValueError(f"Results.load: {path} must begin with its settings, got an empty file")
        return cls(path, settings, {row.key: row for row in rows})

    def has(self, sample: str, configuration: Configuration, metrics: Iterable[str]) -> bool:
        row = self.rows.get(configuration.key(sample))
        return row is not None and set(metrics) <= set(row.metrics)

    def add(self, rows: list[ResultRow]) -> None:
        append(self.path, (asdict(row) for row in rows))
        self.rows.update((row.key, row) for row in rows)


def _read(path: Path) -> tuple[dict[str, Any] | None, list[ResultRow]]:
    """The settings (None if the file is empty) and the rows."""
    settings: dict[str, Any] | None = None
    rows = []
    for number, line in enumerate(whole_lines(path), 1):
        try:
            parsed = json.loads(line)
            if number == 1:
                settings = dict(parsed["settings"])
                continue
            chosen = Configuration(**parsed.pop("configuration"))
            parsed["metrics"], parsed["read"] = tuple(parsed["metrics"]), tuple(parsed["read"])
            rows.append(ResultRow(configuration=chosen, **parsed))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path}:{number}: must be a result of this program, got {line[:60]!r} ({error})"
            ) from None
    return settings, rows


def code_digest(package: Path = PACKAGE) -> str:
    """A digest of the sources and shipped weights that a result depends on: results of other code are not resumed."""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(package.rglob("*")):
        relative = path.relative_to(package)
        if path.suffix in _SOURCES and relative.parts[0].removesuffix(".py") not in _UNRELATED:
            digest.update(relative.as_posix().encode() + path.read_bytes())
    return digest.hexdigest()
