"""A progress bar on stderr, with the time spent and an estimate of the time left."""

import sys
import time

WIDTH = 30


class Progress:
    """Counts steps. On a terminal it redraws one bar; elsewhere it prints one line per tenth of the work."""

    note = ""  # shown at the end of the bar

    def __init__(self, total: int, unit: str, *, done: int = 0) -> None:
        self.total, self.unit, self.done, self.before = total, unit, done, done
        self.started = self.drawn = time.monotonic()
        if done:
            print(f"{done}/{total} {unit} were done before", file=sys.stderr, flush=True)

    def step(self, count: int = 1) -> None:
        previous, self.done = self.done, self.done + count
        finished = self.done >= self.total
        if sys.stderr.isatty():
            now = time.monotonic()
            if finished or now - self.drawn > 0.1:
                self.drawn = now
                full = WIDTH * self.done // max(1, self.total)
                bar = "█" * full + "░" * (WIDTH - full)
                print(f"\r{bar} {self._words()} ", end="\n" if finished else "", file=sys.stderr, flush=True)
        elif finished or 10 * self.done // self.total > 10 * previous // self.total:
            print(self._words(), file=sys.stderr, flush=True)

    def _words(self) -> str:
        spent = time.monotonic() - self.started
        left = spent / max(1, self.done - self.before) * (self.total - self.done)
        return f"{self.done}/{self.total} {self.unit}, {clock_time(spent)} so far, {clock_time(left)} to go{self.note}"


def clock_time(seconds: float) -> str:
    """Hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"
