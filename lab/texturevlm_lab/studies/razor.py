"""The razor: every allocator against `auto`, from the scores per question that `studies.allocators` wrote.

    python -m texturevlm_lab.studies.razor results/allocators/docvqa-rows.csv … [--out DIR]

An allocator is worth having beside `auto` on a set of images, at a budget, if it wins by 3 points for sure, or is twice
as fast and for sure not 3 points worse. "For sure" is the bound of the 95% interval from resampling pages, by every OCR
engine; the interval of a few pages is too narrow, so they show nothing. Milliseconds, of a later question about a page,
are those of the table beside the rows (NAME.csv).
"""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from texturevlm_lab.evaluate.compare import POINTS, SPEED, deciding, difference, score_names, units
from texturevlm_lab.evaluate.markdown import format_interval, markdown_page, markdown_table
from texturevlm_lab.evaluate.results import FULL_IMAGE, IDEAL_RESIZE, OWN, Configuration, by_configuration
from texturevlm_lab.evaluate.rows import read_rows
from texturevlm_lab.evaluate.statistics import Interval
from texturevlm_lab.studies.study import ROW_FILES, table_main

RIVAL = "auto"
FEWEST = 10  # pages
WINS, CHEAPER, EQUAL, LOSES, OPEN = "**wins**", "**2 × faster**", "as good", "loses", "not shown"


class Compared(NamedTuple):
    """A method at a budget: its mean score and its difference to `auto` by each engine, and its time over auto's."""

    method: Configuration
    scores: tuple[float, ...]
    leads: tuple[Interval, ...]
    pages: int
    time: float | None

    @property
    def verdict(self) -> str:
        """As good: for sure not 3 points worse. Loses: for sure worse, by every engine."""
        if self.pages < FEWEST:
            return OPEN
        low, high = min(lead.low for lead in self.leads), max(lead.high for lead in self.leads)
        if low > POINTS:
            return WINS
        if low >= -POINTS:
            return CHEAPER if self.time is not None and SPEED * self.time <= 1 else EQUAL
        return LOSES if high < 0 else OPEN


class Set(NamedTuple):
    """What a file of rows holds: its counts, the scores that decide, and every method."""

    samples: int
    images: int
    scores: list[str]
    methods: list[Compared]


def read_set(path: Path) -> Set:
    """Every method of a file of rows, compared."""
    results = read_rows(path)
    every, times = by_configuration(results), _milliseconds(path)
    names = deciding(score_names(results))
    known = {name: {own: units(rows, name) for own, rows in every.items()} for name in names}
    images, found = len({row.image for row in results.rows.values()}), []
    for own in every:
        rival = Configuration(RIVAL, own.relevance, own.budget)
        if own.allocator in (RIVAL, FULL_IMAGE, IDEAL_RESIZE, "resize") or own.asked != OWN or rival not in every:
            continue
        leads = [difference(known[name][own], known[name][rival]) for name in names]
        scores = [mean(unit.score for unit in known[name][own].values()) for name in names]
        time = times[own] / times[rival] if own in times and rival in times else None
        found.append(Compared(own, tuple(scores), tuple(lead for lead in leads if lead is not None), images, time))
    if not found:
        raise ValueError(f"razor: ROWS must hold {RIVAL} and other allocators, got none in {path}")
    return Set(len({one for one, _ in results.rows}), images, names, found)


def _milliseconds(path: Path) -> dict[Configuration, float]:
    """The median time of a later question, from NAME.csv beside NAME-rows.csv; empty where there is none."""
    table = path.with_name(path.name.replace("-rows.csv", ".csv"))
    if not table.is_file():
        return {}
    with table.open(newline="", encoding="utf-8") as file:
        return {
            Configuration(line["allocator"], line["relevance"], int(line["budget"]), line["question"]): float(
                line["ms_later_question"]
            )
            for line in csv.DictReader(file)
            if line["ms_later_question"]
        }


def summary(sets: Mapping[str, Set]) -> str:
    """Allocators × sets and budgets: the verdicts."""
    verdicts: dict[str, dict[str, str]] = {}
    for name, own in sets.items():
        for one in own.methods:
            verdicts.setdefault(one.method.allocator, {})[f"{name} {one.method.budget}"] = one.verdict
    places = list(dict.fromkeys(where for found in verdicts.values() for where in found))
    rows = [(allocator, *(found.get(where, "–") for where in places)) for allocator, found in verdicts.items()]
    return markdown_table(("allocator", *places), rows)


def details(own: Set) -> str:
    """The table of one set, the best first at each budget."""
    heads = [head for name in own.scores for head in (name.rpartition("/")[2], f"difference to {RIVAL}")]
    rows = []
    for one in sorted(own.methods, key=lambda one: (one.method.budget, -mean(one.scores))):
        pairs = zip(one.scores, one.leads)
        cells = [cell for score, lead in pairs for cell in (f"{score:.3f}", format_interval(lead))]
        time = "–" if one.time is None else f"{one.time:.2f}"
        rows.append((str(one.method.budget), one.method.allocator, *cells, time, one.verdict))
    return markdown_table(("tokens", "allocator", *heads, f"time over {RIVAL}'s", "verdict"), rows)


def report(paths: Sequence[Path], made_by: str) -> str:
    sets = {path.name.removesuffix("-rows.csv"): read_set(path) for path in paths}
    parts = [
        part
        for name, own in sets.items()
        for part in (f"## {name}", f"{own.samples} samples on {own.images} images.", details(own))
    ]
    return markdown_page(
        f"# The razor: every allocator against `{RIVAL}`",
        made_by,
        f"{WINS}: the lower bound of its lead over `{RIVAL}` is above {POINTS:+.2f} by every OCR engine. "
        f"{EQUAL}: no lower bound is below {-POINTS:+.2f}. {CHEAPER}: as good, in half the time. "
        f"{LOSES}: every upper bound is below 0. {OPEN}: neither, or fewer than {FEWEST} images. The score is "
        "legibility, and on photographs the share of fine tokens on objects. Differences are paired, with 95% "
        f"intervals from resampling pages; `{RIVAL}` is `layers` for pages and wherever something is asked, `density` "
        "for photographs without a question.",
        summary(sets),
        *parts,
    )


main = table_main(__name__, __doc__, lambda options: report(options.rows, options.made_by), "razor.md", ROW_FILES)
