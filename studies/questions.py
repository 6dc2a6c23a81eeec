"""The open questions about allocation, answered by legibility: variants of one idea compared.

    python -m studies.questions DATA --out DIR [--limit N] [--pages DIR] [--only stages,levels]

Each experiment is a few allocators with their options, evaluated as by `texturevlm eval`; DIR gets one folder per
experiment.
"""

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from studies.study import PAGES, option, run_study, study_parser
from texturevlm.allocate import ALLOCATORS
from texturevlm.allocate.allocator import each_image
from texturevlm.allocate.cascade import cascade
from texturevlm.allocate.cells import Cells
from texturevlm.allocate.search import Layer, finest_span, scored
from texturevlm.check import check_choice
from texturevlm.evaluate.data import load_data
from texturevlm.evaluate.report import publish
from texturevlm.evaluate.run import evaluate
from texturevlm.ops.cover import cover, rows_of
from texturevlm.relevance import Relevance, find_relevance
from texturevlm.types import Allocation, Texture

BUDGETS = (64, 273)
Allocator = Callable[..., Allocation]


class Experiment(NamedTuple):
    """What is asked (numbers as in the project's list of questions), and the variants that answer it."""

    asks: str
    variants: dict[str, Allocator]
    relevance: str = "words"


def whole_levels(texture: Texture, relevance: Relevance, *, budget: int, patch: int) -> Allocation:
    """`fit` with the scale rounded up to a whole mip level: 1, 2, 4 or 8 pixels a sample, never 2.7."""

    def fitted(cells: Cells) -> Any:
        side = cells.width(finest_span(cells, cells.ink, budget))
        side = patch * 2.0 ** math.ceil(math.log2(side / patch) - 1e-9)
        return scored(cells, [Layer.square(cells, cover(rows_of(cells.ink), cells.span(side), budget), side)])

    return each_image(texture, relevance, budget, patch, fitted)


def heard(
    texture: Texture, relevance: Relevance, *, budget: int, patch: int, coarse: bool = False, later: bool = False
) -> Allocation:
    """`cascade` that hears the question in its coarse stage, in its later stages, or never; else it uses salience."""
    salience = find_relevance(texture, patch=patch, relevance="none")
    scan = relevance if coarse else salience if later else None
    return cascade(texture, relevance if later else salience, budget=budget, patch=patch, scan=scan)


def _with(name: str, **options: Any) -> Allocator:
    return partial(ALLOCATORS[name], **options)


def experiments() -> dict[str, Experiment]:
    """By name. Made on call, since it names every allocator."""
    names = [name for name in ALLOCATORS if name not in ("resize", "grid", "auto", "density")]
    return {
        "allocators": Experiment("which allocator (7, 8, 9, 10)", {name: ALLOCATORS[name] for name in names}),
        "question": Experiment(
            "2: salience or the question, at which stage",
            {
                "never": heard,
                "later stages only": partial(heard, later=True),
                "coarse stage only": partial(heard, coarse=True),
                "at every stage": _with("cascade"),
            },
        ),
        "stages": Experiment(
            "3: three stages, five, or a continuous hierarchy",
            {
                "three stages": _with("cascade", stages=3),
                "five stages": _with("cascade", stages=5),
                "continuous": _with("cascade", stages="continuous"),
            },
        ),
        "thresholds": Experiment(
            "4: survivors fixed or adapted to the image",
            {
                "a third survives": _with("cascade", survivors=0.33),
                "half survives": _with("cascade", survivors=0.5),
                "adapted": _with("cascade"),
            },
        ),
        "levels": Experiment(
            "6: whole levels or fractional scales", {"whole levels": whole_levels, "fractional": _with("fit")}, "none"
        ),
        "culling": Experiment(
            "11: clusters first, or culled by distance",
            {
                "all cells": _with("cascade"),
                "10 of 50 clusters": _with("cascade", clusters=50),
                "near": _with("cascade", cull=64.0),
            },
        ),
        "fixations": Experiment(
            "9, 10: how many fixations, how many looks",
            {
                "one fixation": _with("logpolar", fixations=1),
                "four fixations": _with("logpolar", fixations=4),
                "spiral": _with("logpolar", fixations=4, pattern="spiral"),
                "two looks": _with("fixations", looks=2),
                "three looks": _with("fixations", looks=3),
            },
        ),
    }


def study(options: argparse.Namespace, command: str) -> None:
    known = experiments()
    wanted = options.only.split(",") if options.only else list(known)
    for name in wanted:
        check_choice("questions", "--only", name, known)
    data = load_data(options.data, limit=options.limit, located=True)
    for name in wanted:
        asks, variants, relevance = known[name]
        print(f"{name}: {asks}", file=sys.stderr)
        evaluation = evaluate(
            data.samples,
            allocators=variants,
            relevances=(relevance,),
            budgets=BUDGETS,
            metrics=("legibility",),
            controls=(),
            out=options.out / name,
            pages=options.pages,
        )
        notes = [f"Command: `{command}`.", f"{len(data.samples)} questions of {options.data.name}: {asks}."]
        publish(evaluation, options.out / name, title=f"{name}: {asks}", notes=notes)


def main(arguments: Sequence[str] | None = None) -> int:
    only = option("--only", metavar="A,B", help="these experiments (default: all)")
    return run_study(study_parser("questions", __doc__, PAGES, only), arguments, study)


if __name__ == "__main__":
    sys.exit(main())
