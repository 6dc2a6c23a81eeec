"""Hierarchies that a budget cuts: groups with shared parents (`dag`) and a tree of tiles; and `layers`.

    python -m texturevlm_lab.studies.hierarchies DATA --out DIR [--limit N]

DATA is a folder like docvqa_half. One question with a located answer is taken per page of the train split, from pages
that `dag` was not tuned on. Value: the share of the relevant content that is legible. Legibility: that expected of the
answer, from its height and the scale at its centre. Cracks: of neighbouring cells with ink, the share where one is
shown at least twice as finely as the other. No model answers, and no OCR reads.
"""

import argparse
from collections.abc import Iterator, Sequence
from statistics import mean
from typing import Any

import numpy as np
import torch

from texturevlm.allocate import ALLOCATORS
from texturevlm.allocate.value import delivered_scale
from texturevlm.defaults import PATCH
from texturevlm.relevance import Relevance, find_relevance
from texturevlm.relevance.maps import legibility
from texturevlm.types import Allocation, Texture
from texturevlm_lab.allocators.search import cracks
from texturevlm_lab.evaluate.data import Sample, load_data
from texturevlm_lab.evaluate.markdown import format_interval, markdown_page, markdown_table
from texturevlm_lab.evaluate.statistics import paired_difference
from texturevlm_lab.studies.place_measures import legible_at
from texturevlm_lab.studies.study import each, evenly, provenance, study_main

BUDGETS = (64, 273)
SCORERS = ("scout", "none")
TUNED = 60  # pages of an even selection, which the settings of `dag` were chosen on
PAGES = 48
BASELINE = "dag"
WAYS = {name: ALLOCATORS[name] for name in (BASELINE, "quadtree", "layers")}
CLUSTER_TREE = (
    " `cluster_tree` is a tree in which a cluster is cut only inside its parent "
    "(lab/texturevlm_lab/studies/cluster_tree.py)."
)
MEASURES = ("value", "legibility", "cracks", "holes")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(1)
    located = {sample.image: sample for sample in load_data(options.data, split="train").samples if sample.boxes}
    tuned = {sample.image for sample in evenly(list(located.values()), TUNED)}
    others = [sample for sample in located.values() if sample.image not in tuned]
    if not others:
        raise ValueError(f"DATA must have more than {TUNED} pages with located answers, got {len(located)}")
    rows: list[dict[str, Any]] = []
    chosen = evenly(others, options.limit or PAGES)
    for sample in each(chosen, "pages"):
        texture = Texture.open(sample.image).mipmapped()
        for scorer in SCORERS:
            question = sample.question if scorer == "scout" else ""
            maps = find_relevance(texture, question, patch=PATCH, relevance=scorer)
            for budget in BUDGETS:
                found = {
                    name: _measured(sample, maps, way(texture, maps, budget=budget, patch=PATCH))
                    for name, way in WAYS.items()
                }
                rows.append({"page": sample.image.name, "scorer": scorer, "budget": budget, "ways": found})
    return {"rows": rows, "pages": len(chosen), "data": options.data.name}


def _measured(sample: Sample, maps: Relevance, allocation: Allocation) -> dict[str, float]:
    scale = delivered_scale(allocation, maps.grid)[0].numpy()
    ink, mass = maps.ink[0].numpy(), maps.mass[0].numpy()
    shown = ink & np.isfinite(scale)
    return {
        "value": float((mass * legibility(maps.legible_scale[0].numpy(), scale)).sum()),
        "legibility": legible_at(sample.boxes[0], scale, maps.size),
        "cracks": cracks(scale, shown),
        "holes": 1 - float(shown.sum() / ink.sum()),
    }


def lines(rows: Sequence[dict[str, Any]]) -> Iterator[list[str]]:
    """One per relevance, budget and way."""
    for scorer in SCORERS:
        for budget in BUDGETS:
            some = [row["ways"] for row in rows if (row["scorer"], row["budget"]) == (scorer, budget)]
            for way in some[0]:
                line = [scorer, str(budget), way]
                for name in MEASURES:
                    own, other = ([row[which][name] for row in some] for which in (way, BASELINE))
                    form = ".4f" if name == "cracks" else ".3f"
                    alone = way == BASELINE or name == "holes"
                    gain = "" if alone else f", {format_interval(paired_difference(own, other), '+' + form)}"
                    line.append(f"{mean(own):{form}}{gain}")
                yield line


def report(found: dict[str, Any]) -> str:
    heads = ("relevance", "tokens", "allocator", "value", "legibility", "cracks", "holes")
    return markdown_page(
        "# Hierarchies that a budget cuts",
        f"{found['pages']} pages of {found['data']} (`train`) that `dag` was not tuned on, one question each. "
        "Value: the share of the relevant content that is legible. Legibility: expected of the answer, from its height "
        "and the scale at its centre. Cracks: of neighbouring cells with ink, the share where one is shown at least "
        f"twice as finely as the other. Behind each number the difference to `{BASELINE}`, paired by page, with "
        f"its 95% interval.{CLUSTER_TREE if 'cluster_tree' in found['rows'][0]['ways'] else ''}",
        markdown_table(heads, list(lines(found["rows"]))),
        provenance(found),
    )


main = study_main(__name__, __doc__, measure, report)
