"""Does the scout find the answer, and does the question help? Against `words`, plain maps and controls.

    python -m texturevlm_lab.studies.scout DATA --pages CACHE --out DIR [--limit N]

DATA is a folder like shared/data/docvqa; `eval` questions with boxes are used. All maps are ranked on the scout's
spots, equal values in random order. Reported: how often the whole answer (90% of one of its boxes, or of all where they
are one answer), and how much of it, lies in the highest-ranked 5, 10, 20 and 30% of the page. CACHE keeps RapidOCR's
words. Differences are paired, with a 95% interval from resampling pages. What the scout costs is measured by
`texturevlm bench scout`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from texturevlm.channels.structure import centre_prior
from texturevlm.relevance.words import overlaps, words_map
from texturevlm.scout import Question, Scout, encode, load_scout
from texturevlm.types import Texture
from texturevlm_lab.evaluate.data import Sample, load_data
from texturevlm_lab.evaluate.markdown import format_interval, markdown_page, markdown_table
from texturevlm_lab.studies.relevance import (
    COVERED,
    ENOUGH,
    TOPS,
    channel_maps,
    gain,
    of_another_page,
    ratio,
    shares_within,
)
from texturevlm_lab.studies.study import PAGES, each, evenly, provenance, study_main
from texturevlm_lab.train.pages import ONE_ANSWER, load_page

SCOUT, BLIND, OTHER, WORDS = "scout", "scout without the question", "scout with the question of another page", "words"
RIVALS = (WORDS, BLIND, OTHER)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    samples = load_data(options.data, split="eval").samples
    kept = set(evenly(list(dict.fromkeys(sample.image for sample in samples if sample.boxes)), options.limit))
    chosen = [sample for sample in samples if sample.image in kept]
    if not chosen:
        raise ValueError(f"DATA must hold eval questions with boxes, got {options.data}")
    name = options.data.resolve().name
    located = [sample for sample in chosen if sample.boxes]
    return {"set": name, **measure_recall(located, options.pages, load_scout(), together=name in ONE_ANSWER)}


def measure_recall(samples: Sequence[Sample], cache: Path | None, scout: Scout, *, together: bool) -> dict[str, Any]:
    """Shares of answers in the top of each map; together: all boxes of a sample are one answer."""
    shares: dict[str, list[np.ndarray]] = {}
    by_image: tuple[Path, Any, dict[str, np.ndarray]] = (Path(), None, {})
    for number, sample in enumerate(each(samples, "questions")):
        if sample.image != by_image[0]:
            texture = Texture.open(sample.image).mipmapped()
            spots = scout.read(texture)
            grid = (spots.text.shape[1], spots.text.shape[2])
            plain = {
                BLIND: _array(scout.where(spots, "")),
                "the scout's text map": _array(spots.text.sigmoid()),
                **channel_maps(sample.image, grid),
                "centre bias": centre_prior(torch.empty(1, 1, *grid)).numpy(),
            }
            by_image = (sample.image, spots, plain)
        _, spots, fixed = by_image
        question = encode([sample.question])
        chance = scout.where(spots, question)
        other = of_another_page(samples, number).question
        cells = tuple(chance.shape[1:])
        maps = {
            SCOUT: _array(chance),
            BLIND: fixed[BLIND],
            OTHER: _array(scout.where(spots, other)),
            **{name: _array(scout.where(spots, part)) for name, part in parts_of(question).items()},
            WORDS: words_map(load_page(sample.image, cache), sample.question, cells).numpy(),
            **fixed,
            "oracle": answer_map(_enough(sample, together), cells, sample.size),
        }
        for method, values in maps.items():
            shares.setdefault(method, []).append(answer_shares(values, sample, together=together))
    pages = [str(sample.image) for sample in samples]
    return {
        "questions": len(samples),
        "pages": len(set(pages)),
        "together": together,
        **_compared({method: np.stack(rows) for method, rows in shares.items()}, pages),
    }


def parts_of(question: Question) -> dict[str, Question]:
    """The parts of a question: its words alone, and the kind of answer alone."""
    letters, traits, asked = question
    return {
        "scout with the question's words alone": Question(letters, traits, torch.zeros_like(asked)),
        "scout with the kind of answer alone": Question(torch.full_like(letters, -1), torch.zeros_like(traits), asked),
    }


def _array(values: Tensor) -> np.ndarray:
    array: np.ndarray = values[0].float().numpy()
    return array


def answer_shares(values: np.ndarray, sample: Sample, *, together: bool) -> np.ndarray:
    """(len(TOPS),): how much of the answer is in the top cells; of its best box, or of all together by their area."""
    shares = shares_within(values, sample.boxes, sample.size)
    areas = _areas(sample)
    found: np.ndarray = shares @ (areas / areas.sum()) if together else shares.max(1)
    return found


def _areas(sample: Sample) -> np.ndarray:
    return np.array([(x1 - x0) * (y1 - y0) for x0, y0, x1, y1 in sample.boxes])


def _enough(sample: Sample, together: bool) -> Sequence[Sequence[float]]:
    """The fewest places that are the whole answer: all of them, or the smallest."""
    return sample.boxes if together else [sample.boxes[int(_areas(sample).argmin())]]


def answer_map(boxes: Sequence[Sequence[float]], cells: tuple[int, ...], size: tuple[int, int]) -> np.ndarray:
    """(h, w): how much of each cell lies in boxes, in pixels."""
    corners = np.array(boxes, dtype=float)
    down = overlaps(corners[:, 1], corners[:, 3], cells[0], size[0])
    shares: np.ndarray = down.T @ overlaps(corners[:, 0], corners[:, 2], cells[1], size[1])
    return shares


def _compared(shares: dict[str, np.ndarray], pages: Sequence[str]) -> dict[str, Any]:
    """method → (questions, TOPS) shares: means, what the scout has more than its rivals, and how many times
    what it has without the question."""
    whole = {method: (table >= ENOUGH).astype(float) for method, table in shares.items()}
    columns = range(len(TOPS))
    found = {}
    for name, tables in (("whole", whole), ("share", shares)):
        found[name] = {
            "mean": {method: table.mean(0).tolist() for method, table in tables.items()},
            "difference": {
                rival: [gain(tables[SCOUT][:, top] - tables[rival][:, top], pages) for top in columns]
                for rival in RIVALS
            },
            "ratio": [  # none where the scout finds nothing without the question
                ratio(tables[SCOUT][:, top], tables[BLIND][:, top], pages) if tables[BLIND][:, top].any() else None
                for top in columns
            ],
        }
    return found


def report(record: dict[str, Any]) -> str:
    boxes = "all of the answer's boxes together" if record["together"] else "one of the answer's boxes"
    return markdown_page(
        "# The scout: does it know where the answer is?",
        provenance(record),
        f"{record['questions']} `eval` questions with a located answer on {record['pages']} pages of {record['set']}. "
        f"Every map is ranked on the scout's spots (8×8 of the pixels that it sees, 16×16 of a page of 200 dots an "
        f"inch). Whole: {100 * COVERED:.0f}% of {boxes} is in the top part of the page; share: how much of it is, on "
        "average. `words` are RapidOCR's; the oracle is the box itself.",
        "## Whole answers",
        *_recall_blocks(record["whole"]),
        "## Share of the answer's box",
        *_recall_blocks(record["share"]),
    )


def _recall_blocks(recall: dict[str, Any]) -> list[str]:
    heads = [f"top {100 * top:.0f}%" for top in TOPS]
    rows = [(f"{SCOUT} − {rival}", *map(format_interval, row)) for rival, row in recall["difference"].items()]
    ratios = (format_interval(row, ".2f") if row else "–" for row in recall["ratio"])
    return [
        markdown_table(
            ("map", *heads), [(name, *(f"{mean:.3f}" for mean in means)) for name, means in recall["mean"].items()]
        ),
        "Paired, with a 95% interval from resampling pages:",
        markdown_table(("", *heads), [*rows, (f"{SCOUT} / {BLIND}", *ratios)]),
    ]


main = study_main(__name__, __doc__, measure, report, PAGES)
