"""What reductions inside a model do to its answers, at equal tokens, from the rows of `texturevlm eval --reduce`.

    texturevlm eval sroie DATA --model reader --out RUN --conditions chosen --relevance scout \\
        --allocators auto,resize --budgets 64 --reduce all --metrics anls --limit 60 --batch 30 --untimed --captured
    python -m texturevlm_lab.studies.reduce_accuracy RUN/answers.jsonl --out results

A reduced condition chooses twice the budget, and the model reduces it to the budget: twice as many tokens chosen by a
question, or the page resized to twice as many. It is compared, question by question, with the same choice of as many
tokens as stay, and with random tokens. DATA is the file of answers, or a folder of such files. Files with the same
settings and questions are parts of one run (`--allocators auto` in one process, `--allocators resize` in another).
"""

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from texturevlm_lab.bench.published import LEGEND, PUBLISHED
from texturevlm_lab.evaluate.answer_rows import AnswerRow, AnswerRows
from texturevlm_lab.evaluate.conditions import CHOSEN, Condition
from texturevlm_lab.evaluate.markdown import format_interval, markdown_page, markdown_table
from texturevlm_lab.evaluate.statistics import paired_difference
from texturevlm_lab.studies.study import provenance, study_main

CONTROL = "random"
SETTINGS = ("data set", "metric", "split", "model", "weights", "dtype", "device", "transformers", "code", "commit")
HEADS = ("then", "questions", "score", "− not reduced", "− random", "log-likelihood", "− not reduced", "published")
Rows = dict[int, AnswerRow]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """One record per run."""
    path: Path = options.data
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise FileNotFoundError(f"DATA must be a file of answers, or a folder of them, got {path}, which has none")
    return {"runs": [run_of(one, options.limit) for one in joined(AnswerRows.read(file) for file in files)]}


def joined(parts: Iterable[AnswerRows]) -> list[AnswerRows]:
    """One per settings and questions. An answer that two parts have is that of the first."""
    found: list[AnswerRows] = []
    for part in parts:
        same = [one for one in found if (one.settings, one.questions) == (part.settings, part.questions)]
        if not same:
            found.append(part)
        for condition, rows in part.rows.items():
            for one in same:
                one.rows[condition] = rows | one.rows.get(condition, {})
    return found


def run_of(answers: AnswerRows, limit: int | None = None) -> dict[str, Any]:
    """The settings of a run, and one record per choice of tokens and budget."""
    every = {one: rows for one, rows in answers.rows.items() if rows and one.kind == CHOSEN}
    if not any(one.reduce for one in every):
        raise ValueError(f"DATA must be the answers of a run with --reduce, got {answers.path}, which has none")
    if limit is not None:
        every = {one: {n: row for n, row in rows.items() if n < limit} for one, rows in every.items()}
    pages = [page for _, page in answers.questions]
    choices = sorted({replace(one, reduce="") for one in every}, key=lambda one: (one.budget, one.allocator))
    plain = {one.budget: every.get(one, {}) for one in choices if one.allocator == "resize"}
    return {
        "settings": {name: answers.settings.get(name) for name in SETTINGS},
        "choices": [choice_record(one, every, plain.get(one.budget, {}), pages) for one in choices],
    }


def choice_record(
    choice: Condition, every: dict[Condition, Rows], resized: Rows, pages: Sequence[str]
) -> dict[str, Any]:
    """A choice of tokens: alone, and with each reduction of twice as many."""
    own, control = every.get(choice, {}), every.get(replace(choice, reduce=CONTROL), {})
    methods = [one for one in every if one.reduce and replace(one, reduce="") == choice]
    return {
        "choice": choice.method,
        "budget": choice.budget,
        "alone": row_record("", own, {"resize": resized} if choice.allocator != "resize" else {}, pages),
        "reduced": [row_record(one.reduce, every[one], {"own": own, "control": control}, pages) for one in methods],
    }


def row_record(method: str, rows: Rows, others: dict[str, Rows], pages: Sequence[str]) -> dict[str, Any]:
    """Means of a condition, and its paired differences to others."""
    found = {
        "method": method,
        "questions": len(rows),
        "score": mean(row.score for row in rows.values()) if rows else None,
        "likelihood": mean(row.likelihood for row in rows.values()) if rows else None,
        "tokens": mean(row.tokens for row in rows.values()) if rows else None,
    }
    for name, some in others.items():
        for value in ("score", "likelihood"):
            found[f"{value} − {name}"] = gained(rows, some, value, pages)
    return found


def gained(rows: Rows, others: Rows, value: str, pages: Sequence[str]) -> list[float] | None:
    """The mean difference over the questions that both have, and its 95% interval over pages."""
    shared = [number for number in rows if number in others]
    if not shared or rows is others:
        return None
    ours, theirs = ([getattr(some[number], value) for number in shared] for some in (rows, others))
    return list(paired_difference(ours, theirs, groups=[pages[number] for number in shared]))


def report(found: dict[str, Any]) -> str:
    parts = [part for run in found["runs"] for part in _run_parts(run)]
    return markdown_page(
        "# Answers of a model whose tokens are reduced",
        "A reduced row chooses twice its budget, and the model reduces that to the budget. Differences are paired by "
        "question, with 95% intervals over pages: to the same choice of as many tokens as stay, and to random ones of "
        "twice as many. Log-likelihood is that of the true answer, per token. With dyrate the prompt is read in twice "
        "the budget, and tokens leave while the answer is decoded: its likelihood is that of twice the budget.",
        *parts,
        LEGEND,
        provenance(found),
    )


def _run_parts(run: dict[str, Any]) -> list[str]:
    about = ", ".join(f"{name} {value}" for name, value in run["settings"].items() if value)
    parts = [f"## {run['settings']['data set']}", f"{about}."]
    for one in run["choices"]:
        alone = one["alone"]
        parts += [
            f"### {one['choice']}, {one['budget']} tokens",
            markdown_table(HEADS, [_cells(alone, "–"), *(_cells(row, row["method"]) for row in one["reduced"])]),
        ]
        if (gain := alone.get("score − resize")) is not None:
            words = f"{format_interval(alone['likelihood − resize'])} in log-likelihood"
            parts.append(f"Not reduced, it is {format_interval(gain)} to resize at the same budget, {words}.")
        parts.append(_beyond(one["reduced"]))
    return parts


def _beyond(rows: Sequence[dict[str, Any]]) -> str:
    """Which methods differ from not reducing, and from random tokens, beyond the interval."""
    said = [f"Of {len(rows)} methods {len(rows) / 20:.0f} would lie beyond a 95% interval by chance."]
    for name, words in (("own", "not reducing"), ("control", "random tokens")):
        for value, measure_words in (("score", ""), ("likelihood", " by log-likelihood")):
            known = [(row["method"], row[f"{value} − {name}"]) for row in rows if row[f"{value} − {name}"]]
            better = [method for method, (_, low, _) in known if low > 0]
            worse = [method for method, (_, _, high) in known if high < 0]
            listed = f"better {', '.join(better) or 'none'}; worse {', '.join(worse) or 'none'}"
            said.append(f"Beyond the interval of {words}{measure_words}: {listed}.")
    return "  \n".join(said)


def _cells(row: dict[str, Any], name: str) -> list[str]:
    def gain(key: str) -> str:
        return "–" if row.get(key) is None else format_interval(row[key])

    def number(key: str) -> str:
        return "–" if row[key] is None else f"{row[key]:.3f}"

    return [
        name,
        str(row["questions"]),
        number("score"),
        gain("score − own"),
        gain("score − control"),
        number("likelihood"),
        gain("likelihood − own"),
        PUBLISHED.get(row["method"], "–"),
    ]


main = study_main(__name__, __doc__, measure, report)
