"""Which data set a training example comes from, by step: easy ones first, real ones later, mixed in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from texturevlm.check import check_count
from texturevlm.train.schedule import generator_at


@dataclass(frozen=True)
class Mark:
    """From this step on data sets are drawn in proportion to these weights; between two marks they change evenly."""

    step: int
    weights: Mapping[str, float]


class Curriculum:
    """Draws examples of several data sets, each draw known from the step number alone."""

    def __init__(self, sizes: Mapping[str, int], marks: Sequence[Mark] = (), *, seed: int = 0) -> None:
        """sizes: examples of each data set; marks: none for all examples alike."""
        for name, size in sizes.items():
            check_count("Curriculum", f"sizes[{name!r}]", size, 1)
        marks = marks or [Mark(0, {name: float(size) for name, size in sizes.items()})]
        self.names, self.sizes, self.seed = list(sizes), dict(sizes), seed
        self.marks = sorted(marks, key=lambda mark: mark.step)
        for mark in self.marks:
            if unknown := [name for name in mark.weights if name not in sizes]:
                raise ValueError(f"Curriculum: weights may have {', '.join(sizes)}, got {unknown[0]!r}")
            if min(mark.weights.values(), default=0.0) < 0 or not sum(mark.weights.values()) > 0:
                raise ValueError(f"Curriculum: weights must be at least 0 and not all 0, got {dict(mark.weights)}")

    def weights(self, step: int) -> dict[str, float]:
        """The chance of each data set at a step; they sum to 1."""
        later = next((index for index, mark in enumerate(self.marks) if mark.step > step), len(self.marks))
        before, after = self.marks[max(0, later - 1)], self.marks[min(later, len(self.marks) - 1)]
        span = after.step - before.step
        share = min(1.0, max(0.0, (step - before.step) / span)) if span > 0 else 0.0
        first, last = self._chances(before), self._chances(after)
        return {name: first[name] * (1 - share) + last[name] * share for name in self.names}

    def draw(self, step: int, count: int) -> list[tuple[str, int]]:
        """The examples of a step: data set and number within it."""
        generator = generator_at(self.seed, step, "curriculum")
        chances = torch.tensor(list(self.weights(step).values()), dtype=torch.float64)
        chosen = torch.multinomial(chances, count, replacement=True, generator=generator).tolist()
        spots = torch.rand(count, generator=generator, dtype=torch.float64).tolist()
        names = [self.names[index] for index in chosen]
        return [(name, int(spot * self.sizes[name])) for name, spot in zip(names, spots)]

    def _chances(self, mark: Mark) -> dict[str, float]:
        total = sum(mark.weights.values())
        return {name: mark.weights.get(name, 0.0) / total for name in self.names}
