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


def by_configuration(results: Results) -> dict[Configuration, list[ResultRow]]:
    """The rows of each configuration."""
    found: dict[Configuration, list[ResultRow]] = {}
    for row in results.rows.values():
        found.setdefault(row.configuration, []).append(row)
    return found


def summarise(results: Results) -> list[Line]:
    """One line per configuration and score."""
    rows = by_configuration(results)
    lines = []
    for name in SCORES:
        known = {one: units(own, name) for one, own in rows.items()}
        for configuration, found in known.items():
            if found:
                lines.append(_line(name, configuration, known, rows[configuration]))
    return lines


def units(rows: Iterable[ResultRow], name: str) -> dict[str, float]:
    """The units of resampling: a question's score, or an image's where all its rows share one."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if name in row.scores:
            found.setdefault(row.image if name in _BY_IMAGE else row.sample, []).append(row.scores[name])
    return {unit: mean(scores) for unit, scores in found.items()}


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


def _resizes(budget: int) -> tuple[Configuration, Configuration]:
    """The baselines: the ideal resize, and the one in whole tokens."""
    return Configuration(IDEAL_RESIZE, budget=budget), Configuration("resize", NONE, budget)


def _line(
    name: str, configuration: Configuration, known: dict[Configuration, dict[str, float]], rows: Sequence[ResultRow]
) -> Line:
    timed = [row for row in rows if row.ms is not None]
    return Line(
        score_name=name,
        configuration=configuration,
        count=len(known[configuration]),
        score=mean(known[configuration].values()),
        difference=_difference(configuration, known),
        tokens=_middle(row.tokens for row in rows),
        ms_first=_middle((row.ms or 0) + row.ms_page for row in timed),
        ms_later=_middle(row.ms for row in timed),
        mb=_middle(row.mb for row in rows),
    )


def _middle(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def main_score(lines: Sequence[Line]) -> str:
    """The score that decides."""
    return lines[0].score_name if lines else SCORES[0]


# ---- the decision rule ----------------------------------------------------------------------------------------------


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
    leads: dict[str, list[tuple[float, int]]] = {}
    worth: dict[str, list[str]] = {}
    for own, line in known.items():
        grid = Configuration("grid", own.relevance, own.budget)
        rivals = [known[rival] for rival in (*_resizes(own.budget), grid) if rival in known]
        if own.allocator in BASELINES or own.asked != OWN or not rivals:
            continue
        lead = round(line.score - max(rival.score for rival in rivals), 9)  # 0.53 − 0.5 is 0.03, not more
        leads.setdefault(own.method, []).append((lead, own.budget))
        times = [rival.ms_first for rival in rivals if rival.ms_first is not None]
        reasons = worth.setdefault(own.method, [])
        if lead > POINTS:
            reasons.append(f"{100 * lead:+.1f} points at {own.budget}")
        elif times and line.ms_first and SPEED * line.ms_first <= min(times) and lead >= -POINTS:
            reasons.append(f"{min(times) / line.ms_first:.1f} × faster at {own.budget}")
    return [Verdict(method, *max(found), tuple(worth[method])) for method, found in leads.items()]
