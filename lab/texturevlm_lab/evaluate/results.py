"""The results of a run, one JSON object per line, appended as it goes, so that a stopped run resumes where it was.

The first line holds the settings that every result depends on. An unfinished last line of a killed run is cut off; any
other broken line is an error that names it. Comparisons of results are in compare.py.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from texturevlm_lab.journal import append, cut_unfinished, read_journal

OWN, OTHER, NONE = "own", "other", "none"  # the question asked: the sample's, another page's, none
FULL_IMAGE = "full image"  # the ceiling
IDEAL_RESIZE = "resize (ideal)"  # the whole image at one scale, fractions of a token allowed: the baseline


@dataclass(frozen=True, order=True)
class Configuration:
    """How a budget is spent: names of allocator and relevance (scorer), the budget, and which question was asked."""

    allocator: str
    relevance: str = ""
    budget: int = 0
    asked: str = OWN

    @property
    def method(self) -> str:
        """The allocator and the relevance in words, without the budget."""
        return f"{self.allocator}, {self.relevance}" if self.relevance else self.allocator


@dataclass(frozen=True)
class ResultRow:
    """One sample under one configuration.

    scores:  by name; missing where the sample does not allow a metric
    tokens:  used; None where nothing was allocated
    ms:      of the choice itself, which is what a later question about the same page costs
    ms_page: of work done once per page, which its first question pays in addition: reading its words
    mb:      peak memory above what was held before
    read:    what each OCR engine read, one text per box
    strata:  of the sample, by name (`strata_of`)
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
    read: dict[str, tuple[str, ...]] = field(default_factory=dict)
    strata: dict[str, str] = field(default_factory=dict)


@dataclass
class Results:
    """The rows of a run, by sample and configuration, and the file that keeps them."""

    path: Path
    settings: dict[str, Any]
    rows: dict[tuple[str, Configuration], ResultRow] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path, settings: dict[str, Any], *, fresh: bool = False) -> "Results":
        """Resume the file if it was made with the same settings, or begin; `fresh` begins anyway."""
        known = [] if fresh else read_journal(path, "a result of this program", _parsed)
        if not known:
            path.unlink(missing_ok=True)
            append(path, [{"settings": settings}])
            return cls(path, settings)
        found = known[0] if isinstance(known[0], dict) else {}
        if found != settings:
            differing = ", ".join(different(found, settings))
            raise ValueError(
                f"evaluate: {path} must hold results of the same settings, got {differing} "
                "(use another folder, or --fresh to start over)"
            )
        cut_unfinished(path)
        rows = (row for row in known if isinstance(row, ResultRow))
        return cls(path, settings, {(row.sample, row.configuration): row for row in rows})

    def has(self, sample: str, configuration: Configuration, metrics: Iterable[str]) -> bool:
        row = self.rows.get((sample, configuration))
        return row is not None and set(metrics) <= set(row.metrics)

    def add(self, rows: list[ResultRow]) -> None:
        append(self.path, (asdict(row) for row in rows))
        self.rows.update(((row.sample, row.configuration), row) for row in rows)


def different(there: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """The settings in which a file and a run differ, in words."""
    names = sorted(name for name in {*there, *now} if there.get(name) != now.get(name))
    return [f"{name} {there.get(name)!r} there, {now.get(name)!r} now" for name in names]


def _parsed(line: dict[str, Any]) -> ResultRow | dict[str, Any]:
    """A row, or the settings."""
    if "settings" in line:
        return dict(line["settings"])
    read = {engine: tuple(texts) for engine, texts in line["read"].items()}
    known = {"metrics": tuple(line["metrics"]), "read": read, "configuration": Configuration(**line["configuration"])}
    return ResultRow(**{**line, **known})


def by_configuration(results: Results) -> dict[Configuration, list[ResultRow]]:
    """The rows of each configuration."""
    found: dict[Configuration, list[ResultRow]] = {}
    for row in results.rows.values():
        found.setdefault(row.configuration, []).append(row)
    return found
