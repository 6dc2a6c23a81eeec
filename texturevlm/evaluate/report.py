"""What a run leaves for people: report.md, report.csv, curves.png and failures.png."""

import csv
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from texturevlm.draw import footprints, to_pil
from texturevlm.evaluate import results as runs
from texturevlm.evaluate.data import Sample
from texturevlm.evaluate.legibility import MOST_BOXES, crop_boxes
from texturevlm.evaluate.markdown import format_interval, markdown_page, markdown_table
from texturevlm.evaluate.results import (
    Configuration,
    Lines,
    ResultRow,
    Results,
    by_configuration,
    decision_rule,
    summarise,
    units,
)
from texturevlm.evaluate.run import Evaluation
from texturevlm.evaluate.statistics import pooled_ratio
from texturevlm.rebuilding import rebuild, resized
from texturevlm.types import Allocation, Texture

# Colour-blind safe (Okabe and Ito), without the yellow, which is too faint on white. The first method is the baseline.
_COLOURS = ("black", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
_LONGEST = 100  # letters of a caption
Failure = tuple[Sample, ResultRow, ResultRow | None]  # the rows of the method and of the ideal resize
_FULL = Configuration(runs.FULL_IMAGE)
_ASKED = {runs.OWN: "its own", runs.OTHER: "another page's", runs.NONE: "none"}
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
    for own in sorted(lines, key=lambda own: own.allocator != runs.IDEAL_RESIZE):
        if own.budget and own.asked == runs.OWN:
            found.setdefault(own.method, {})[own.budget] = lines[own].score
    return found


def shown(lines: Lines) -> Configuration | None:
    """Whose failures are drawn: the method with the best mean over budgets, at the middle budget."""
    candidates = [own for own in lines if own.allocator not in runs.BASELINES and own.asked == runs.OWN]
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
        f"Worth its complexity: beats both `grid` and `resize` by more than {100 * runs.POINTS:.0f} points of "
        f"{_spelled(name)}, or is {runs.SPEED:.0f} × faster at no loss of more than that, at some budget.",
        markdown_table(("method", "largest lead", "verdict"), rows),
    ]


def _figure(name: str, width: float, height: float) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError(f"{name}: needs the extra eval: pip install 'texturevlm[eval]'") from None
    return Figure(figsize=(width, height), dpi=100, layout="constrained")


def draw_curves(
    methods: Mapping[str, Mapping[int, float]], path: Path, *, title: str, score: str, ceiling: float | None = None
) -> None:
    """Write a picture of method → budget → score: budgets on a logarithmic axis, the ceiling as a dashed line."""
    budgets = sorted({budget for points in methods.values() for budget in points})
    if not budgets:
        raise ValueError("draw_curves: methods must have points, got none")
    figure = _figure("draw_curves", 15, 8.6)
    axes = figure.subplots()
    for number, (name, points) in enumerate(methods.items()):
        lap, index = divmod(number, len(_COLOURS))
        x, y = zip(*sorted(points.items()))
        axes.plot(x, y, label=name, color=_COLOURS[index], marker="o", linestyle=("-", "--", ":")[lap % 3])
    if ceiling is not None:
        axes.axhline(ceiling, color="grey", linestyle=(0, (4, 4)), label="full image")
    axes.set_xscale("log")
    axes.set_xticks(budgets, [str(budget) for budget in budgets])
    axes.set_xticks([], minor=True)
    axes.set(title=title, xlabel="tokens", ylabel=score)
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    figure.savefig(path)


def worst(
    results: Results, samples: Sequence[Sample], configuration: Configuration, name: str, count: int = 6
) -> list[Failure]:
    """Where the method falls furthest behind resize, then where its score is lowest. One per page."""
    found: list[tuple[float, float, Failure]] = []
    for sample in samples:
        row = results.rows.get((sample.id, configuration))
        if row is not None and name in row.scores:
            rival = results.rows.get((sample.id, Configuration(runs.IDEAL_RESIZE, budget=configuration.budget)))
            score = row.scores[name]
            behind = score - rival.scores.get(name, score) if rival is not None else 0.0
            found.append((behind, score, (sample, row, rival)))
    pages: dict[Path, Failure] = {}
    for _, _, failure in sorted(found, key=lambda one: one[:2]):
        pages.setdefault(failure[0].image, failure)
    return list(pages.values())[:count]


def draw_failures(
    failures: Sequence[Failure],
    name: str,
    allocate: Callable[[Sample], Allocation],
    path: Path,
    *,
    title: str,
    patch: int,
) -> None:
    """Write a picture with one band per failure: the page with footprints and the answer's boxes, beside it the crops
    and the texts.

    name:     of the score
    allocate: computes the tokens of a sample again, since a run keeps no allocations
    """
    figure = _figure("draw_failures", 14, 0.6 + 5 * len(failures))
    figure.suptitle(title, parse_math=False)
    for (sample, *rows), band in zip(failures, figure.subfigures(len(failures), 1, squeeze=False)[:, 0]):
        scores = [f"{row.scores[name]:.2f}" for row in rows if row is not None and name in row.scores]
        wanted = f"wanted: {' / '.join(sample.answers[:3])}" if sample.answers else sample.name
        head = (sample.question or "no question", wanted, f"score: {', resize '.join(scores)}")
        band.suptitle("\n".join(map(_cut, head)), fontsize="medium", parse_math=False)
        read = [" | ".join(text.strip() for text in row.read) if row is not None else "" for row in rows]
        _draw_failure(band, sample, read, allocate(sample), patch)
    figure.savefig(path)


def _draw_failure(band: Any, sample: Sample, read: Sequence[str], allocation: Allocation, patch: int) -> None:
    texture = Texture.open(sample.image, device=allocation.centre.device)
    axes = band.subplot_mosaic([["page", part] for part in range(3)], width_ratios=(1, 2))
    axes["page"].imshow(footprints(to_pil(texture.levels[0]), allocation))
    for x0, y0, x1, y1 in sample.boxes[:MOST_BOXES]:
        axes["page"].plot((x0, x1, x1, x0, x0), (y0, y0, y1, y1, y0), color="#c82828")
    for box in crop_boxes(sample.boxes[:1], sample.size):
        crops = {
            f"delivered; read: {read[0]}": rebuild(texture, allocation, box=box),
            f"resize; read: {read[1]}": resized(texture, budget=allocation.budget, patch=patch, box=box),
            "the image": texture.levels[0][..., box[1] : box[3], box[0] : box[2]],
        }
        for part, (caption, picture) in enumerate(crops.items()):
            axes[part].imshow(to_pil(picture))
            axes[part].set_title(_cut(caption), fontsize="small", parse_math=False)
    for axis in axes.values():
        axis.set_axis_off()


def _cut(text: str) -> str:
    """On one line, no longer than fits."""
    flat = " ".join(text.split())
    return flat if len(flat) <= _LONGEST else flat[: _LONGEST - 1] + "…"
