"""Which questions of several data sets a step learns from: the first set alone at first, all sets alike later."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from texturevlm_lab.train.fit import generator_at


def set_chances(sets: int, step: int, steps: int) -> list[float]:
    """The chance of each data set at a step: all of it is the first one's, and it is shared evenly after `steps`."""
    share = 1.0 if steps == 0 else min(1.0, step / steps)
    return [share / sets + (1 - share) * (number == 0) for number in range(sets)]


def draw_questions(sizes: Sequence[int], count: int, *, seed: int, step: int, steps: int) -> list[int]:
    """`count` questions, numbered through all data sets of these sizes; the same whenever the step is repeated."""
    generator = generator_at(seed, step, "curriculum")
    chances = torch.tensor(set_chances(len(sizes), step, steps), dtype=torch.float64)
    chosen = torch.multinomial(chances, count, replacement=True, generator=generator).tolist()
    within = torch.rand(count, generator=generator, dtype=torch.float64).tolist()
    return [sum(sizes[:number]) + int(place * sizes[number]) for number, place in zip(chosen, within)]
