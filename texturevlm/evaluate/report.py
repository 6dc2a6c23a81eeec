"""What a run leaves for people: report.md, report.csv, curves.png and failures.png."""

import csv
import platform
from collections.abc import Sequence
from pathlib import Path

import torch

from texturevlm.evaluate.markdown import format_interval, markdown_page, markdown_table
from texturevlm.evaluate.pictures import draw_curves, draw_failures, worst
from texturevlm.evaluate.results import FULL_IMAGE, IDEAL_RESIZE, NONE, OTHER, OWN, Configuration, Results
from texturevlm.evaluate.run import Evaluation
from texturevlm.evaluate.statistics import pooled_ratio
from texturevlm.evaluate.summary import (
    BASELINES,
    POINTS,
    SPEED,
    Line,
    by_configuration,
    decision_rule,
    main_score,
    summarise,
    units,
)

_ASKED = {OWN: "its own", OTHER: "another page's", NONE: "none"}
_CONFIGURATION = ("allocator", "relevance", "question", "budget")
_CSV = (
    "score_name allocator relevance budget question count score difference low high tokens ms_first_question "
    "ms_later_question mb"
)


def publish(evaluation: Evaluation, out: Path, *, title: str, notes: Sequence[str] = ()) -> list[Path]:
    """Write tables and pictures; returns the files."""
    out.mkdir(parents=True, exist_ok=True)
    lines = summarise(evaluation.results)
    written = [out / "report.md", out / "report.csv"]
    written[0].write_text(markdown(evaluation.results, lines, title=title, notes=notes), encoding="utf-8")
    _write_csv(written[1], lines)
    name = main_score(lines)
    decisive = [line for line in lines if line.score_name == name]
    shown_name = name.replace("_", " ")
    if methods := _by_method(decisive):
        written.append(out / "curves.png")
        ceiling = next((line.score for line in decisive if line.configuration.allocator == FULL_IMAGE), None)
        draw_curves(methods, written[-1], title=title, score=shown_name, ceiling=ceiling)
    if (chosen := shown(decisive)) is not None:
        written.append(out / "failures.png")
        draw_failures(
            worst(evaluation.results, evaluation.samples, chosen, name),
            lambda sample: evaluation.allocation(sample, chosen),
            written[-1],
            title=f"{chosen.method}, {chosen.budget} tokens: its worst, by {shown_name} against resize",
            patch=evaluation.patch,
        )
    return written


def _by_method(lines: Sequence[Line]) -> dict[str, dict[int, float]]:
    """method → budget → score for a sample's own question; the ideal resize first."""
    found: dict[str, dict[int, float]] = {}
    for line in sorted(lines, key=lambda line: line.configuration.allocator != IDEAL_RESIZE):
        if line.configuration.budget and line.configuration.asked == OWN:
            found.setdefault(line.configuration.method, {})[line.configuration.budget] = line.score
    return found


def shown(lines: Sequence[Line]) -> Configuration | None:
    """Whose failures are drawn: the method with the best mean over budgets, at the middle budget."""
    own = [line for line in lines if line.configuration.allocator not in BASELINES and line.configuration.asked == OWN]
    if not own:
        return None
    scores = _by_method(own)
    best = max(scores, key=lambda method: sum(scores[method].values()) / len(scores[method]))
    candidates = [line.configuration for line in own if line.configuration.method == best]
    return sorted(candidates, key=lambda one: one.budget)[len(candidates) // 2]


def _write_csv(path: Path, lines: Sequence[Line]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(_CSV.split())
        for line in lines:
            own = line.configuration
            numbers = (line.score, *(line.difference or (None, None, None)), *line.costs)
            writer.writerow(
                [line.score_name, own.allocator, own.relevance, own.budget or None, own.asked, line.count]
                + [None if value is None else round(value, 5) for value in numbers]
            )


def markdown(results: Results, lines: Sequence[Line], *, title: str, notes: Sequence[str] = ()) -> str:
    settings = results.settings
    ocr = f"OCR: {settings['ocr']}. " if settings.get("ocr") else ""
    blocks = [
        f"# {title}",
        f"{ocr}A token is {settings['patch']}×{settings['patch']} pixels. Device {settings['device']}, "
        f"{platform.machine()}, torch {torch.__version__}, {torch.get_num_threads()} threads; code {settings['code']}.",
        "The difference is to the ideal resize at the same budget (fractions of a token allowed), paired, with a 95% "
        "bootstrap interval. Milliseconds are medians: of the first question about a page, with all work done once per "
        "page (reading its words), and of a later one. Memory is the peak above what was held before.",
        *notes,
    ]
    for name in dict.fromkeys(line.score_name for line in lines):
        own = [line for line in lines if line.score_name == name]
        blocks += [f"## {name.replace('_', ' ')}", *_overview(own), _detail(own)]
    return markdown_page(*blocks, *_lift(results), *_decision(lines))


def _overview(lines: Sequence[Line]) -> list[str]:
    """A table: one row per budget, one column per method; and the ceiling."""
    methods = _by_method([line for line in lines if line.configuration.allocator != FULL_IMAGE])
    rows = [
        (budget, *(f"{scores[budget]:.3f}" if budget in scores else "–" for scores in methods.values()))
        for budget in sorted({budget for scores in methods.values() for budget in scores})
    ]
    ceiling = [line for line in lines if line.configuration.allocator == FULL_IMAGE]
    full = [f"Full image: {line.score:.3f} ({line.count} questions)." for line in ceiling]
    return [markdown_table(("tokens", *methods), rows), *full]


def _detail(lines: Sequence[Line]) -> str:
    heads = [*_CONFIGURATION, "score", "difference to resize", "n", "tokens", "ms first", "ms later", "MB"]
    rows = []
    for line in lines:
        difference = "–" if line.difference is None else format_interval(line.difference)
        costs = map(_short, line.costs)
        rows.append((*_described(line.configuration), f"{line.score:.3f}", difference, line.count, *costs))
    return markdown_table(heads, rows)


def _described(own: Configuration) -> tuple[object, ...]:
    """The cells of _CONFIGURATION."""
    return own.allocator, own.relevance or "–", _ASKED[own.asked], own.budget or "–"


def _short(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _lift(results: Results) -> list[str]:
    """How much more often fine tokens fall on objects than area alone would give; pooled over images."""
    rows = []
    for own, found in by_configuration(results).items():
        if amounts := units(found, "fine_on_objects"):
            chances = units(found, "object_area")
            lift = pooled_ratio(list(amounts.values()), [chances[image] for image in amounts])
            rows.append((*_described(own), format_interval(lift, ".2f"), len(amounts)))
    if not rows:
        return []
    return [
        "## lift",
        "How often fine tokens (level under the median) fall on objects, over the objects' share of the area; pooled "
        "over images, with a 95% bootstrap interval. 1 is chance.",
        markdown_table((*_CONFIGURATION, "lift", "images"), rows),
    ]


def _decision(lines: Sequence[Line]) -> list[str]:
    verdicts = decision_rule(lines)
    if not verdicts:
        return ["No method beside the baselines was run."]
    rows = []
    for verdict in verdicts:
        reasons = ", ".join(verdict.worth) if verdict.worth else "**not worth its complexity**"
        rows.append((verdict.method, f"{verdict.best:+.3f} at {verdict.budget}", reasons))
    return [
        "## Decision rule",
        f"Worth its complexity: beats both `grid` and `resize` by more than {100 * POINTS:.0f} points of "
        f"{main_score(lines).replace('_', ' ')}, or is {SPEED:.0f} × faster at no loss of more than that, at some "
        "budget.",
        markdown_table(("method", "largest lead", "verdict"), rows),
    ]
