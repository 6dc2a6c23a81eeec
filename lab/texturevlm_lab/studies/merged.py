"""Parents of `dag` as merged tokens, as pixels, and one scale for all, read by a trained model.

    python -m texturevlm_lab.studies.merged DATA --out results [--limit N] [--model reader] [--split train] [--budget
        96]

DATA holds sroie/. `merged`: a token that is too coarse to be legible is the mean of its children's patch embeddings,
weighted by relevance. `all merged`: every token that is coarser than the image. Cracks: of neighbouring cells with ink,
the share where one is shown at least twice as finely as the other; ink that no token covers would be a hole.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from statistics import mean
from typing import Any

import numpy as np
import torch

from texturevlm.allocate.value import delivered_scale
from texturevlm.ask import VLM
from texturevlm.placement import Placement
from texturevlm.relevance import Relevance
from texturevlm.types import Allocation, Texture
from texturevlm_lab.allocators.search import cracks
from texturevlm_lab.evaluate.answers import anls
from texturevlm_lab.evaluate.data import Sample
from texturevlm_lab.evaluate.markdown import markdown_page, markdown_table
from texturevlm_lab.rivals.hooks.merge import child_shares
from texturevlm_lab.rivals.hooks.merged import merged_pixels
from texturevlm_lab.studies.asking import ASKING, asked_one_by_one, samples_by_set
from texturevlm_lab.studies.study import lead, provenance, study_main

MOST = 48  # tokens of an answer
WAYS = ("resize", "dag", "dag, merged", "dag, all merged", "quadtree", "auto")


def asked(model: VLM, sample: Sample, options: argparse.Namespace) -> dict[str, Any]:
    """ANLS of each way, its tokens, how many of them are merged, cracks and holes."""
    found: dict[str, Any] = {}
    session = model.prepare(sample.image)
    for way in WAYS:
        allocator, _, _ = way.partition(",")
        how: Any = {"budget": options.budget, "relevance": options.relevance, "allocator": allocator}
        (chosen,) = session.choose(sample.question, **how)
        maps = chosen.relevance
        if way == "dag, all merged":
            maps = replace(maps, legible_scale=torch.zeros_like(maps.legible_scale))
        shares = child_shares(chosen.allocation, maps, model.adapter.merge) if "merged" in way else None
        texture = chosen.picture.texture
        pixels = None if shares is None else merged_pixels(texture, chosen.allocation, shares)
        text = answer(model, sample.question, texture, replace(chosen, pixels=pixels))
        tokens = int(chosen.allocation.valid.sum())
        parents = 0 if shares is None else int((shares.flatten(2).sum(-1) > 0).sum())
        torn, holes = seams(chosen.allocation, maps)
        score = anls(text, sample.answers)
        found[way] = {"anls": score, "tokens": tokens, "merged": parents, "cracks": torn, "holes": holes}
    return found


def answer(model: VLM, question: str, texture: Texture, chosen: Placement) -> str:
    """What the model says to chosen tokens."""
    with torch.no_grad():
        ids = model.adapter.generate(
            question, texture, chosen.allocation, pixels=chosen.pixels, do_sample=False, max_new_tokens=MOST
        )
    return model.adapter.decode(ids)[0].strip()


def seams(allocation: Allocation, relevance: Relevance) -> tuple[float, float]:
    """The share of neighbouring inked cells with a crack between them, and of inked cells that no token covers."""
    scale = delivered_scale(allocation, relevance.grid)[0].cpu().numpy()
    ink = relevance.ink[0].cpu().numpy()
    shown = ink & np.isfinite(scale)
    return cracks(scale, shown), 1 - float(shown.sum() / ink.sum())


def lines(rows: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """One line per way: ANLS, its difference to pixel parents and to one scale, tokens, cracks."""
    pages, found = [row["page"] for row in rows], []
    for way in WAYS:
        own = {name: [row[way][name] for row in rows] for name in rows[0][way]}
        bases = [None if way == other else [row[other]["anls"] for row in rows] for other in ("dag", "resize")]
        gains = [lead(own["anls"], base, pages) for base in bases]
        counts = [f"{mean(own[name]):.1f}" for name in ("tokens", "merged")]
        seen = [f"{mean(own[name]):.3f}" for name in ("cracks", "holes")]
        found.append((way, f"{mean(own['anls']):.3f}", *gains, *counts, *seen))
    return found


def report(record: dict[str, Any]) -> str:
    rows = record["rows"]
    heads = ("tokens", "ANLS", "− dag, pixels", "− resize", "tokens used", "merged", "cracks", "holes")
    return markdown_page(
        "# Merged parents, pixel parents and one scale",
        provenance(record),
        f"{len(rows)} questions of SROIE's {record['split']} split on {len({row['page'] for row in rows})} pages, "
        f"model {record['model']}, budget {record['budget']}, relevance {record['relevance']}, "
        f"device {record['device']}. Intervals: 95 %, paired, by page. The reader was trained on pages of this split, "
        "and never on merged tokens.",
        markdown_table(heads, lines(rows)),
    )


def study(options: argparse.Namespace) -> dict[str, Any]:
    return asked_one_by_one("merged", options, asked, samples_by_set(options, sets=("sroie",)), turn=0.0)


main = study_main(__name__, __doc__, study, report, *ASKING)
