"""What a run has found, one JSON object a line, added to as it goes: a run that was stopped goes on where it was.

The first line holds the settings that every result depends on. A last line that a killed run left unfinished is cut
off; anything else that is broken is told with its line.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from texturevlm.journal import append, whole_lines

OWN, OTHER, NONE = "own", "other", "none"  # which question was asked: the sample's, another page's, none at all
FULL_IMAGE = "full image"  # the ceiling
IDEAL_RESIZE = "resize (ideal)"  # the whole image at one scale, in fractions of a token: the baseline
STAGES = ("check", "ops", "image", "types", "channels", "relevance", "allocate", "rebuilding", "pipeline", "evaluate")
Key = tuple[str, str, str, int, str]


@dataclass(frozen=True, order=True)
class Configuration:
    """A way to spend a budget: an allocator's name, a relevance's name, the budget, and which question was asked."""

    allocator: str
    relevance: str = ""
    budget: int = 0
    asked: str = OWN

    @property
    def method(self) -> str:
        """Without budget and question."""
        return f"{self.allocator}, {self.relevance}" if self.relevance else self.allocator


@dataclass(frozen=True)
class Row:
    """One sample under one configuration.

    scores: by name; what a sample does not allow is missing
    tokens: used; None where nothing was allocated
    ms:     of the choice itself, as a later question about the same page costs
    ms_page: of what is done once a page, in addition for its first question: reading its words
    mb:     memory at its peak, above what was held before
    read:   what the reader read, a text a place
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
        chosen = self.configuration
        return self.sample, chosen.allocator, chosen.relevance, chosen.budget, chosen.asked


@dataclass
class Results:
    """The rows of a run, by sample and configuration, and the file that they are kept in."""

    path: Path
    settings: dict[str, Any]
    rows: dict[Key, Row] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path, settings: dict[str, Any], *, fresh: bool = False) -> "Results":
        """Go on with what is there, if it was made with the same settings, or begin; `fresh` begins anyway."""
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
                    "(take another folder, or --fresh to begin anew)"
                )
            results.rows = {row.key: row for row in rows}
            if found is not None:
                return results
        path.unlink(missing_ok=True)
        append(path, [{"settings": settings}])
        return results

    @classmethod
    def load(cls, path: Path) -> "Results":
        """What a run left there."""
        settings, rows = _read(path)
        if settings is None:
            raise ValueError(f"Results.load: {path} must begin with its settings, got an empty file")
        return cls(path, settings, {row.key: row for row in rows})

    def has(self, sample: str, configuration: Configuration, metrics: Iterable[str]) -> bool:
        key = (sample, configuration.allocator, configuration.relevance, configuration.budget, configuration.asked)
        return key in self.rows and set(metrics) <= set(self.rows[key].metrics)

    def add(self, rows: list[Row]) -> None:
        append(self.path, (asdict(row) for row in rows))
        self.rows.update((row.key, row) for row in rows)


def _read(path: Path) -> tuple[dict[str, Any] | None, list[Row]]:
    """The first line and the others; no settings if the file is empty."""
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
            rows.append(Row(configuration=chosen, **parsed))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path}:{number}: must be a result of this program, got {line[:60]!r} ({error})"
            ) from None
    return settings, rows


def code_digest() -> str:
    """Of the sources that a result depends on: results of other code are not gone on with."""
    package = Path(__file__).parents[1]
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(package.rglob("*")):
        stage = path.relative_to(package).parts[0].removesuffix(".py")
        if path.suffix in (".py", ".cu", ".cuh") and stage in STAGES:
            digest.update(str(path.relative_to(package)).encode() + path.read_bytes())
    return digest.hexdigest()
