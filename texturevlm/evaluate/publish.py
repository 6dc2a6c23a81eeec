"""What a run leaves for people in its folder: report.md, report.csv, curves.png and failures.png."""

from collections.abc import Sequence
from pathlib import Path

from texturevlm.evaluate.curves import curves
from texturevlm.evaluate.failures import draw_failures, worst
from texturevlm.evaluate.report import write_tables
from texturevlm.evaluate.results import FULL_IMAGE, IDEAL_RESIZE, OWN, Configuration
from texturevlm.evaluate.run import Evaluation
from texturevlm.evaluate.summary import BASELINES, Line, main_score

FAILURES = 6


def publish(evaluation: Evaluation, out: Path, *, title: str, notes: Sequence[str] = ()) -> list[Path]:
    """Write tables and pictures; returns the files."""
    lines = write_tables(evaluation.results, out, title=title, notes=notes)
    written = [out / "report.md", out / "report.csv"]
    decisive = [line for line in lines if line.score_name == main_score(lines)]
    name = main_score(lines)
    methods = _by_method(decisive)
    if methods:
        ceiling = next((line.score for line in decisive if line.configuration.allocator == FULL_IMAGE), None)
        path = out / "curves.png"
        curves(methods, title=title, score=name.replace("_", " "), ceiling=ceiling).save(path)
        written.append(path)
    chosen = shown(decisive)
    if chosen is not None:
        failures = worst(evaluation.results, evaluation.samples, chosen, name, FAILURES)
        heading = f"{chosen.method}, {chosen.budget} tokens: its worst, by {name.replace('_', ' ')} against resize"
        picture = draw_failures(
            failures,
            lambda sample: evaluation.runner.allocation(sample, chosen),
            title=heading,
            patch=evaluation.runner.patch,
        )
        picture.save(out / "failures.png")
        written.append(out / "failures.png")
    return written


def _by_method(lines: Sequence[Line]) -> dict[str, dict[int, float]]:
    """method → budget → score of a sample's own question; the ideal resize first."""
    found: dict[str, dict[int, float]] = {}
    for line in sorted(lines, key=lambda line: line.configuration.allocator != IDEAL_RESIZE):
        if line.configuration.budget and line.configuration.asked == OWN:
            found.setdefault(line.configuration.method, {})[line.configuration.budget] = line.score
    return found


def shown(lines: Sequence[Line]) -> Configuration | None:
    """Whose failures are drawn: the best method's by its mean over the budgets, at the middle one of them."""
    own = [line for line in lines if line.configuration.allocator not in BASELINES and line.configuration.asked == OWN]
    if not own:
        return None
    scores: dict[str, list[float]] = {}
    for line in own:
        scores.setdefault(line.configuration.method, []).append(line.score)
    best = max(scores, key=lambda method: sum(scores[method]) / len(scores[method]))
    candidates = sorted((line.configuration for line in own if line.configuration.method == best), key=_budget)
    return candidates[len(candidates) // 2]


def _budget(configuration: Configuration) -> int:
    return configuration.budget
