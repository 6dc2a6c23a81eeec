"""Summary of a run: mean and paired difference to resize for every configuration, and the decision rule.

Decision rule: a method that beats `grid` and `resize` neither by more than 3 points nor by a factor of two in speed is
not worth its complexity.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, median

from texturevlm.evaluate.results import FULL_IMAGE, IDEAL_RESIZE, NONE, OWN, Configuration, ResultRow, Results
from texturevlm.evaluate.statistics import Interval, paired_difference

POINTS, SPEED = 0.03, 2.0  # by which a method must be better
BASELINES = (FULL_IMAGE, IDEAL_RESIZE, "resize", "grid")
# By weight: the first that was measured decides. PSNR is in dB, not in points.
SCORES = ("legibility", "fine_on_objects", "recall", "ssim_box", "ssim", "object_iou", "psnr_box", "psnr")
_BY_IMAGE = ("fine_on_objects", "object_area", "object_iou")  # the same for every row of an image


@dataclass(frozen=True)
class Line:
    """One configuration and score: its mean, the paired difference to resize, and its cost (medians)."""

    score_name: str
    configuration: Configuration
    count: int
    score: float
    difference: Interval | None
    tokens: float | None
    ms_first: float | None
    ms_later: float | None
    mb: float | None

    @property
    def costs(self) -> tuple[float | None, ...]:
        return self.tokens, self.ms_first, self.ms_later, self.mb


def by_configuration(results: Results) -> dict[Configuration, list[ResultRow]]:
    """The rows of each configuration."""
    found: dict[Configuration, list[ResultRow]] = {}
    for row in results.rows.values():
        found.setdefault(row.configuration, []).append(row)
    return found


def summarise(results: Results) -> list[Line]:
    """One line per configuration and score."""
    every = by_configuration(results)
    lines = []
    for name in SCORES:
        known = {one: units(rows, name) for one, rows in every.items()}
        for configuration, own in known.items():
            if own:
                rows = every[configuration]
                timed = [(row.ms, row.ms_page) for row in rows if row.ms is not None]
                line = Line(
                    score_name=name,
                    configuration=configuration,
                    count=len(own),
                    score=mean(own.values()),
                    difference=_difference(configuration, known),
                    tokens=_median(row.tokens for row in rows),
                    ms_first=_median(ms + page for ms, page in timed),
                    ms_later=_median(ms for ms, _ in timed),
                    mb=_median(row.mb for row in rows),
                )
                lines.append(line)
    return lines


def units(rows: Iterable[ResultRow], name: str) -> dict[str, float]:
    """The units of resampling: a question's score, or an image's where all its rows share one."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if name in row.scores:
            found.setdefault(row.image if name in _BY_IMAGE else row.sample, []).append(row.scores[name])
    return {unit: mean(scores) for unit, scores in found.items()}


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


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def main_score(lines: Sequence[Line]) -> str:
    """The score that decides."""
    return lines[0].score_name if lines else SCORES[0]


@dataclass(frozen=True)
class Verdict:
    """A method over all budgets: where it is worth its complexity, and why."""

    method: str
    best: float  # largest lead over the better of grid and resize
    budget: int  # at which it is largest
    worth: tuple[str, ...]  # one reason per budget; empty: not worth its complexity


def decision_rule(lines: Sequence[Line]) -> list[Verdict]:
    """Every method against `grid` (same relevance) and `resize` at each budget, by the score that decides."""
    known = {line.configuration: line for line in lines if line.score_name == main_score(lines)}
    found: dict[str, Verdict] = {}
    for own, line in known.items():
        grid = Configuration("grid", own.relevance, own.budget)
        rivals = [known[rival] for rival in (*_resizes(own.budget), grid) if rival in known]
        if own.allocator in BASELINES or own.asked != OWN or not rivals:
            continue
        lead = round(line.score - max(rival.score for rival in rivals), 9)  # 0.53 − 0.5 is 0.03, not more
        fastest = min((rival.ms_first for rival in rivals if rival.ms_first is not None), default=0.0)
        reasons: tuple[str, ...] = ()
        if lead > POINTS:
            reasons = (f"{100 * lead:+.1f} points at {own.budget}",)
        elif line.ms_first and SPEED * line.ms_first <= fastest and lead >= -POINTS:
            reasons = (f"{fastest / line.ms_first:.1f} × faster at {own.budget}",)
        so_far = found.get(own.method, Verdict(own.method, lead, own.budget, ()))
        best = max((lead, own.budget), (so_far.best, so_far.budget))
        found[own.method] = Verdict(own.method, *best, (*so_far.worth, *reasons))
    return list(found.values())
