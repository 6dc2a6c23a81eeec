"""Small operations on scores and directions that several methods share."""

from __future__ import annotations

import torch
from torch import Tensor

SIMILARITIES_AT_ONCE = 1024  # rows of similarities that are held at once


def top(scores: Tensor, count: int) -> Tensor:
    """(count,): the indices of the highest scores (N,)."""
    return scores.argsort(descending=True, stable=True)[:count]


def others(chosen: Tensor, count: int) -> Tensor:
    """The indices below `count` that were not chosen, ascending."""
    left = torch.ones(count, dtype=torch.bool, device=chosen.device)
    left[chosen] = False
    return left.nonzero()[:, 0]


def strided(order: Tensor, count: int) -> Tensor:
    """(count,): evenly spaced ones of (N,)."""
    steps = (torch.arange(count, device=order.device) * 2 + 1) * len(order) // (2 * count)
    return order[steps]


def nearest(given: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The highest cosine to any target, and which one: directions (N, D), (M, D) → (N,), (N,)."""
    best = [(rows @ targets.mT).max(-1) for rows in given.split(SIMILARITIES_AT_ONCE)]
    return torch.cat([one.values for one in best]), torch.cat([one.indices for one in best])


def shared_out(weights: Tensor, caps: Tensor, total: int) -> list[int]:
    """Whole numbers in proportion to weights (G,), none above its cap, together `total` (largest remainder).

    What a full group cannot take goes to the others. total: at most the sum of the caps
    """
    room: list[int] = caps.tolist()
    want: list[float] = weights.double().clamp(min=1e-12).tolist()
    found = [0] * len(room)
    while (left := total - sum(found)) > 0:
        open_groups = [group for group, cap in enumerate(room) if found[group] < cap]
        whole = sum(want[group] for group in open_groups)
        share = {group: left * want[group] / whole for group in open_groups}
        given = {group: min(int(share[group]), room[group] - found[group]) for group in open_groups}
        over = left - sum(given.values())
        not_full = [group for group in open_groups if found[group] + given[group] < room[group]]
        for group in sorted(not_full, key=lambda one: given[one] - share[one])[:over]:
            given[group] += 1
        for group, more in given.items():
            found[group] += more
    return found
