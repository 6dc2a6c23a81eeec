"""Learning rates and random draws as functions of the step alone, so that a resumed run needs no other state."""

import hashlib
import math

import torch


def rate_at(step: int, *, steps: int, rate: float, warmup: int = 0) -> float:
    """The learning rate of a step, counted from 0: it grows to its peak, then falls as a cosine."""
    if step < warmup:
        return rate * (step + 1) / warmup
    return rate * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup))) / 2


def generator_at(seed: int, step: int, purpose: str = "") -> torch.Generator:
    """A generator for one step: the same whenever that step is repeated, and different for every other step."""
    named = hashlib.blake2b(f"{seed}/{step}/{purpose}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(named, "little") >> 1)


def draw_examples(count: int, batch: int, *, seed: int, step: int) -> list[int]:
    """`batch` indices below `count`, drawn with replacement: the examples of a step."""
    generator = generator_at(seed, step, "curriculum")
    # Two draws per example: the first once chose among data sets. It stays, so that trained weights can be reproduced.
    torch.multinomial(torch.ones(1, dtype=torch.float64), batch, replacement=True, generator=generator)
    return [int(u * count) for u in torch.rand(batch, generator=generator, dtype=torch.float64).tolist()]
