"""The open questions about allocation, answered by legibility: variants of one idea compared.

    python -m texturevlm_lab.studies.questions DATA --out DIR [--limit N] [--pages DIR] [--only stages,levels]

Each experiment is a few allocators with their options, evaluated as by `texturevlm eval`; DIR gets one folder per
experiment.
"""

import argparse
import math
import sys
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from texturevlm.allocate import ALLOCATORS
from texturevlm.allocate.allocator import each_image
from texturevlm.allocate.cells import Cells
from texturevlm.allocate.search import Layer, finest_span, scored
from texturevlm.channels.structure import colour_levels
from texturevlm.check import check_choice
from texturevlm.ops.cover import cover, rows_of
from texturevlm.ops.distance import distance_field
from texturevlm.ops.segment import seed_grid, superpixels
from texturevlm.placement import Allocator
from texturevlm.relevance import Relevance, find_relevance
from texturevlm.relevance.maps import UNIT
from texturevlm.types import Allocation, Texture
from texturevlm_lab.allocators.cascade import cascade
from texturevlm_lab.evaluate.data import load_data
from texturevlm_lab.evaluate.report import publish
from texturevlm_lab.evaluate.run import evaluate
from texturevlm_lab.studies.study import OCR, PAGES, option, study_main

BUDGETS = (64, 273)
CLUSTERS, KEPT = 50, 10


class Experiment(NamedTuple):
    """What is asked (numbers as in the project's list of questions), and the variants that answer it."""

    asks: str
    variants: dict[str, Allocator]
    relevance: str = "words"


def whole_levels(texture: Texture, relevance: Relevance, *, budget: int, patch: int) -> Allocation:
    """`fit` with the scale rounded up to a whole mip level: 1, 2, 4 or 8 pixels per sample, never 2.7."""

    def fitted(cells: Cells) -> Any:
        side = cells.width(finest_span(cells, cells.ink, budget))
        side = patch * 2.0 ** math.ceil(math.log2(side / patch) - 1e-9)
        return scored(cells, [Layer.square(cells, cover(rows_of(cells.ink), cells.span(side), budget), side)])

    return each_image(texture, relevance, budget, patch, fitted)


def question_in(
    texture: Texture, relevance: Relevance, *, budget: int, patch: int, coarse: bool = False, later: bool = False
) -> Allocation:
    """`cascade` that uses the question in its coarse stage, its later stages, both or neither; elsewhere salience."""
    salience = find_relevance(texture, patch=patch, relevance="none")
    scan = relevance if coarse else salience if later else None
    return cascade(texture, relevance if later else salience, budget=budget, patch=patch, scan=scan)


def clustered(texture: Texture, relevance: Relevance, *, budget: int, patch: int) -> Allocation:
    """`cascade` that refines only inside the KEPT of CLUSTERS regions of most mass."""
    ink = relevance.ink & in_best_clusters(texture, relevance)
    return cascade(texture, replace(relevance, ink=ink), budget=budget, patch=patch)


def culled(texture: Texture, relevance: Relevance, *, budget: int, patch: int, reach: float = 64.0) -> Allocation:
    """`cascade` that refines nothing further than `reach` pixels from a cell of more than average relevance."""
    ink = relevance.ink & near_relevant(relevance, reach)
    return cascade(texture, replace(relevance, ink=ink), budget=budget, patch=patch)


def in_best_clusters(texture: Texture, relevance: Relevance) -> Tensor:
    """(B, h, w): whether a cell lies in one of the KEPT regions of most mass."""
    grid = relevance.grid
    level = next(level for level in colour_levels(texture.mipmapped()) if level.shape[2:] == grid)
    ids = superpixels(level, count=CLUSTERS).flatten(1).long()
    rows, columns = seed_grid(*grid, CLUSTERS)
    mass = (relevance.mass.flatten(1) * UNIT).long()  # integers: no order of summation changes the sums
    total = torch.zeros(len(ids), rows * columns, dtype=torch.int64, device=ids.device).scatter_add(1, ids, mass)
    best = total.topk(min(KEPT, rows * columns), 1).indices
    kept = torch.zeros_like(total, dtype=torch.bool).scatter(1, best, True)
    return kept.gather(1, ids).view(-1, *grid)


def near_relevant(relevance: Relevance, reach: float) -> Tensor:
    """(B, h, w): whether a cell is within `reach` pixels of one that has more mass than the mean of those with ink."""
    inked = relevance.ink.sum((1, 2), keepdim=True).clamp(min=1)
    mean = (relevance.mass * relevance.ink).sum((1, 2), keepdim=True) / inked
    cell = max(extent / cells for extent, cells in zip(relevance.size, relevance.grid))
    return distance_field((relevance.mass > mean) & relevance.ink) * cell <= reach


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
                "never": question_in,
                "later stages only": partial(question_in, later=True),
                "coarse stage only": partial(question_in, coarse=True),
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
            {"all cells": _with("cascade"), "10 of 50 clusters": clustered, "near": culled},
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


def study(options: argparse.Namespace) -> None:
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
            controlled=list(variants)[-1:],
            ocr=options.ocr.split(","),
            out=options.out / name,
            pages=options.pages,
        )
        notes = [f"Command: `{options.command}`.", f"{len(data.samples)} questions of {options.data.name}: {asks}."]
        notes.append(data.left_out)
        publish(evaluation, options.out / name, title=f"{name}: {asks}", notes=notes)


ONLY = option("--only", metavar="A,B", help="these experiments (default: all)")
main = study_main(__name__, __doc__, study, None, PAGES, OCR, ONLY)
