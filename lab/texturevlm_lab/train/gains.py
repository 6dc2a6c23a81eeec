"""Whether training helped: scores of held-out questions before and after, paired, with an interval by page."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import NamedTuple, Protocol, runtime_checkable

from texturevlm_lab.evaluate.markdown import format_interval, markdown_table
from texturevlm_lab.evaluate.statistics import Interval, paired_difference

HEADS = ("measure", "questions", "pages", "before", "after", "change", "")


@runtime_checkable
class Reports(Protocol):
    """A task whose run ends with a table."""

    def report(self) -> str:
        """What its last evaluation says about whether training helped, as Markdown."""


class Gain(NamedTuple):
    """One measure. low_is_good: it is an error"""

    name: str
    before: Sequence[float]
    after: Sequence[float]
    pages: Sequence[str]
    low_is_good: bool = False

    @property
    def change(self) -> Interval:
        return paired_difference(self.after, self.before, groups=self.pages)

    @property
    def verdict(self) -> str:
        _, low, high = self.change
        low, high = (-high, -low) if self.low_is_good else (low, high)
        return "helped" if low > 0 else "did harm" if high < 0 else "did not help"

    @property
    def line(self) -> tuple[str, ...]:
        means = [f"{mean(one):.3f}" for one in (self.before, self.after)]
        counts = [str(len(self.before)), str(len(set(self.pages)))]
        return self.name, *counts, *means, format_interval(self.change), self.verdict


def gains_table(gains: Sequence[Gain]) -> str:
    """All measures as a table: a change whose 95 % interval holds 0 did not help."""
    said = "Held-out pages of the train split. Intervals: 95 %, paired, by page; one that holds 0 did not help."
    return f"{said}\n\n{markdown_table(HEADS, [one.line for one in gains])}"
