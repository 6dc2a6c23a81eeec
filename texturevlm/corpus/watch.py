"""What a run does, for people: images per second by stage, the slowest stage, errors, the time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from texturevlm.corpus.worker import STAGES
from texturevlm.progress import clock_time

DRAWN_EVERY, PRINTED_EVERY = 0.5, 30.0  # seconds, on a terminal and elsewhere


def shown(rate: float) -> str:
    """A rate for people: 8,012, 97, 3.3, 0.2."""
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}" if rate >= 0.1 else f"{rate:.2g}"


@dataclass
class Watch:
    """Counts what is done in this run.

    units: how many there are; done: how many of them, with those of earlier runs
    """

    units: int
    done: int
    quiet: bool = False
    images: int = 0
    errors: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))

    def __post_init__(self) -> None:
        self.begin(dict.fromkeys(STAGES, 1))
        self.before = self.done
        if self.done and not self.quiet:
            print(f"{self.done} of {self.units} units were done before", file=sys.stderr, flush=True)

    def begin(self, at_once: Mapping[str, int]) -> None:
        """Time counts from now; at_once: threads that work at each stage."""
        self.at_once = at_once
        self.started = self.drawn = time.monotonic()

    def add(self, images: int, errors: int, seconds: Mapping[str, float]) -> None:
        """Count what a worker has done since it last said."""
        self.images, self.errors = self.images + images, self.errors + errors
        for stage in STAGES:
            self.seconds[stage] += seconds[stage]
        self.draw()

    def finished(self) -> None:
        """Count a unit that is done."""
        self.done += 1
        self.draw(last=self.done == self.units)

    @property
    def wall(self) -> float:
        return time.monotonic() - self.started

    def rates(self) -> dict[str, float]:
        """Images per second that each stage could do if it never waited for another."""
        return {
            stage: self.images * self.at_once[stage] / self.seconds[stage] for stage in STAGES if self.seconds[stage]
        }

    def bottleneck(self) -> str:
        """The slowest stage; "" before any is known."""
        rates = self.rates()
        return min(rates, key=lambda stage: rates[stage], default="")

    def line(self) -> str:
        """Where the run is, in one line."""
        slowest, fresh = self.bottleneck(), self.done - self.before
        marks = {slowest: " (bottleneck)"}
        by_stage = ", ".join(f"{stage} {shown(rate)}{marks.get(stage, '')}" for stage, rate in self.rates().items())
        left = clock_time(self.wall / fresh * (self.units - self.done)) if fresh else "?"
        overall = shown(self.images / max(self.wall, 1e-9))
        counts = f"{self.done}/{self.units} units, {self.images:,} images at {overall} images/s"
        return f"{counts} ({by_stage}), {self.errors} errors, {left} to go"

    def draw(self, last: bool = False) -> None:
        """Print the line, if it is time for it."""
        now, terminal = time.monotonic(), sys.stderr.isatty()
        if self.quiet or not (last or now - self.drawn > (DRAWN_EVERY if terminal else PRINTED_EVERY)):
            return
        self.drawn = now
        end = "\n" if last or not terminal else ""
        print(("\r\x1b[K" if terminal else "") + self.line(), end=end, file=sys.stderr, flush=True)
