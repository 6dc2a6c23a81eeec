"""The file of a run with a model: ids and scores only, one short line per answer, appended as they come.

The first line holds the version, the settings that every answer depends on, and the questions (id and page). A line
with a condition comes before its first answer; a row then has the numbers of condition and question. An unfinished last
line of a killed run is cut off when the run goes on. From this file alone every table can be computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from texturevlm_lab.evaluate.conditions import Condition
from texturevlm_lab.evaluate.results import different
from texturevlm_lab.journal import append, cut_unfinished, read_journal

VERSION = 1
DIGITS = 4  # of a score and a likelihood in the file


@dataclass(frozen=True)
class AnswerRow:
    """The score of an answer, and what it took.

    score:      by the data set's metric, 0 to 1
    likelihood: mean log-probability per token of the true answer
    tokens:     visual tokens
    said:       whether there was an answer at all; "I cannot read it" is none
    ms, mb:     time to the first token and peak memory, if they were measured for this question
    """

    score: float
    likelihood: float
    tokens: int
    said: bool
    ms: float | None = None
    mb: float | None = None

    def to_json(self) -> list[Any]:
        costs = [] if self.ms is None else [round(self.ms, 2), None if self.mb is None else round(self.mb, 1)]
        return [_short(self.score), _short(self.likelihood), self.tokens, int(self.said), *costs]

    @classmethod
    def from_json(cls, score: float, likelihood: float, tokens: int, said: int, *costs: float | None) -> AnswerRow:
        return cls(score, likelihood, tokens, bool(said), *costs)


@dataclass
class AnswerRows:
    """The answers of a run, by condition and number of the question."""

    path: Path
    settings: dict[str, Any]
    questions: list[tuple[str, str]]  # id and page
    rows: dict[Condition, dict[int, AnswerRow]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> AnswerRows:
        """What a file holds, whatever its settings."""
        lines = read_journal(path, "a line of answers", _checked)
        head = lines[0] if lines else None
        if not isinstance(head, dict) or "answers" not in head:
            raise ValueError(f"eval: {path} must begin with the settings of a run with a model, got another file")
        if head["answers"] != VERSION:
            raise ValueError(f"eval: {path} must be of version {VERSION}, got version {head['answers']}")
        found = cls(path, head["settings"], [(str(one), str(page)) for one, page in head["questions"]])
        known: list[Condition] = []
        for number, line in enumerate(lines[1:], 2):
            try:
                if isinstance(line, dict):
                    known.append(Condition(*line["condition"]))
                    if known[-1] in found.rows:  # then nobody knows which condition a row's number means
                        raise ValueError("a second time: two runs wrote at once")
                    found.rows[known[-1]] = {}
                else:
                    condition, question, *rest = line
                    if not 0 <= question < len(found.questions):
                        raise ValueError(f"question {question} of {len(found.questions)}")
                    found.rows[known[condition]].setdefault(question, AnswerRow.from_json(*rest))
            except (ValueError, KeyError, TypeError, IndexError) as error:
                raise ValueError(f"{path}:{number}: must be a line of answers, got {line!r:.60} ({error})") from None
        return found

    @classmethod
    def open(
        cls, path: Path, settings: dict[str, Any], questions: Sequence[tuple[str, str]], *, fresh: bool = False
    ) -> AnswerRows:
        """Resume the file if it was made with the same settings and questions, or begin; `fresh` begins anyway."""
        if fresh:
            path.unlink(missing_ok=True)
        if not path.exists() or path.stat().st_size == 0 or not _has_head(path):
            path.unlink(missing_ok=True)
            append(path, [{"answers": VERSION, "settings": settings, "questions": list(questions)}])
            return cls(path, dict(settings), list(questions))
        found = cls.read(path)
        differing = different(found.settings, settings | {"commit": found.settings.get("commit")})  # code has a digest
        if found.questions != list(questions):
            differing.append(f"{len(found.questions)} other questions there, {len(questions)} now")
        if differing:
            raise ValueError(
                f"eval: {path} must hold answers of the same settings, got {', '.join(differing)} "
                "(use another folder, or --fresh to start over)"
            )
        cut_unfinished(path)
        return found

    def has(self, condition: Condition, question: int) -> bool:
        return question in self.rows.get(condition, {})

    def add(self, condition: Condition, answers: dict[int, AnswerRow]) -> None:
        """Write the answers to some questions, by their numbers, under one condition."""
        lines: list[dict[str, Any]] = []
        if condition not in self.rows:
            self.rows[condition] = {}
            lines.append({"condition": condition.to_json()})
        place = list(self.rows).index(condition)
        short = {number: row.to_json() for number, row in answers.items()}
        append(self.path, [*lines, *([place, number, *row] for number, row in short.items())])
        # As they will be read, so that a table is the same now and later.
        self.rows[condition].update({number: AnswerRow.from_json(*row) for number, row in short.items()})


def _checked(line: Any) -> Any:
    if not isinstance(line, (dict, list)):
        raise ValueError("neither an object nor a list")
    return line


def _has_head(path: Path) -> bool:
    """Whether the first line is whole: a run may have been killed while it wrote that."""
    with path.open("rb") as file:
        return file.readline().endswith(b"\n")


def _short(number: float) -> float:
    return round(number, DIGITS)
