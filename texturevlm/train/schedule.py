"""Numbers that change as training goes on, each a function of the step alone, so that a resumed run needs no memory."""

import hashlib
import math
from collections.abc import Callable

import torch

from texturevlm.check import check_choice

# What is left of a rate, by how far (0 to 1) training is.
SCHEDULES: dict[str, Callable[[float], float]] = {
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
    "linear": lambda done: 1 - done,
    "constant": lambda done: 1.0,
}


def rate_at(step: int, *, steps: int, rate: float, warmup: int = 0, schedule: str = "cosine") -> float:
    """The learning rate of a step, counted from 0."""
    check_choice("rate_at", "schedule", schedule, SCHEDULES)
    if step < warmup:
        return rate * (step + 1) / warmup
    return rate * SCHEDULES[schedule]((step - warmup) / max(1, steps - warmup))


def temperature_at(step: int, *, steps: int, first: float, last: float, hold: float = 0.0) -> float:
    """From first to last, by equal factors; the last share `hold` of the steps stays at the last."""
    if not (first > 0 and last > 0 and 0 <= hold < 1):
        raise ValueError(f"temperature_at: first and last must be above 0, hold below 1, got {first}, {last}, {hold}")
    done = min(1.0, step / max(1.0, (steps - 1) * (1 - hold)))
    return first * (last / first) ** done


def generator_at(seed: int, step: int, purpose: str = "") -> torch.Generator:
    """Random numbers of a step's own: the same whenever that step is made, and unlike those of any other."""
    named = hashlib.blake2b(f"{seed}/{step}/{purpose}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(named, "little") >> 1)
