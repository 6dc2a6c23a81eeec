"""Scores per question as a compact file, so that anybody can compute a table again: ids and scores, no text.

One line per question: its id, its page and its strata, then one column per configuration and score, whose head is
`allocator|relevance|budget|question|score`.
"""

import csv
from pathlib import Path

from texturevlm_lab.evaluate.results import Configuration, ResultRow, Results

_KEYS = ("sample", "page")
_STRATUM = "stratum: "
_DIGITS = 4


def write_rows(path: Path, results: Results) -> None:
    """Write the scores of all rows, to four digits."""
    strata = list(dict.fromkeys(name for row in results.rows.values() for name in row.strata))
    columns: dict[str, None] = {}
    lines: dict[str, dict[str, str]] = {}
    for row in results.rows.values():
        line = lines.setdefault(row.sample, {"sample": row.sample, "page": row.image})
        line |= {_STRATUM + name: value for name, value in row.strata.items()}
        for score, value in row.scores.items():
            head = _head(row.configuration, score)
            columns[head] = None
            line[head] = f"{value:.{_DIGITS}f}".rstrip("0").rstrip(".")
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*_KEYS, *(_STRATUM + name for name in strata), *columns], lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines.values())


def read_rows(path: Path) -> Results:
    """The results that such a file holds, without costs and readings."""
    results = Results(path, {})
    with path.open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            strata = {head.removeprefix(_STRATUM): line[head] for head in line if head.startswith(_STRATUM)}
            scores: dict[Configuration, dict[str, float]] = {}
            for head, value in line.items():
                if "|" in head and value:
                    configuration, score = _parsed_head(head)
                    scores.setdefault(configuration, {})[score] = float(value)
            for own, found in scores.items():
                row = ResultRow(line["sample"], line["page"], own, tuple(found), found, strata=strata)
                results.rows[row.sample, own] = row
    return results


def _head(own: Configuration, score: str) -> str:
    return "|".join((own.allocator, own.relevance, str(own.budget), own.asked, score))


def _parsed_head(head: str) -> tuple[Configuration, str]:
    allocator, relevance, budget, asked, score = head.split("|")
    return Configuration(allocator, relevance, int(budget), asked), score
