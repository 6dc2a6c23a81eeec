"""What a run's results come to: a mean and a paired difference to resize for every configuration, and the razor.

The razor: a method that beats `grid` and `resize` neither by more than 3 points nor by two times in speed is not worth
its complexity.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, median

from texturevlm.evaluate.results import FULL_IMAGE, IDEAL_RESIZE, NONE, OWN, Configuration, Results, Row
from texturevlm.evaluate.statistics import Interval, paired_difference

POINTS, SPEED = 0.03, 2.0  # what a method must be better by
BASELINES = (FULL_IMAGE, IDEAL_RESIZE, "resize", "grid")
# In the order of their weight: the first that was measured decides. PSNR is in dB, not in points.
SCORES = ("legibility", "fine_on_objects", "recall", "ssim_box", "ssim", "object_iou", "psnr_box", "psnr")
BY_IMAGE = ("fine_on_objects", "object_area", "object_iou")  # the same for every row of an image


@dataclass(frozen=True)
class Line:
    """One configuration and score: its mean, the paired difference to resize, and what it cost (medians)."""

    score_name: str
    configuration: Configuration
    count: int
    score: float
    difference: Interval | None
    tokens: float | None
    ms_first: float | None
    ms_later: float | None
    mb: float | None


def summarise(results: Results) -> list[Line]:
    """All configurations and scores of a run."""
    together: dict[Configuration, list[Row]] = {}
    for row in results.rows.values():
        together.setdefault(row.configuration, []).append(row)
    lines = []
    for name in SCORES:
        by_unit = {one: units(rows, name) for one, rows in together.items()}
        for configuration, found in by_unit.items():
            if found:
                difference = _difference(configuration, found, by_unit)
                lines.append(_line(name, configuration, found, difference, together[configuration]))
    return lines


def units(rows: Iterable[Row], name: str) -> dict[str, float]:
    """What is resampled: a question's score, or an image's, where it is one for all rows of the image."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if name in row.scores:
            found.setdefault(row.image if name in BY_IMAGE else row.sample, []).append(row.scores[name])
    return {unit: mean(scores) for unit, scores in found.items()}


def _difference(
    configuration: Configuration, found: dict[str, float], known: dict[Configuration, dict[str, float]]
) -> Interval | None:
    """To the ideal resize at the same budget; to the one in whole tokens where only that has such a score."""
    for rival in (Configuration(IDEAL_RESIZE, budget=configuration.budget), _whole_tokens(configuration.budget)):
        theirs = known.get(rival, {})
        shared = [unit for unit in found if unit in theirs]
        if shared:
            same = rival == configuration
            return None if same else paired_difference([found[u] for u in shared], [theirs[u] for u in shared])
    return None


def _whole_tokens(budget: int) -> Configuration:
    return Configuration("resize", NONE, budget)


def _line(
    name: str, configuration: Configuration, found: dict[str, float], difference: Interval | None, rows: Sequence[Row]
) -> Line:
    timed = [row for row in rows if row.ms is not None]
    return Line(
        score_name=name,
        configuration=configuration,
        count=len(found),
        score=mean(found.values()),
        difference=difference,
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


# ---- the razor -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """Of a method over all budgets: where it is worth its complexity, and why."""

    method: str
    best: float  # the largest lead over the better of grid and resize
    budget: int  # where that was
    worth: tuple[str, ...]  # one reason a budget; none: not worth its complexity


def razor(lines: Sequence[Line]) -> list[Verdict]:
    """Every method against `grid` (same relevance) and `resize` at each budget, by the score that decides."""
    decisive = [line for line in lines if line.score_name == main_score(lines)]
    known = {line.configuration: line for line in decisive}
    verdicts = []
    for method in dict.fromkeys(_methods(decisive)):
        allocator, relevance = method
        leads: list[tuple[float, int]] = []
        worth = []
        for line in decisive:
            own = line.configuration
            if (own.allocator, own.relevance, own.asked) != (*method, OWN):
                continue
            rivals = [
                known[rival]
                for rival in (
                    Configuration(IDEAL_RESIZE, budget=own.budget),
                    _whole_tokens(own.budget),
                    Configuration("grid", relevance, own.budget),
                )
                if rival in known
            ]
            if not rivals:
                continue
            lead = round(line.score - max(rival.score for rival in rivals), 9)  # 0.53 − 0.5 is 0.03, not more
            leads.append((lead, own.budget))
            times = [rival.ms_first for rival in rivals if rival.ms_first is not None]
            if lead > POINTS:
                worth.append(f"{100 * lead:+.1f} points at {own.budget}")
            elif times and line.ms_first and SPEED * line.ms_first <= min(times) and lead >= -POINTS:
                worth.append(f"{min(times) / line.ms_first:.1f} × faster at {own.budget}")
        if leads:
            verdicts.append(Verdict(Configuration(allocator, relevance).method, *max(leads), tuple(worth)))
    return verdicts


def _methods(lines: Sequence[Line]) -> list[tuple[str, str]]:
    return [
        (line.configuration.allocator, line.configuration.relevance)
        for line in lines
        if line.configuration.allocator not in BASELINES
    ]
