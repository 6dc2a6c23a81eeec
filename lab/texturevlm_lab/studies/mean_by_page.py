"""A mean score as text, with its interval by resampling pages."""

from collections.abc import Sequence

from texturevlm_lab.evaluate.markdown import format_interval
from texturevlm_lab.evaluate.statistics import paired_difference


def mean_by_page(scores: Sequence[float], pages: Sequence[str]) -> str:
    """The mean, its interval, and how many scores there are; a dash if there are none."""
    if not scores:
        return "–"
    found = paired_difference(scores, [0.0] * len(scores), groups=pages)
    return f"{format_interval(found, '.3f')}, n = {len(scores)}"
