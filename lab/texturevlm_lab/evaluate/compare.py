"""Results compared: means, paired differences to resize with intervals from resampling pages, and the decision rule.

Decision rule: a method is worth its complexity if, at some budget, it beats `grid` and `resize` by more than 3 points
for sure, or is twice as fast and for sure not more than 3 points worse. "For sure" is the lower bound of the 95%
interval, for every OCR engine.
"""

from collections.abc import Iterable, Mapping
from statistics import mean, median
from typing import NamedTuple

from texturevlm_lab.evaluate.results import (
    FULL_IMAGE,
    IDEAL_RESIZE,
    NONE,
    OWN,
    Configuration,
    ResultRow,
    Results,
    by_configuration,
)
from texturevlm_lab.evaluate.statistics import Interval, paired_difference

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


class Unit(NamedTuple):
    """What is compared: the score of a question, or of an image where all its rows share one; and its page."""

    score: float
    page: str


Lines = Mapping[Configuration, Line]
Units = Mapping[str, Unit]


def score_names(results: Results) -> list[str]:
    """The scores that were measured, the one that decides first; a score of several OCR engines once per engine."""
    found = dict.fromkeys(name for row in results.rows.values() for name in row.scores)
    return [name for score in SCORES for name in found if name.partition("/")[0] == score]


def deciding(names: Iterable[str]) -> list[str]:
    """Of names in the order of `score_names`: the score that decides, by each engine."""
    listed = list(names)
    return [name for name in listed if name.partition("/")[0] == listed[0].partition("/")[0]]


def summarise(results: Results, stratum: tuple[str, str] | None = None) -> dict[str, dict[Configuration, Line]]:
    """Score → configuration → line, the score that decides first; stratum: of rows with this name and value alone."""
    every = {
        own: [row for row in rows if stratum is None or stratum in row.strata.items()]
        for own, rows in by_configuration(results).items()
    }
    costs = {own: _costs(rows) for own, rows in every.items()}
    summary = {}
    for name in score_names(results):
        known = {own: units(rows, name) for own, rows in every.items()}
        summary[name] = {
            own: Line(len(some), mean(unit.score for unit in some.values()), to_resize(own, known), *costs[own])
            for own, some in known.items()
            if some
        }
    return {name: lines for name, lines in summary.items() if lines}


def units(rows: Iterable[ResultRow], name: str) -> dict[str, Unit]:
    """The units of one configuration and score, by sample or by image."""
    scores: dict[str, list[float]] = {}
    pages: dict[str, str] = {}
    for row in rows:
        if name in row.scores:
            unit = row.image if name in _BY_IMAGE else row.sample
            scores.setdefault(unit, []).append(row.scores[name])
            pages[unit] = row.image
    return {unit: Unit(mean(own), pages[unit]) for unit, own in scores.items()}


def difference(ours: Units, theirs: Units) -> Interval | None:
    """The paired difference over what both have, pages resampled; None if they share nothing."""
    shared = [unit for unit in ours if unit in theirs]
    if not shared:
        return None
    pages = [ours[unit].page for unit in shared]
    return paired_difference([ours[u].score for u in shared], [theirs[u].score for u in shared], groups=pages)


def _costs(rows: Iterable[ResultRow]) -> tuple[float | None, ...]:
    """Medians: tokens, milliseconds of a page's first and of a later question, megabytes."""
    columns = [(row.tokens, None if row.ms is None else row.ms + row.ms_page, row.ms, row.mb) for row in rows]
    known = ([value for value in column if value is not None] for column in zip(*columns or [(None,) * 4]))
    return tuple(median(column) if column else None for column in known)


def _resizes(budget: int) -> tuple[Configuration, Configuration]:
    """The baselines: the ideal resize, and the one in whole tokens."""
    return Configuration(IDEAL_RESIZE, budget=budget), Configuration("resize", NONE, budget)


def to_resize(own: Configuration, known: Mapping[Configuration, Units]) -> Interval | None:
    """To the ideal resize at the same budget, or to resize in whole tokens where only that has such a score."""
    for rival in _resizes(own.budget):
        if (found := difference(known[own], known.get(rival, {}))) is not None:
            return None if rival == own else found
    return None


class Verdict(NamedTuple):
    """A method over all budgets: its surest lead over grid and resize (the least over rivals and OCR engines, at the
    budget where its lower bound is highest), that budget, and one reason per budget at which it is worth its
    complexity."""

    lead: Interval
    budget: int
    worth: tuple[str, ...]


def decision_rule(results: Results) -> dict[str, Verdict]:
    """Every method against `grid` (same relevance) and `resize` at each budget, by the score that decides."""
    every = by_configuration(results)
    names = deciding(score_names(results)) if results.rows else []
    known = {name: {own: units(rows, name) for own, rows in every.items()} for name in names}
    found: dict[str, Verdict] = {}
    for own in every:
        rivals = [*_resizes(own.budget), Configuration("grid", own.relevance, own.budget)]
        leads = [difference(known[name][own], known[name].get(rival, {})) for name in names for rival in rivals]
        sure = [lead for lead in leads if lead is not None]
        if own.allocator in BASELINES or own.asked != OWN or not sure:
            continue
        lead = min(sure, key=lambda lead: lead.low)
        ms = {rival: _costs(every[rival])[1] for rival in (own, *rivals) if rival in every}
        worth = _worth(lead.low, ms.pop(own), [time for time in ms.values() if time is not None], own.budget)
        before = found.get(own.method, Verdict(lead, own.budget, ()))
        surest = before if before.lead.low >= lead.low else Verdict(lead, own.budget, ())
        found[own.method] = Verdict(surest.lead, surest.budget, (*before.worth, *worth))
    return found


def _worth(low: float, ms: float | None, others: list[float], budget: int) -> tuple[str, ...]:
    """The reason, if there is one; low: the lower bound of the least lead."""
    low = round(low, 9)  # 0.53 − 0.5 is 0.03, not more
    if low > POINTS:
        return (f"at least {100 * low:+.1f} points at {budget}",)
    fastest = min(others, default=0.0)
    if ms and SPEED * ms <= fastest and low >= -POINTS:
        return (f"{fastest / ms:.1f} × faster at {budget}",)
    return ()
