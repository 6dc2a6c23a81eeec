"""What a method declares: its stages, where each acts and what each needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from texturevlm.check import check_count
from texturevlm_lab.rivals.context import Context
from texturevlm_lab.rivals.reduction import Reduction, everything

# In the order of a model: pixels before the tower; tokens between two blocks of the tower, behind the projector, and
# between two layers of the language model; keys and values while an answer is decoded.
PLACES = ("pixels", "tower", "projector", "llm", "decode")
Function = Callable[[Context, int], Reduction]
DecodeRate = Callable[[Context, int], int]


@dataclass(frozen=True)
class ReduceStage:
    """One reduction.

    reduce: tokens and a budget, from 1 to their number → exactly as many
    place:  of PLACES
    needs:  fields of Context besides those that are always there
    depth:  for tower and llm: after which share of the blocks or layers; for decode: the layer whose attention counts
    rate:   for decode: how many tokens stay at this step of the answer, at least the budget
    """

    reduce: Function
    place: str = "projector"
    needs: tuple[str, ...] = ()
    depth: float = 0.0
    rate: DecodeRate | None = None

    def __call__(self, context: Context, keep: int) -> Reduction:
        """Reduce to `keep` tokens; all of them stay if that is their number."""
        check_count("reduce", "keep", keep, 1, len(context))
        if missing := [name for name in self.needs if name not in context.given]:
            raise ValueError(f"reduce: {self.reduce.__name__} needs {', '.join(missing)}, which the context lacks")
        if keep == len(context):
            return everything(keep, context.features.device)
        return self.reduce(context, keep)


@dataclass(frozen=True)
class Method:
    """A published way to reduce tokens, or a control.

    stages: in the order in which they act. The budget is reached by the last one; each keeps the same share of what
            it gets
    """

    stages: tuple[ReduceStage, ...]

    @property
    def acts(self) -> set[str]:
        """Where it acts."""
        return {stage.place for stage in self.stages}

    @property
    def needs(self) -> set[str]:
        """What it needs, at any place."""
        return {name for stage in self.stages for name in stage.needs}


def stage_budget(count: int, keep: int, stages: int) -> int:
    """Tokens that the next of so many stages keeps, on the way from `count` to `keep` by one share per stage."""
    if stages == 1 or keep >= count:
        return min(keep, count)
    share: float = (keep / count) ** (1 / stages)
    return max(keep, min(count, round(count * share)))
