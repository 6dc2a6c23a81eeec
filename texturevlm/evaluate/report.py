"""Tables of a run, for people (Markdown) and for programs (CSV): score, difference to resize, tokens, time, memory."""

import csv
import platform
from collections.abc import Sequence
from pathlib import Path

import torch

from texturevlm.evaluate.results import FULL_IMAGE, NONE, OTHER, OWN, Configuration, Results, Row
from texturevlm.evaluate.statistics import Interval, pooled_ratio
from texturevlm.evaluate.summary import POINTS, SPEED, Line, main_score, razor, summarise, units

ASKED = {OWN: "its own", OTHER: "another page's", NONE: "none"}
COLUMNS = ("score_name", "allocator", "relevance", "budget", "question", "count", "score", "difference", "low", "high")
COSTS = ("tokens", "ms_first_question", "ms_later_question", "mb")


def write_tables(results: Results, out: Path, *, title: str, notes: Sequence[str] = ()) -> list[Line]:
    """report.md and report.csv; returns what they hold."""
    lines = summarise(results)
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.md").write_text(markdown(results, lines, title=title, notes=notes), encoding="utf-8")
    with (out / "report.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS + COSTS)
        for line in lines:
            own = line.configuration
            difference = line.difference or (None, None, None)
            writer.writerow(
                [line.score_name, own.allocator, own.relevance, own.budget or None, own.asked, line.count]
                + [_rounded(value) for value in (line.score, *difference)]
                + [_rounded(value) for value in (line.tokens, line.ms_first, line.ms_later, line.mb)]
            )
    return lines


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 5)


def markdown(results: Results, lines: Sequence[Line], *, title: str, notes: Sequence[str] = ()) -> str:
    settings = results.settings
    reader = f"Reader: {settings['reader']}. " if settings.get("reader") else ""
    text = [
        f"# {title}",
        "",
        f"{reader}A token is {settings['patch']}×{settings['patch']} pixels. Device {settings['device']}, "
        f"{platform.machine()}, torch {torch.__version__}, {torch.get_num_threads()} threads; code {settings['code']}.",
        "",
        "The difference is to the ideal resize at the same budget (fractions of a token allowed), paired, with a 95% "
        "bootstrap interval. Milliseconds are medians: of the first question about a page, with all that is done once "
        "a page (reading its words), and of a later one. Memory is the peak above what was held before.",
        *(f"\n{note}" for note in notes),
    ]
    for name in dict.fromkeys(line.score_name for line in lines):
        own = [line for line in lines if line.score_name == name]
        text += ["", f"## {name.replace('_', ' ')}", "", *_overview(own), "", *_detail(own)]
    text += _lift(results)
    text += ["", *_razor_table(lines), ""]
    return "\n".join(text)


def _overview(lines: Sequence[Line]) -> list[str]:
    """Budgets down, methods across."""
    asked = [line for line in lines if line.configuration.asked == OWN and line.configuration.budget]
    methods = list(dict.fromkeys(line.configuration.method for line in asked))
    cells = {(line.configuration.budget, line.configuration.method): line.score for line in asked}
    ceiling = [line for line in lines if line.configuration.allocator == FULL_IMAGE]
    table = ["| tokens | " + " | ".join(methods) + " |", "|---|" + "---|" * len(methods)]
    for budget in sorted({budget for budget, _ in cells}):
        scores = [cells.get((budget, method)) for method in methods]
        table.append(f"| {budget} | " + " | ".join("–" if s is None else f"{s:.3f}" for s in scores) + " |")
    return table + [f"\nFull image: {line.score:.3f} ({line.count} questions)." for line in ceiling]


def _detail(lines: Sequence[Line]) -> list[str]:
    head = ["allocator", "relevance", "question", "budget", "score", "difference to resize", "n"]
    head += ["tokens", "ms first", "ms later", "MB"]
    table = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for line in lines:
        own = line.configuration
        difference = "–" if line.difference is None else interval(line.difference)
        numbers = [_short(value) for value in (line.tokens, line.ms_first, line.ms_later, line.mb)]
        table.append(
            f"| {own.allocator} | {own.relevance or '–'} | {ASKED[own.asked]} | {own.budget or '–'} | "
            f"{line.score:.3f} | {difference} | {line.count} | " + " | ".join(numbers) + " |"
        )
    return table


def interval(value: Interval) -> str:
    return f"{value.mean:+.3f} ({value.low:+.3f} to {value.high:+.3f})"


def _short(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _lift(results: Results) -> list[str]:
    """How much more often fine tokens fall on objects than area alone would give; pooled over images."""
    together: dict[Configuration, list[Row]] = {}
    for row in results.rows.values():
        if "object_area" in row.scores:
            together.setdefault(row.configuration, []).append(row)
    if not together:
        return []
    table = [
        "",
        "## lift",
        "",
        "How often fine tokens (level under the median) fall on objects, over the objects' share of the area; pooled "
        "over images, with a 95% bootstrap interval. 1 is chance.",
        "",
        "| allocator | relevance | question | budget | lift | images |",
        "|---|---|---|---|---|---|",
    ]
    for own, rows in together.items():
        amounts, chances = units(rows, "fine_on_objects"), units(rows, "object_area")
        lift = pooled_ratio(list(amounts.values()), [chances[image] for image in amounts])
        table.append(
            f"| {own.allocator} | {own.relevance or '–'} | {ASKED[own.asked]} | {own.budget} | "
            f"{lift.mean:.2f} ({lift.low:.2f} to {lift.high:.2f}) | {len(amounts)} |"
        )
    return table


def _razor_table(lines: Sequence[Line]) -> list[str]:
    verdicts = razor(lines)
    table = [
        "## The razor",
        "",
        f"Worth its complexity: beats both `grid` and `resize` by more than {100 * POINTS:.0f} points of "
        f"{main_score(lines).replace('_', ' ')}, or is {SPEED:.0f} × faster at no loss of more than that, at some "
        "budget.",
        "",
        "| method | largest lead | verdict |",
        "|---|---|---|",
    ]
    for verdict in verdicts:
        said = ", ".join(verdict.worth) if verdict.worth else "**not worth its complexity**"
        table.append(f"| {verdict.method} | {verdict.best:+.3f} at {verdict.budget} | {said} |")
    return table if verdicts else ["No method beside the baselines was run."]
