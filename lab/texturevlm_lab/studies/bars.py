"""The bars on legibility, checked from the scores per question of `texturevlm eval`, for each OCR engine.

    python -m texturevlm_lab.studies.bars results/legibility-rows.csv [--out DIR]

The scout at 64 tokens reads at least .82, and .30 more than resize; at 96 tokens at most .02 less than resize at 273;
at 273 tokens the lower bound of its lead over resize is at least −.02, and −.03 without a question. Intervals are from
resampling pages. Without a question is `prior` or `none`, both are shown.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
from typing import NamedTuple

from texturevlm_lab.evaluate.compare import Units, difference, score_names, units
from texturevlm_lab.evaluate.markdown import format_interval, markdown_page, markdown_table
from texturevlm_lab.evaluate.results import (
    FULL_IMAGE,
    IDEAL_RESIZE,
    OTHER,
    OWN,
    Configuration,
    Results,
    by_configuration,
)
from texturevlm_lab.evaluate.rows import read_rows
from texturevlm_lab.studies.study import ROW_FILE, table_main

ALLOCATOR, SCOUT = "auto", "scout"
UNASKED = ("none", "prior")
LEGIBLE, LEAD, BEHIND, ASKED_LOSS, UNASKED_LOSS = 0.82, 0.30, -0.02, -0.02, -0.03


class Bar(NamedTuple):
    """What is wanted, what was found, and whether it holds."""

    wanted: str
    found: str
    holds: bool


def bars(scores: Mapping[Configuration, Units]) -> Iterator[Bar]:
    """The bars by one engine."""

    def lead(relevance: str, budget: int, rival: int) -> tuple[float, float, float]:
        own, theirs = Configuration(ALLOCATOR, relevance, budget), Configuration(IDEAL_RESIZE, budget=rival)
        for needed in (own, theirs):
            if needed not in scores:
                raise ValueError(f"bars: ROWS must hold {needed.method} at {needed.budget} tokens, got none")
        found = difference(scores[own], scores[theirs])
        if found is None:
            raise ValueError(f"bars: ROWS must hold the same questions for {own.method} and {theirs.method}")
        return found

    at_64 = lead(SCOUT, 64, 64)
    score = mean(unit.score for unit in scores[Configuration(ALLOCATOR, SCOUT, 64)].values())
    yield Bar(f"scout, 64 tokens: at least {LEGIBLE}", f"{score:.3f}", score >= LEGIBLE)
    yield Bar(f"scout − resize, 64 tokens: at least {LEAD:+.2f}", format_interval(at_64), at_64[0] >= LEAD)
    at_96 = lead(SCOUT, 96, 273)
    wanted = f"scout at 96 − resize at 273 tokens: at least {BEHIND:+.2f}"
    yield Bar(wanted, format_interval(at_96), at_96[0] >= BEHIND)
    for relevance, loss in ((SCOUT, ASKED_LOSS), *((name, UNASKED_LOSS) for name in UNASKED)):
        at_273 = lead(relevance, 273, 273)
        wanted = f"{relevance} − resize, 273 tokens: lower bound at least {loss:+.2f}"
        yield Bar(wanted, format_interval(at_273), at_273[1] >= loss)


def pairs(budgets: Sequence[int]) -> Iterator[tuple[str, Configuration, Configuration]]:
    """Further comparisons: their name, and the two configurations."""
    full = Configuration(FULL_IMAGE)
    for budget in budgets:
        scout, other = (Configuration(ALLOCATOR, SCOUT, budget, asked) for asked in (OWN, OTHER))
        none, prior = (Configuration(ALLOCATOR, relevance, budget) for relevance in UNASKED)
        yield f"prior − none, {budget} tokens", prior, none
        yield f"scout − prior, {budget} tokens", scout, prior
        yield f"scout − scout with another page's question, {budget} tokens", scout, other
        yield f"scout at {budget} tokens − resize at 273", scout, Configuration(IDEAL_RESIZE, budget=273)
        yield f"scout at {budget} tokens − full image", scout, full
        yield f"resize at {budget} tokens − full image", Configuration(IDEAL_RESIZE, budget=budget), full


def report(results: Results, made_by: str) -> str:
    every = by_configuration(results)
    by_engine: list[list[tuple[str, ...]]] = []
    further: dict[str, dict[str, str]] = {}
    for score in score_names(results):
        kind, _, engine = score.partition("/")
        if kind == "legibility":
            known = {own: units(rows, score) for own, rows in every.items()}
            found = bars(known)
            by_engine.append([(bar.wanted, engine, bar.found, "yes" if bar.holds else "**no**") for bar in found])
            for what, ours, theirs in pairs(sorted({own.budget for own in every if own.budget})):
                if lead := difference(known.get(ours, {}), known.get(theirs, {})):
                    further.setdefault(what, {})[engine] = format_interval(lead)
    questions, pages = {sample for sample, _ in results.rows}, {row.image for row in results.rows.values()}
    return markdown_page(
        "# The bars on legibility",
        made_by,
        f"{len(questions)} questions on {len(pages)} pages; allocator `{ALLOCATOR}`; intervals from resampling pages.",
        markdown_table(("bar", "OCR engine", "found", "holds"), [row for bar in zip(*by_engine) for row in bar]),
        *_further(further),
    )


def _further(found: Mapping[str, Mapping[str, str]]) -> list[str]:
    if not found:
        return []
    engines = list(next(iter(found.values())))
    rows = [(what, *(own.get(engine, "–") for engine in engines)) for what, own in found.items()]
    return ["Further differences, from the same scores:", markdown_table(("difference", *engines), rows)]


def made(options: argparse.Namespace) -> str:
    (path,) = options.rows
    return report(read_rows(path), options.made_by)


main = table_main(__name__, __doc__, made, "bars.md", ROW_FILE)
