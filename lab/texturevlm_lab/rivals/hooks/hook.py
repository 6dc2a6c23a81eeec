"""`reduce=` and `keep=`: visual tokens are dropped or merged inside the model, after they were chosen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from texturevlm.vlm import Adapter, ModelHook
from texturevlm.vlm.captured_generate import KnownOf, dense_keys
from texturevlm.vlm.hook import CapturedModel
from texturevlm_lab.attention.hook import AttentionHook
from texturevlm_lab.rivals import ReduceStep, kept_of, open_steps, stage_budget, steps_of
from texturevlm_lab.rivals.hooks.captured import ReducedBudget, no_captured_reduction_because
from texturevlm_lab.rivals.hooks.reducible import check_reducible
from texturevlm_lab.rivals.hooks.reducing import reduced

OVERSAMPLING = 2  # tokens that are sampled per token of the budget, if the reduction leads to the budget


@dataclass(frozen=True)
class TokenReduction(ModelHook):
    """The methods of `texturevlm_lab.rivals` in a model.

    reduce: a name of METHODS, or a list of names, (name, keep) or (name, {"keep": …, "layer": …}), in the order in
            which they act
    keep:   visual tokens of a question that stay, or their share (a float); by default as many as the budget, and
            twice as many are chosen
    steps:  what both mean under a budget, once that is known
    """

    reduce: Any = None
    keep: int | float | None = None
    steps: tuple[ReduceStep, ...] = ()

    options: ClassVar[tuple[str, ...]] = ("reduce", "keep")

    @classmethod
    def of(cls, function: str, options: Mapping[str, Any], usual: ModelHook | None = None) -> TokenReduction | None:
        """reduce=[] asks for none; keep alone changes what the model's own methods leave."""
        reduce, keep = options.get("reduce"), options.get("keep")
        if reduce is None and isinstance(usual, TokenReduction):
            reduce, keep = usual.reduce, usual.keep if keep is None else keep
        steps_of(function, reduce, 1 if keep is None and reduce else keep)
        return cls(reduce, keep) if reduce else None

    @property
    def given(self) -> dict[str, Any]:
        return {name: value for name, value in (("reduce", self.reduce), ("keep", self.keep)) if value is not None}

    def check(self, function: str, config: Any, hooks: Sequence[ModelHook]) -> None:
        check_reducible(function, config, self.steps)
        if other := next((one for one in hooks if isinstance(one, AttentionHook)), None):
            got = [step.method for step in self.steps]
            raise ValueError(f"{function}: reduce must not be given with {other.name}, got {', '.join(got)}")

    def budgeted(self, function: str, budget: int) -> tuple[int, TokenReduction]:
        """With a number that stays, the budget is sampled and reduced to that number. Without, the budget is what
        stays, and more is sampled. Several steps that do not say how many stay lead there together, by one share each.
        """
        steps = list(steps_of(function, self.reduce, budget if self.keep is None else self.keep))
        unsaid = open_steps(self.reduce)
        sampled = OVERSAMPLING * budget if unsaid and self.keep is None else budget
        count = sampled
        for place, index in enumerate(unsaid):
            step, left = steps[index], len(unsaid) - place
            if isinstance(step.keep, float):
                steps[index] = replace(step, keep=step.keep ** (1 / len(unsaid)))
            elif step.keep <= sampled:
                count = stage_budget(count, step.keep, left)
                steps[index] = replace(step, keep=count)
        _check_falling(function, steps, sampled, "the budget" if sampled == budget else "what is chosen")
        return sampled, TokenReduction(steps=tuple(steps))

    def kept(self, count: int) -> int:
        """Behind the last step; of dyrate, at the least."""
        return kept_of(self.steps, count)

    @contextmanager
    def run(self, adapter: Adapter, *, endings: Sequence[int] | None = None) -> Iterator[KnownOf]:
        steps = self.steps or steps_of("reduce", self.reduce, self.keep)
        with reduced(adapter, steps, endings=endings) as run:
            yield dense_keys if run is None else run.known

    def not_captured_because(self) -> str | None:
        return no_captured_reduction_because(self.steps)

    def captured(self, adapter: Adapter, budget: int) -> CapturedModel:
        return ReducedBudget(adapter, budget, self.steps)


def _check_falling(function: str, steps: list[ReduceStep], most: int, because: str) -> None:
    """No step may be asked to keep more tokens than it gets."""
    for step in steps:
        if not isinstance(step.keep, float) and step.keep > most:
            wanted = f"at most {because}, {most}"
            raise ValueError(f"{function}: keep of {step.method} must be {wanted}, got {step.keep}")
        most, because = step.target(most), f"what {step.method} leaves"
