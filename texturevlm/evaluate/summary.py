"""Summary of a run: mean and paired difference to resize for every configuration, and the decision rule.

Decision rule: a method that beats `grid` and `resize` neither by more than 3 points nor by a factor of two in speed is
not worth its complexity.
"""

from collections.abc import Iterable, Mapping
from statistics import mean, median
from typing import NamedTuple

from texturevlm.evaluate.results import FULL_IMAGE, IDEAL_RESIZE, NONE, OWN, Configuration, ResultRow, Results
from texturevlm.evaluate.statistics import Interval, paired_difference

POINTS, SPEED = 0.03, 2.0  # by which a method must be better
BASELINES = (FULL_IMAGE, IDEAL_RESIZE, "resize", "grid")
# By weight: the first that was measured decides. PSNR is in dB, not in points.
SCORES = ("legibility", "fine_on_objects", "recall", "ssim_box", "ssim", "object_iou", "psnr_box", "psnr")
_BY_IMAGE = ("fine_on_objects", "object_area", "object_iou")  # the same for every row of an image


class Line(NamedTuple):
    """One configuration and score: its mean, the paired difference to resize, and its cost (medians)."""

    samples: int
    score: float
    difference: Interval | None
    tokens: float | None
    ms_first: float | None
    ms_later: float | None
    mb: float | None


Lines = Mapping[Configuration, Line]


def by_configuration(results: Results) -> dict[Configuration, list[ResultRow]]:
    """The rows of each configuration."""
    found: dict[Configuration, list[ResultRow]] = {}
    for row in results.rows.values():
        found.setdefault(row.configuration, []).append(row)
    return found


def summarise(results: Results) -> dict[str, dict[Configuration, Line]]:
    """Score → configuration → line; the score that decides comes first."""
    every = by_configuration(results)
    costs = {configuration: _costs(rows) for configuration, rows in every.items()}
    summary = {}
    for name in SCORES:
        known = {configuration: units(rows, name) for configuration, rows in every.items()}
        if any(known.values()):
            summary[name] = {
                configuration: Line(
                    len(own), mean(own.values()), _difference(configuration, known), *costs[configuration]
                )
                for configuration, own in known.items()
                if own
            }
    return summary


def units(rows: Iterable[ResultRow], name: str) -> dict[str, float]:
    """The units of resampling: a question's score, or an image's where all its rows share one."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if name in row.scores:
            found.setdefault(row.image if name in _BY_IMAGE else row.sample, []).append(row.scores[name])
    return {unit: mean(scores) for unit, scores in found.items()}


def _costs(rows: Iterable[ResultRow]) -> tuple[float | None, ...]:
    """Medians: tokens, milliseconds of a page's first and of a later question, megabytes."""
    columns = zip(*((row.tokens, None if row.ms is None else row.ms + row.ms_page, row.ms, row.mb) for row in rows))
    known = ([value for value in column if value is not None] for column in columns)
    return tuple(median(column) if column else None for column in known)


def _resizes(budget: int) -> tuple[Configuration, Configuration]:
    """The baselines: the ideal resize, and the one in whole tokens."""
    return Configuration(IDEAL_RESIZE, budget=budget), Configuration("resize", NONE, budget)


def _difference(configuration: Configuration, known: dict[Configuration, dict[str, float]]) -> Interval | None:
    """To the ideal resize at the same budget, or to resize in whole tokens where only that has such a score."""
    own = known[configuration]
    for rival in _resizes(configuration.budget):
        theirs = known.get(rival, {})
        shared = [unit for unit in own if unit in theirs]
        if shared:
            same = rival == configuration
            return None if same else paired_difference([own[u] for u in shared], [theirs[u] for u in shared])
    return None


class Verdict(NamedTuple):
    """A method over all budgets: its largest lead over the better of grid and resize, the budget at which it is
    largest, and one reason per budget at which it is worth its complexity."""

    lead: float
    budget: int
    worth: tuple[str, ...]


def decision_rule(lines: Lines) -> dict[str, Verdict]:
    """Every method against `grid` (same relevance) and `resize` at each budget, by the score that decides."""
    found: dict[str, Verdict] = {}
    for own, line in lines.items():
        grid = Configuration("grid", own.relevance, own.budget)
        rivals = [lines[rival] for rival in (*_resizes(own.budget), grid) if rival in lines]
        if own.allocator in BASELINES or own.asked != OWN or not rivals:
            continue
        lead = round(line.score - max(rival.score for rival in rivals), 9)  # 0.53 − 0.5 is 0.03, not more
        fastest = min((rival.ms_first for rival in rivals if rival.ms_first is not None), default=0.0)
        worth: tuple[str, ...] = ()
        if lead > POINTS:
            worth = (f"{100 * lead:+.1f} points at {own.budget}",)
        elif line.ms_first and SPEED * line.ms_first <= fastest and lead >= -POINTS:
            worth = (f"{fastest / line.ms_first:.1f} × faster at {own.budget}",)
        before = found.get(own.method, Verdict(lead, own.budget, ()))
        found[own.method] = Verdict(*max((lead, own.budget), before[:2]), (*before.worth, *worth))
    return found
