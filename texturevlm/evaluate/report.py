"""What a run leaves for people: report.md, report.csv, curves.png and failures.png."""

import csv
import platform
from collections.abc import Mapping, Sequence
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
    Lines,
    by_configuration,
    decision_rule,
    summarise,
    units,
)

_FULL = Configuration(FULL_IMAGE)
_ASKED = {OWN: "its own", OTHER: "another page's", NONE: "none"}
_CONFIGURATION = ("allocator", "relevance", "question", "budget")
_CSV = "score_name allocator relevance budget question count score difference low high tokens"


def publish(evaluation: Evaluation, out: Path, *, title: str, notes: Sequence[str] = ()) -> list[Path]:
    """Write tables and pictures; returns the files."""
    out.mkdir(parents=True, exist_ok=True)
    summary = summarise(evaluation.results)
    written = [out / "report.md", out / "report.csv"]
    written[0].write_text(markdown(evaluation.results, summary, title=title, notes=notes), encoding="utf-8")
    _write_csv(written[1], summary)
    name, lines = next(iter(summary.items()), ("", {}))
    if methods := _by_method(lines):
        written.append(out / "curves.png")
        ceiling = lines[_FULL].score if _FULL in lines else None
        draw_curves(methods, written[-1], title=title, score=_spelled(name), ceiling=ceiling)
    if (chosen := shown(lines)) is not None:
        written.append(out / "failures.png")
        draw_failures(
            worst(evaluation.results, evaluation.samples, chosen, name),
            name,
            lambda sample: evaluation.allocation(sample, chosen),
            written[-1],
            title=f"{chosen.method}, {chosen.budget} tokens: its worst, by {_spelled(name)} against resize",
            patch=evaluation.patch,
        )
    return written


def _spelled(name: str) -> str:
    return name.replace("_", " ")


def _by_method(lines: Lines) -> dict[str, dict[int, float]]:
    """method → budget → score for a sample's own question; the ideal resize first."""
    found: dict[str, dict[int, float]] = {}
    for own in sorted(lines, key=lambda own: own.allocator != IDEAL_RESIZE):
        if own.budget and own.asked == OWN:
            found.setdefault(own.method, {})[own.budget] = lines[own].score
    return found


def shown(lines: Lines) -> Configuration | None:
    """Whose failures are drawn: the method with the best mean over budgets, at the middle budget."""
    candidates = [own for own in lines if own.allocator not in BASELINES and own.asked == OWN]
    if not candidates:
        return None
    scores = _by_method({own: lines[own] for own in candidates})
    best = max(scores, key=lambda method: sum(scores[method].values()) / len(scores[method]))
    budgets = sorted((own for own in candidates if own.method == best), key=lambda own: own.budget)
    return budgets[len(budgets) // 2]


def _write_csv(path: Path, summary: Mapping[str, Lines]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*_CSV.split(), "ms_first_question", "ms_later_question", "mb"])
        for name, lines in summary.items():
            for own, line in lines.items():
                described = (name, own.allocator, own.relevance, own.budget or None, own.asked, line.samples)
                numbers = (line.score, *(line.difference or (None, None, None)), *line[3:])
                writer.writerow([*described, *(None if one is None else round(one, 5) for one in numbers)])


def markdown(results: Results, summary: Mapping[str, Lines], *, title: str, notes: Sequence[str] = ()) -> str:
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
    for name, lines in summary.items():
        blocks += [f"## {_spelled(name)}", *_overview(lines), _detail(lines)]
    return markdown_page(*blocks, *_lift(results), *_decision(*next(iter(summary.items()), ("", {}))))


def _overview(lines: Lines) -> list[str]:
    """A table: one row per budget, one column per method; and the ceiling."""
    methods = _by_method(lines)
    rows = [
        (budget, *(f"{scores[budget]:.3f}" if budget in scores else "–" for scores in methods.values()))
        for budget in sorted({budget for scores in methods.values() for budget in scores})
    ]
    full = [f"Full image: {lines[one].score:.3f} ({lines[one].samples} questions)." for one in (_FULL,) if one in lines]
    return [markdown_table(("tokens", *methods), rows), *full]


def _detail(lines: Lines) -> str:
    heads = [*_CONFIGURATION, "score", "difference to resize", "n", "tokens", "ms first", "ms later", "MB"]
    rows = []
    for own, line in lines.items():
        difference = "–" if line.difference is None else format_interval(line.difference)
        rows.append((*_described(own), f"{line.score:.3f}", difference, line.samples, *map(_short, line[3:])))
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


def _decision(name: str, lines: Lines) -> list[str]:
    rows = [
        (method, f"{one.lead:+.3f} at {one.budget}", ", ".join(one.worth) or "**not worth its complexity**")
        for method, one in decision_rule(lines).items()
    ]
    if not rows:
        return ["No method beside the baselines was run."]
    return [
        "## Decision rule",
        f"Worth its complexity: beats both `grid` and `resize` by more than {100 * POINTS:.0f} points of "
        f"{_spelled(name)}, or is {SPEED:.0f} × faster at no loss of more than that, at some budget.",
        markdown_table(("method", "largest lead", "verdict"), rows),
    ]
