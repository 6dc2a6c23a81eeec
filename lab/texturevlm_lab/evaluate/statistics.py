"""Paired bootstrap: the interval of a difference between two methods that answered the same questions."""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

_RESAMPLES = 10_000
_CONFIDENCE = 0.95
_CHUNK = 1 << 22  # numbers drawn at once: bounds the memory
Numbers = Sequence[float] | np.ndarray


class Interval(NamedTuple):
    """A value and the bounds of its 95% interval."""

    mean: float
    low: float
    high: float


def paired_difference(
    ours: Numbers, theirs: Numbers, *, groups: Sequence[Hashable] | None = None, resamples: int = _RESAMPLES
) -> Interval:
    """The mean of ours − theirs, paired by question, and its 95% interval by resampling questions.

    groups: the page of each question; whole pages are then resampled, because questions about one page are alike
    """
    if len(ours) != len(theirs) or not len(ours):
        raise ValueError(
            "paired_difference: ours and theirs must have the same length and not be empty, "
            f"got {len(ours)} and {len(theirs)}"
        )
    differences = np.subtract(ours, theirs)
    if groups is None:
        return pooled_ratio(differences, np.ones(len(differences)), resamples=resamples)
    if len(groups) != len(differences):
        raise ValueError(
            f"paired_difference: groups must have one entry per question, got {len(groups)} for {len(differences)}"
        )
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    of_question = [numbers[group] for group in groups]
    return pooled_ratio(np.bincount(of_question, differences), np.bincount(of_question), resamples=resamples)


def pooled_ratio(amounts: Numbers, chances: Numbers, *, resamples: int = _RESAMPLES) -> Interval:
    """The sum of amounts over the sum of chances, and its 95% interval by resampling both together."""
    pairs = np.stack([np.asarray(amounts, dtype=np.float64), np.asarray(chances, dtype=np.float64)], 1)
    if pairs.ndim != 2 or not len(pairs) or not np.isfinite(pairs).all():
        raise ValueError(f"pooled_ratio: amounts and chances must be finite and not empty, got {len(pairs)} of them")
    generator = np.random.default_rng(0)
    ratios: list[np.ndarray] = []
    step = max(1, _CHUNK // len(pairs))
    for first in range(0, resamples, step):
        drawn = generator.integers(0, len(pairs), (min(step, resamples - first), len(pairs)))
        sums = pairs[drawn].sum(1)
        ratios.append(sums[:, 0] / np.where(sums[:, 1] == 0, np.nan, sums[:, 1]))
    tail = (1 - _CONFIDENCE) / 2
    low, high = np.nanquantile(np.concatenate(ratios), [tail, 1 - tail])
    total = pairs.sum(0)
    return Interval(float(total[0] / total[1]) if total[1] else float("nan"), float(low), float(high))
