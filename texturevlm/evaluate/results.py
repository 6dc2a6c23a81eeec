"""The results of a run, one JSON object per line, appended as it goes, so that a stopped run resumes where it was.

The first line holds the settings that every result depends on. An unfinished last line of a killed run is cut off; any
other broken line is an error that names it. `summarise` gives mean and paired difference to resize per configuration.
Decision rule: a method that beats `grid` and `resize` neither by more than 3 points nor by a factor of two in speed is
not worth its complexity.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

from texturevlm.evaluate.statistics import Interval, paired_difference
from texturevlm.journal import append, read_journal

OWN, OTHER, NONE = "own", "other", "none"  # the question asked: the sample's, another page's, none
FULL_IMAGE = "full image"  # the ceiling
IDEAL_RESIZE = "resize (ideal)"  # the whole image at one scale, fractions of a token allowed: the baseline
POINTS, SPEED = 0.03, 2.0  # by which a method must be better
BASELINES = (FULL_IMAGE, IDEAL_RESIZE, "resize", "grid")
# By weight: the first that was measured decides. PSNR is in dB, not in points.
SCORES = ("legibility", "fine_on_objects", "recall", "ssim_box", "ssim", "object_iou", "psnr_box", "psnr")
_BY_IMAGE = ("fine_on_objects", "object_area", "object_iou")  # the same for every row of an image
# What no result depends on. Everything else in the package is part of the digest, new packages included.
_UNRELATED = ("ask", "bench", "cli", "commands", "draw", "train", "video", "vlm")
_SOURCES = (".py", ".cu", ".cuh", ".npz", ".json")  # code and shipped weights


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
            differing = ", ".join(
                f"{name} {found.get(name)!r} there, {settings.get(name)!r} now"
                for name in sorted({*found, *settings})
                if found.get(name) != settings.get(name)
            )
            raise ValueError(
                f"evaluate: {path} must hold results of the same settings, got {differing} "
                "(use another folder, or --fresh to start over)"
            )
        rows = (row for row in known if isinstance(row, ResultRow))
        return cls(path, settings, {(row.sample, row.configuration): row for row in rows})

    def has(self, sample: str, configuration: Configuration, metrics: Iterable[str]) -> bool:
        row = self.rows.get((sample, configuration))
        return row is not None and set(metrics) <= set(row.metrics)

    def add(self, rows: list[ResultRow]) -> None:
        append(self.path, (asdict(row) for row in rows))
        self.rows.update(((row.sample, row.configuration), row) for row in rows)


def _parsed(line: dict[str, Any]) -> ResultRow | dict[str, Any]:
    """A row, or the settings."""
    if "settings" in line:
        return dict(line["settings"])
    lists = {name: tuple(line[name]) for name in ("metrics", "read")}
    return ResultRow(**{**line, **lists, "configuration": Configuration(**line["configuration"])})


def code_digest(package: Path = Path(__file__).parents[1]) -> str:
    """A digest of the sources and shipped weights that a result depends on: results of other code are not resumed."""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(package.rglob("*")):
        relative = path.relative_to(package)
        if path.suffix in _SOURCES and relative.parts[0].removesuffix(".py") not in _UNRELATED:
            digest.update(relative.as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


class Line(NamedTuple):
    """One configuration and score: its mean, the paired difference to resize, and its cost (medians)."""

    samples: int
    score: float
    difference: Interval | None
    tokens: float | None
    ms_first: float | None
    ms_later: float | None
    mb: float | None


Lines = Mapping[Configuration, Line]


def by_configuration(results: Results) -> dict[Configuration, list[ResultRow]]:
    """The rows of each configuration."""
    found: dict[Configuration, list[ResultRow]] = {}
    for row in results.rows.values():
        found.setdefault(row.configuration, []).append(row)
    return found


def summarise(results: Results) -> dict[str, dict[Configuration, Line]]:
    """Score → configuration → line; the score that decides comes first."""
    every = by_configuration(results)
    costs = {configuration: _costs(rows) for configuration, rows in every.items()}
    summary = {}
    for name in SCORES:
        known = {configuration: units(rows, name) for configuration, rows in every.items()}
        if any(known.values()):
            summary[name] = {
                configuration: Line(
                    len(own), mean(own.values()), _difference(configuration, known), *costs[configuration]
                )
                for configuration, own in known.items()
                if own
            }
    return summary


def units(rows: Iterable[ResultRow], name: str) -> dict[str, float]:
    """The units of resampling: a question's score, or an image's where all its rows share one."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if name in row.scores:
            found.setdefault(row.image if name in _BY_IMAGE else row.sample, []).append(row.scores[name])
    return {unit: mean(scores) for unit, scores in found.items()}


def _costs(rows: Iterable[ResultRow]) -> tuple[float | None, ...]:
    """Medians: tokens, milliseconds of a page's first and of a later question, megabytes."""
    columns = zip(*((row.tokens, None if row.ms is None else row.ms + row.ms_page, row.ms, row.mb) for row in rows))
    known = ([value for value in column if value is not None] for column in columns)
    return tuple(median(column) if column else None for column in known)


def _resizes(budget: int) -> tuple[Configuration, Configuration]:
    """The baselines: the ideal resize, and the one in whole tokens."""
    return Configuration(IDEAL_RESIZE, budget=budget), Configuration("resize", NONE, budget)


def _difference(configuration: Configuration, known: dict[Configuration, dict[str, float]]) -> Interval | None:
    """To the ideal resize at the same budget, or to resize in whole tokens where only that has such a score."""
    own = known[configuration]
    for rival in _resizes(configuration.budget):
        theirs = known.get(rival, {})
        shared = [unit for unit in own if unit in theirs]
        if shared:
            same = rival == configuration
            return None if same else paired_difference([own[u] for u in shared], [theirs[u] for u in shared])
    return None


class Verdict(NamedTuple):
    """A method over all budgets: its largest lead over the better of grid and resize, the budget at which it is
    largest, and one reason per budget at which it is worth its complexity."""

    lead: float
    budget: int
    worth: tuple[str, ...]


def decision_rule(lines: Lines) -> dict[str, Verdict]:
    """Every method against `grid` (same relevance) and `resize` at each budget, by the score that decides."""
    found: dict[str, Verdict] = {}
    for own, line in lines.items():
        grid = Configuration("grid", own.relevance, own.budget)
        rivals = [lines[rival] for rival in (*_resizes(own.budget), grid) if rival in lines]
        if own.allocator in BASELINES or own.asked != OWN or not rivals:
            continue
        lead = round(line.score - max(rival.score for rival in rivals), 9)  # 0.53 − 0.5 is 0.03, not more
        fastest = min((rival.ms_first for rival in rivals if rival.ms_first is not None), default=0.0)
        worth: tuple[str, ...] = ()
        if lead > POINTS:
            worth = (f"{100 * lead:+.1f} points at {own.budget}",)
        elif line.ms_first and SPEED * line.ms_first <= fastest and lead >= -POINTS:
            worth = (f"{fastest / line.ms_first:.1f} × faster at {own.budget}",)
        before = found.get(own.method, Verdict(lead, own.budget, ()))
        found[own.method] = Verdict(*max((lead, own.budget), before[:2]), (*before.worth, *worth))
    return found
