"""The channel scorer against the hand-made salience: answer boxes of pages and charts, objects of photographs.

    python -m texturevlm_lab.studies.channel_relevance DATA --words CACHE --out DIR [--limit N]

DATA holds docvqa and coco, whose `eval` split is measured, and chartqa, which has none: the charts that training held
out are measured, their answers located among the words of CACHE. --limit is the number of images per data set. Pages
and charts: the share of questions of which 90% of one answer box lies in the tenth of the area that a map ranks highest
(as in relevance.py). Photographs: the share of fine tokens on objects at 64 tokens. Differences are paired, with 95%
intervals from resampling images.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from texturevlm import Texture, choose_tokens
from texturevlm.allocate.footprints import Box
from texturevlm.relevance import ChannelScorer, Prepared, ScoutScorer
from texturevlm_lab.evaluate.data import load_data
from texturevlm_lab.evaluate.markdown import format_interval, markdown_page, markdown_table
from texturevlm_lab.evaluate.objects import on_objects
from texturevlm_lab.studies.relevance import TOPS, found_within, gain
from texturevlm_lab.studies.study import by_page, each, evenly, option, provenance, study_main
from texturevlm_lab.train.channel_task import is_held_out
from texturevlm_lab.train.pages import CHARTS, load_page, located

TENTH = TOPS.index(0.1)
BUDGET = 64
SALIENCE, CHANNELS, ASKED = "salience", "channels, no question", "channels"
Places = dict[Path, list[tuple[str, tuple[Box, ...]]]]


def pages_of(folder: Path, limit: int | None) -> Places:
    """image → its questions with the boxes of their answers."""
    found = by_page(load_data(folder, split="eval", located=True).samples)
    return {path: [(one.question, one.boxes) for one in found[path]] for path in evenly(list(found), limit)}


def charts_of(folder: Path, words: Path, limit: int | None) -> Places:
    """The same of the charts that training held out, where an answer is printed."""
    found: Places = {}
    for sample in load_data(folder, split="train").samples:
        if is_held_out(sample.image):
            boxes = tuple(located(load_page(sample.image, words), sample.answers))
            if boxes:
                found.setdefault(sample.image, []).append((sample.question, boxes))
    return {path: found[path] for path in evenly(list(found), limit)}


@torch.inference_mode()
def on_paper(places: Places, kind: str) -> dict[str, Any]:
    """How often each map has an answer in its top tenth."""
    hits: dict[str, list[float]] = {}
    images: list[str] = []
    scorer = ChannelScorer(kind=kind)
    for path, questions in each(places.items(), f"{kind}s"):
        texture = Texture.open(path).mipmapped()
        prepared = Prepared(texture, scorer=scorer)
        plain, reading = prepared.maps.salience, prepared.reading(scorer)
        blind, _ = scorer.score(reading, "", prepared.maps)
        for question, boxes in questions:
            maps = {SALIENCE: plain, CHANNELS: blind}
            maps[ASKED] = scorer.score(reading, question, prepared.maps)[0]
            # The scout has read the image for the question's term; a question without words has no such term.
            spots = reading.kept.get("spots")
            asked = None if spots is None else ScoutScorer().score(spots, question, prepared.maps)[0]
            maps["scout"] = plain if asked is None else asked
            for name, values in maps.items():
                hit = found_within(values[0].numpy(), boxes, texture.size)[TENTH]
                hits.setdefault(name, []).append(float(hit))
            images.append(str(path))
    return compared(hits, images)


@torch.inference_mode()
def on_photographs(folder: Path, limit: int | None) -> dict[str, Any]:
    """The share of fine tokens on objects."""
    objects = {sample.image: sample.objects for sample in load_data(folder, split="eval", located=True).samples}
    shares: dict[str, list[float]] = {}
    chosen, scorer = evenly(list(objects), limit), ChannelScorer(kind="photograph")
    for path in each(chosen, "photographs"):
        texture = Texture.open(path).mipmapped()
        for name, relevance in ((SALIENCE, "none"), (CHANNELS, scorer)):
            found = choose_tokens(texture, budget=BUDGET, relevance=relevance)
            shares.setdefault(name, []).append(on_objects(found, objects[path])["fine_on_objects"])
    return compared(shares, list(map(str, chosen)))


def compared(values: dict[str, list[float]], images: Sequence[str]) -> dict[str, Any]:
    """The mean per map, and its difference to salience."""
    base = np.array(values[SALIENCE])
    scores = {
        name: {"mean": float(np.mean(own)), "gain": gain(np.array(own) - base, images)} for name, own in values.items()
    }
    return {"images": len(set(images)), "questions": len(images), "scores": scores}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    if options.words is None:
        raise ValueError("--words must be a cache of the words of charts, got none")
    return {
        "pages (docvqa, eval)": on_paper(pages_of(options.data / "docvqa", options.limit), "page"),
        "charts (chartqa, held out)": on_paper(
            charts_of(options.data / CHARTS, options.words / CHARTS, options.limit), "chart"
        ),
        "photographs (coco, eval)": on_photographs(options.data / "coco", options.limit),
    }


def report(record: dict[str, Any]) -> str:
    rows = []
    for kind, found in record.items():
        if isinstance(found, dict) and "scores" in found:
            for name, score in found["scores"].items():
                count = f"{found['questions']} on {found['images']}"
                own = "–" if name == SALIENCE else format_interval(score["gain"])
                rows.append((kind, count, name, f"{score['mean']:.3f}", own))
    return markdown_page(
        "# Relevance by channels against the hand-made salience",
        provenance(record),
        "Pages and charts: the share of questions whose answer lies in the tenth of the area that a map ranks highest. "
        f"Photographs: the share of fine tokens on objects, {BUDGET} tokens. `eval` has no charts: those that training "
        "held out are measured, told apart as charts by hand. The scout reads the question; salience does not.",
        markdown_table(("images", "questions on images", "map", "mean", "difference to salience"), rows),
    )


main = study_main(
    __name__, __doc__, measure, report, option("--words", type=Path, metavar="CACHE", help="words of charts, by OCR")
)
