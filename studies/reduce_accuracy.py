"""What reductions inside a model do to its answers, at equal tokens, from the rows of `texturevlm eval --reduce`.

    texturevlm eval sroie DATA --model reader --out RUN --conditions full,own,chosen --relevance none,scout \\
        --budgets 96,273 --reduce random,stride,tome,visionzip,divprune,fastv
    python -m studies.reduce_accuracy RUN/answers.jsonl --out results

A reduced condition chooses twice the budget, and the model reduces it to the budget. It is compared, question by
question, with the same choice of as many tokens as stay, and with plain resize. DATA is the file of answers.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from statistics import mean, median
from typing import Any

from studies.study import provenance, study_main
from texturevlm.bench.published import LEGEND, PUBLISHED
from texturevlm.evaluate.answer_rows import AnswerRow, AnswerRows
from texturevlm.evaluate.conditions import CHOSEN, FULL, OWN, Condition
from texturevlm.evaluate.markdown import format_interval, markdown_page, markdown_table
from texturevlm.evaluate.statistics import paired_difference

HEADS = ("tokens by", "then", "budget", "questions", "score", "− not reduced", "− resize", "tokens", "first token ms")
Rows = dict[int, AnswerRow]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """One record per condition of the run that is full, resized or chosen."""
    answers = AnswerRows.read(options.data)
    every = {one: rows for one, rows in answers.rows.items() if rows and one.kind in (FULL, OWN, CHOSEN)}
    if not any(one.reduce for one in every):
        raise ValueError(f"DATA must be the answers of a run with --reduce, got {options.data}, which has none")
    if options.limit is not None:
        every = {one: {n: row for n, row in rows.items() if n < options.limit} for one, rows in every.items()}
    pages = [page for _, page in answers.questions]
    order = sorted(every, key=lambda one: (one.budget, one.kind != FULL, one.kind != OWN, one.allocator, one.relevance))
    names = ("data set", "metric", "split", "model", "weights", "dtype", "device", "transformers")
    settings = {name: answers.settings.get(name) for name in names}
    return {"settings": settings, "conditions": [record(one, every, pages) for one in order]}


def record(condition: Condition, every: dict[Condition, Rows], pages: Sequence[str]) -> dict[str, Any]:
    """Means of a condition, and what it gains over the same choice unreduced, and over resize."""
    rows = every[condition]
    timed = [row.ms for row in rows.values() if row.ms is not None]
    resized = every.get(Condition(OWN, budget=condition.budget)) or every.get(
        Condition(CHOSEN, "resize", "none", condition.budget), {}
    )
    plain = every.get(replace(condition, reduce=""), {}) if condition.reduce else {}
    return {
        "kind": condition.kind,
        "choice": replace(condition, reduce="").method,
        "reduce": condition.reduce,
        "budget": condition.budget,
        "questions": len(rows),
        "score": mean(row.score for row in rows.values()),
        "to_plain": gained(rows, plain, pages),
        "to_resize": gained(rows, resized if condition.kind == CHOSEN else {}, pages),
        "tokens": mean(row.tokens for row in rows.values()),
        "ms": median(timed) if timed else None,
    }


def gained(rows: Rows, others: Rows, pages: Sequence[str]) -> list[float] | None:
    """The mean difference of scores over the questions that both have, and its 95% interval over pages."""
    shared = [number for number in rows if number in others]
    if not shared or rows is others:
        return None
    ours, theirs = ([some[number].score for number in shared] for some in (rows, others))
    return list(paired_difference(ours, theirs, groups=[pages[number] for number in shared]))


def report(found: dict[str, Any]) -> str:
    settings = found["settings"]
    about = ", ".join(f"{name} {value}" for name, value in settings.items() if value)
    named = [one["reduce"] for one in found["conditions"] if one["reduce"] in PUBLISHED]
    published = [[name, PUBLISHED[name]] for name in dict.fromkeys(named)]
    return markdown_page(
        "# Answers of a model whose tokens are reduced",
        f"{about}. A reduced row chooses twice its budget, and the model reduces that to the budget. Differences are "
        "paired by question, with 95% intervals over pages. With dyrate the prompt is read in twice the budget: tokens "
        "leave while the answer is decoded.",
        markdown_table(HEADS, [_cells(one) for one in found["conditions"]]),
        "## Published",
        LEGEND,
        markdown_table(("method", "figures"), published),
        provenance(found),
    )


def _cells(one: dict[str, Any]) -> list[str]:
    return [
        one["choice"],
        one["reduce"] or "–",
        str(one["budget"] or "all"),
        str(one["questions"]),
        f"{one['score']:.3f}",
        *("–" if one[name] is None else format_interval(one[name]) for name in ("to_plain", "to_resize")),
        f"{one['tokens']:.0f}",
        "–" if one["ms"] is None else f"{one['ms']:.1f}",
    ]


main = study_main(__name__, __doc__, measure, report)
