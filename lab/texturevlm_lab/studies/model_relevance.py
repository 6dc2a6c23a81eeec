"""Relevance by the model itself: does its attention to a coarse view find the answer, and do its answers gain?

    python -m texturevlm_lab.studies.model_relevance DATA --out results [--limit N] [--model reader] [--split train]
        [--budget 96]

DATA holds sroie/ and funsd/. Each question is asked three times with as many tokens: chosen without it (none), by the
scout, and by the model's own attention to a view of 64 tokens, which are not kept (model). Measured are the answers,
and the share of the answer's boxes in the tenth of the area with the most relevance. No pretrained model can be had on
the machines that built this, and our own reader knows print alone: what a model's own look finds in a photograph is not
measured.
"""

import argparse
from functools import partial
from typing import Any

import numpy as np

from texturevlm.ask import VLM
from texturevlm_lab.evaluate.answers import anls
from texturevlm_lab.evaluate.asked_page import box_map
from texturevlm_lab.evaluate.data import Sample
from texturevlm_lab.evaluate.markdown import markdown_page, markdown_table
from texturevlm_lab.studies.asking import ASKING, asked_one_by_one
from texturevlm_lab.studies.place_measures import top_share
from texturevlm_lab.studies.study import lead, provenance, study_main

BY = ("none", "scout", "model")
MOST = 48  # tokens of an answer
SCORES = {"anls": "ANLS", "top": "answer in the top tenth"}


def asked(model: VLM, sample: Sample, options: argparse.Namespace) -> dict[str, Any]:
    """What each relevance reaches."""
    found: dict[str, Any] = {}
    session = model.prepare(sample.image)
    for relevance in BY:
        how: Any = {"budget": options.budget, "relevance": relevance, "turn": 0.0, "max_new_tokens": MOST}
        answer = session.ask(sample.question, return_details=True, **how)
        mass = answer.placements[0].relevance.mass[0].cpu()
        place = box_map(sample.boxes, sample.size, (mass.shape[0], mass.shape[1]))
        found[relevance] = {
            "anls": anls(answer.text, sample.answers),
            "top": top_share(mass, place) if place.any() else 0.0,
        }
    return found


def report(record: dict[str, Any]) -> str:
    rows = record["rows"]
    pages = [row["page"] for row in rows]
    table = []
    for relevance in BY:
        cells = []
        for score in SCORES:
            own = [row[relevance][score] for row in rows]
            bases = [None if relevance == other else [row[other][score] for row in rows] for other in BY[:2]]
            cells += [f"{np.mean(own):.3f}", *(lead(own, base, pages) for base in bases)]
        table.append((relevance, *cells))
    heads = [head for name in SCORES.values() for head in (name, "− none", "− scout")]
    return markdown_page(
        "# Relevance by the model's own look",
        provenance(record),
        f"{len(rows)} questions of the {record['split']} split on {len(set(pages))} pages of SROIE and FUNSD, model "
        f"{record['model']}, {record['budget']} tokens, one thread of a CPU. `model`: the attention of the model to 64 "
        "tokens of the whole page at one scale, which are not kept, decides where all tokens go; `scout` and `none` as "
        "everywhere. Intervals: 95 %, paired, by page. The reader was trained on pages of this split.",
        markdown_table(("relevance", *heads), table),
    )


main = study_main(__name__, __doc__, partial(asked_one_by_one, "model_relevance", asked=asked), report, *ASKING)
