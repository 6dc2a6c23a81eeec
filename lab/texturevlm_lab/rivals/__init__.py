"""Token reduction: published ways to drop or merge visual tokens after pixels were chosen, behind one contract.

A method is pure tensor mathematics: a Context and a budget in, a Reduction out. It declares where it acts and what it
needs. How a model is hooked is the business of `vlm`.
"""

from texturevlm_lab.rivals.attention import received_share
from texturevlm_lab.rivals.context import Context
from texturevlm_lab.rivals.method import PLACES, Method, ReduceStage, stage_budget
from texturevlm_lab.rivals.reduction import Reduction
from texturevlm_lab.rivals.registry import METHODS
from texturevlm_lab.rivals.steps import Planned, ReduceStep, check_needs, kept_of, open_steps, planned, steps_of

__all__ = [
    "METHODS",
    "PLACES",
    "Context",
    "Method",
    "Planned",
    "ReduceStage",
    "ReduceStep",
    "Reduction",
    "check_needs",
    "kept_of",
    "open_steps",
    "planned",
    "received_share",
    "stage_budget",
    "steps_of",
]
