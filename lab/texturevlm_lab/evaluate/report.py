"""What a run leaves for people: report.md, report.csv, rows.csv, curves.png and failures.png."""

import csv
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch

from texturevlm_lab.evaluate import compare
from texturevlm_lab.evaluate import results as runs
from texturevlm_lab.evaluate.compare import Lines, Verdict, deciding, decision_rule, summarise, units
from texturevlm_lab.evaluate.figures import draw_curves, draw_failures, worst
from texturevlm_lab.evaluate.markdown import format_interval, markdown_page, markdown_table
from texturevlm_lab.evaluate.provenance import EVALUATION, Origin, commit
from texturevlm_lab.evaluate.results import Configuration, Results, by_configuration
from texturevlm_lab.evaluate.rows import write_rows
from texturevlm_lab.evaluate.run import Evaluation
from texturevlm_lab.evaluate.statistics import pooled_ratio

_FULL = Configuration(runs.FULL_IMAGE)
_ASKED = {runs.OWN: "its own", runs.OTHER: "another page's", runs.NONE: "none"}
_CONFIGURATION = ("allocator", "relevance", "question", "budget")
_CSV = "score_name allocator relevance budget question count score difference low high tokens"
_WORDS_OCR = (
    "`words` chooses by RapidOCR's detector and recogniser on the whole page; the score by rapidocr is its recogniser "
    "on the crop alone."
)


def publish(evaluation: Evaluation, out: Path, *, title: str, notes: Sequence[str] = ()) -> list[Path]:
    """Write tables and pictures; returns the files."""
    out.mkdir(parents=True, exist_ok=True)
    summary = summarise(evaluation.results)
    written = [out / "report.md", out / "report.csv", out / "rows.csv"]
    written[0].write_text(markdown(evaluation.results, summary, title=title, notes=notes), encoding="utf-8")
    _write_csv(written[1], summary)
    write_rows(written[2], evaluation.results)
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
    """legibility/rapidocr → legibility by rapidocr."""
    return name.replace("_", " ").replace("/", " by ")


def _by_method(lines: Lines) -> dict[str, dict[int, float]]:
    """method → budget → score for a sample's own question; the ideal resize first."""
    found: dict[str, dict[int, float]] = {}
    for own in sorted(lines, key=lambda own: own.allocator != runs.IDEAL_RESIZE):
        if own.budget and own.asked == runs.OWN:
            found.setdefault(own.method, {})[own.budget] = lines[own].score
    return found


def shown(lines: Lines) -> Configuration | None:
    """Whose failures are drawn: the method with the best mean over budgets, at the middle budget."""
    candidates = [own for own in lines if own.allocator not in compare.BASELINES and own.asked == runs.OWN]
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
    settings, patch = results.settings, results.settings["patch"]
    engines = "; ".join(f"{name}: {full}" for name, full in settings["ocr"].items())
    asked_words = any(own.relevance in ("auto", "words") for own in by_configuration(results))
    blocks = [
        f"# {title}",
        f"{Origin(EVALUATION, settings['code'], commit())}; device {settings['device']}, {platform.machine()}, "
        f"torch {torch.__version__}, {torch.get_num_threads()} threads. A token is {patch}×{patch} pixels.",
        *([f"OCR engines: {engines}. " + (_WORDS_OCR if asked_words else "")] if engines else []),
        "The difference is to the ideal resize at the same budget (fractions of a token allowed), paired, with a 95% "
        "interval from resampling pages. Milliseconds are medians: of the first question about a page, with all work "
        "done once per page (reading its words), and of a later one. Memory is the peak above what was held before.",
        *notes,
    ]
    for names in by_score(summary):
        lines = [summary[name] for name in names]
        blocks += [f"## {_spelled(names[0].partition('/')[0])}", *_overview(names, lines), detail_table(names, lines)]
    return markdown_page(*blocks, *_strata(results), *_lift(results), *_decision(results, summary))


def by_score(names: Iterable[str]) -> list[list[str]]:
    """The names of one score by several OCR engines together."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(name.partition("/")[0], []).append(name)
    return list(found.values())


def _engine(name: str, alone: str) -> str:
    """The OCR engine of a score's name; alone: if it has none."""
    return name.partition("/")[2] or alone


def _overview(names: Sequence[str], tables: Sequence[Lines]) -> list[str]:
    """A table: one row per budget, one column per method, one number per engine; and the ceiling."""
    methods = [_by_method(lines) for lines in tables]
    rows = []
    for budget in sorted({budget for scores in methods[0].values() for budget in scores}):
        cells = [[scores.get(method, {}).get(budget) for scores in methods] for method in methods[0]]
        rows.append((budget, *(" / ".join("–" if one is None else f"{one:.3f}" for one in cell) for cell in cells)))
    each = " / ".join(_engine(name, "") for name in names)
    ceiling = " / ".join(f"{lines[_FULL].score:.3f}" for lines in tables if _FULL in lines)
    full = [f"Full image: {ceiling} ({tables[0][_FULL].samples} questions)."] if ceiling else []
    return [*([f"Each cell: {each}."] if len(names) > 1 else []), markdown_table(("tokens", *methods[0]), rows), *full]


def _score_heads(names: Sequence[str]) -> list[str]:
    return [head for name in names for head in (_engine(name, "score"), "difference to resize")]


def _score_cells(lines: Sequence[Lines], own: Configuration) -> list[str]:
    """Score and difference of each engine."""
    cells = []
    for line in (one.get(own) for one in lines):
        cells.append("–" if line is None else f"{line.score:.3f}")
        cells.append("–" if line is None or line.difference is None else format_interval(line.difference))
    return cells


def detail_table(names: Sequence[str], lines: Sequence[Lines]) -> str:
    """A table: one row per configuration; score and difference by each engine, and the costs."""
    heads = [*_CONFIGURATION, *_score_heads(names), "n", "tokens", "ms first", "ms later", "MB"]
    rows = []
    for own, line in lines[0].items():
        rows.append((*_described(own), *_score_cells(lines, own), line.samples, *map(_short, line[3:])))
    return markdown_table(heads, rows)


def _strata(results: Results) -> list[str]:
    """The score that decides in each stratum: for each budget the methods and the ideal resize."""
    strata = sorted({pair for row in results.rows.values() for pair in row.strata.items()})
    heads: Sequence[str] = ()
    rows = []
    for key, value in strata:
        summary = summarise(results, (key, value))
        names = deciding(summary) if summary else []
        lines = [summary[name] for name in names]
        for own, line in lines[0].items() if lines else ():
            if own.allocator not in ("resize", "grid") and own.asked == runs.OWN:
                rows.append((f"{key} {value}", *_described(own), *_score_cells(lines, own), line.samples))
                heads = ("stratum", *_CONFIGURATION, *_score_heads(names), "n")
    if not rows:
        return []
    return ["## strata", "Length: letters and digits of the shortest accepted answer.", markdown_table(heads, rows)]


def _described(own: Configuration) -> tuple[object, ...]:
    """The first cells of a row, under the heads of _CONFIGURATION."""
    return own.allocator, own.relevance or "–", _ASKED[own.asked], own.budget or "–"


def _short(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _lift(results: Results) -> list[str]:
    """How much more often fine tokens fall on objects than area alone would give; pooled over images."""
    rows = []
    for own, found in by_configuration(results).items():
        if amounts := units(found, "fine_on_objects"):
            chances = units(found, "object_area")
            lift = pooled_ratio([one.score for one in amounts.values()], [chances[image].score for image in amounts])
            rows.append((*_described(own), format_interval(lift, ".2f"), len(amounts)))
    if not rows:
        return []
    return [
        "## lift",
        "How often fine tokens (level under the median) fall on objects, over the objects' share of the area; pooled "
        "over images, with a 95% bootstrap interval. 1 is chance.",
        markdown_table((*_CONFIGURATION, "lift", "images"), rows),
    ]


def _unworthy(verdict: Verdict) -> str:
    """What is said of a method that is not surely worth it: with few pages an interval decides nothing."""
    wide = round(verdict.lead.high, 9) > compare.POINTS
    return "not shown: the interval is too wide" if wide else "**not worth its complexity**"


def _decision(results: Results, summary: Mapping[str, Lines]) -> list[str]:
    rows = [
        (method, f"{format_interval(one.lead)} at {one.budget}", ", ".join(one.worth) or _unworthy(one))
        for method, one in decision_rule(results).items()
    ]
    if not rows:
        return ["No method beside the baselines was run."]
    points, names = f"{100 * compare.POINTS:.0f} points", " and ".join(map(_spelled, deciding(summary)))
    return [
        "## Decision rule",
        f"Worth its complexity at some budget: the lower bound of its lead over `grid` and over `resize` is above "
        f"{points} of {names}; or it is {compare.SPEED:.0f} × faster and that bound is not below −{points}. The lead "
        "shown is the least over rivals and OCR engines.",
        markdown_table(("method", "surest lead", "verdict"), rows),
    ]
