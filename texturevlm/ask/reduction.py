"""Reduction beside allocation: how many tokens are sampled, and how many of them stay."""

from __future__ import annotations

from typing import Any

from texturevlm.reduce import ReduceStep, leaves_open, steps_of

OVERSAMPLING = 2  # tokens that are sampled per token of the budget, if the reduction leads to the budget


def sampled_and_kept(
    function: str, reduce: Any, keep: int | float | None, budget: int
) -> tuple[int, tuple[ReduceStep, ...]]:
    """Tokens that are sampled, and the steps that reduce them.

    With a number that stays, the budget is sampled and reduced to that number. Without, the budget is what stays, and
    more is sampled.
    """
    steps = steps_of(function, reduce, budget if keep is None and reduce else keep)
    if steps and keep is None and leaves_open(reduce):
        return OVERSAMPLING * budget, steps
    for step in steps:
        if not isinstance(step.keep, float) and step.keep > budget:
            raise ValueError(f"{function}: keep of {step.method} must be at most the budget, {budget}, got {step.keep}")
    return budget, steps
