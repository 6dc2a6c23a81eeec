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
from functools import partial
from statistics import mean
from typing import Any

import numpy as np
import torch

from texturevlm.allocate.merge import child_shares
from texturevlm.allocate.value import cracks, delivered_scale
from texturevlm.ask import VLM, load_vlm
from texturevlm.ask.choose import Chosen
from texturevlm.types import Texture
from texturevlm_lab.evaluate.answers import anls
from texturevlm_lab.evaluate.data import Sample, load_data
from texturevlm_lab.evaluate.markdown import format_interval, markdown_page, markdown_table
from texturevlm_lab.evaluate.statistics import paired_difference
from texturevlm_lab.studies.asking import ASKING, asked_once, settings_of
from texturevlm_lab.studies.study import evenly, provenance, study_main

MOST = 48  # tokens of an answer
WAYS = ("resize", "dag", "dag, merged", "dag, all merged", "quadtree", "auto")


def asked(model: VLM, sample: Sample, budget: int, relevance: str) -> dict[str, Any]:
    """ANLS of each way, its tokens, how many of them are merged, cracks and holes."""
    found: dict[str, Any] = {"id": sample.id, "page": sample.image.name}
    session = model.prepare(sample.image)
    for way in WAYS:
        allocator, _, _ = way.partition(",")
        (chosen,) = session.choose(sample.question, budget=budget, relevance=relevance, allocator=allocator)
        maps = chosen.relevance
        if way == "dag, all merged":
            maps = replace(maps, legible_scale=torch.zeros_like(maps.legible_scale))
        shares = child_shares(chosen.allocation, maps, model.adapter.merge) if "merged" in way else None
        text = answer(model, sample.question, session.images[0].original, replace(chosen, shares=shares))
        tokens = int(chosen.allocation.valid.sum())
        parents = 0 if shares is None else int((shares.flatten(2).sum(-1) > 0).sum())
        torn, holes = seams(chosen)
        score = anls(text, sample.answers)
        found[way] = {"anls": score, "tokens": tokens, "merged": parents, "cracks": torn, "holes": holes}
    return found


def answer(model: VLM, question: str, texture: Texture, chosen: Chosen) -> str:
    """What the model says to chosen tokens."""
    with torch.no_grad():
        ids = model.adapter.generate(
            question, texture, chosen.allocation, shares=chosen.shares, do_sample=False, max_new_tokens=MOST
        )
    return model.adapter.decode(ids)[0].strip()


def seams(chosen: Chosen) -> tuple[float, float]:
    """The share of neighbouring inked cells with a crack between them, and of inked cells that no token covers."""
    scale = delivered_scale(chosen.allocation, chosen.relevance.grid)[0].cpu().numpy()
    ink = chosen.relevance.ink[0].cpu().numpy()
    shown = ink & np.isfinite(scale)
    return cracks(scale, shown), 1 - float(shown.sum() / ink.sum())


def lines(rows: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """One line per way: ANLS, its difference to pixel parents and to one scale, tokens, cracks."""
    pages, found = [row["page"] for row in rows], []
    for way in WAYS:
        own = {name: [row[way][name] for row in rows] for name in rows[0][way]}
        gains = []
        for other in ("dag", "resize"):
            theirs = [row[other]["anls"] for row in rows]
            gains.append("–" if way == other else format_interval(paired_difference(own["anls"], theirs, groups=pages)))
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
    torch.set_num_threads(1)
    model = load_vlm(options.model, budget=options.budget, turn=0.0)
    data = load_data(options.data / "sroie", split=options.split, answered=True, skip_broken=True)
    ask = partial(asked, model, budget=options.budget, relevance=options.relevance)
    rows = asked_once(evenly(data.samples, options.limit), ask, options.out / "merged-rows.jsonl")
    return {**settings_of(options), "rows": rows, "device": str(model.device)}


main = study_main(
    __name__,
    __doc__,
    study,
    report,
    *ASKING,
)
