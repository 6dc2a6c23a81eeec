"""Reduction beside allocation: how many tokens are sampled, and how many of them stay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from texturevlm.reduce import ReduceStep, open_steps, stage_budget, steps_of

OVERSAMPLING = 2  # tokens that are sampled per token of the budget, if the reduction leads to the budget


def sampled_and_kept(
    function: str, reduce: Any, keep: int | float | None, budget: int
) -> tuple[int, tuple[ReduceStep, ...]]:
    """Tokens that are sampled, and the steps that reduce them.

    With a number that stays, the budget is sampled and reduced to that number. Without, the budget is what stays, and
    more is sampled. Several steps that do not say how many stay lead there together, by one share per step.
    """
    steps = list(steps_of(function, reduce, budget if keep is None and reduce else keep))
    unsaid = open_steps(reduce)
    sampled = OVERSAMPLING * budget if unsaid and keep is None else budget
    count = sampled
    for place, index in enumerate(unsaid):
        step, left = steps[index], len(unsaid) - place
        if isinstance(step.keep, float):
            steps[index] = replace(step, keep=step.keep ** (1 / len(unsaid)))
        elif step.keep <= sampled:
            count = stage_budget(count, step.keep, left)
            steps[index] = replace(step, keep=count)
    _check_falling(function, steps, sampled, "the budget" if sampled == budget else "what is chosen")
    return sampled, tuple(steps)


def _check_falling(function: str, steps: list[ReduceStep], most: int, because: str) -> None:
    """No step may be asked to keep more tokens than it gets."""
    for step in steps:
        if not isinstance(step.keep, float) and step.keep > most:
            wanted = f"at most {because}, {most}"
            raise ValueError(f"{function}: keep of {step.method} must be {wanted}, got {step.keep}")
        most, because = step.target(most), f"what {step.method} leaves"
