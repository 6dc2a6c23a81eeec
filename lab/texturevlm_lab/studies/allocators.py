"""Every allocator with the scout at 64 and 273 tokens, on pages, receipts, forms, charts and photographs.

    python -m texturevlm_lab.studies.allocators DATA --out DIR [--sets docvqa,coco] [--limit N] [--words CACHE]
        [--ocr E,E] [--finished]

DATA holds the sets. Each gets a folder with a table: legibility by each OCR engine, or fine tokens on objects and
fidelity for photographs; milliseconds and memory; the question of another page and no question, for `auto`. "all, best
K" is the control of token reduction: the whole image at the file's own resolution is encoded, and only the K tokens of
most relevance are kept. Pages come in the order of a hash of their names, so that those of --limit N, or of a run that
was stopped, are drawn at random; all questions of a page are taken. A stopped run resumes; --finished runs nothing and
makes the tables from the pages that it has.
Charts have no boxes and no `eval` part: theirs are the images whose name has sha256 mod 5 = 0, and answers are located
among the words that RapidOCR reads (CACHE keeps them).
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from texturevlm.allocate import ALLOCATORS
from texturevlm.check import check_choice
from texturevlm_lab.evaluate.data import Data, Sample, load_data
from texturevlm_lab.evaluate.report import publish
from texturevlm_lab.evaluate.run import evaluate
from texturevlm_lab.journal import read_journal
from texturevlm_lab.studies.study import OCR, option, study_main
from texturevlm_lab.train.pages import is_measured_chart, load_page, located, name_hash

BUDGETS, PATCH = (64, 273), 32
BEST_OF_ALL = "all, best K"
TRAINED = "The scout was trained on all but one in twelve of these charts, with answers located in the same way."


class Part(NamedTuple):
    """The samples of a set that are measured, and what a report says about them."""

    samples: Sequence[Sample]
    notes: Sequence[str]


class Measured(NamedTuple):
    """How a set is measured: its part, the relevance, and the metrics."""

    part: Callable[[Path, Path | None], Part]
    relevance: str = "scout"
    metrics: Sequence[str] = ("legibility",)


def _eval_part(folder: Path, words: Path | None) -> Part:
    data: Data = load_data(folder, split="eval", located=True)
    return Part(data.samples, [data.left_out])


def _photographs(folder: Path, words: Path | None) -> Part:
    """One sample per photograph, with all its objects: nothing is asked, so the classes of objects do not differ."""
    data = load_data(folder, split="eval", located=True)
    first = {sample.image: sample for sample in reversed(data.samples)}
    return Part([replace(sample, boxes=sample.objects) for sample in first.values()][::-1], ())


def _charts(folder: Path, words: Path | None) -> Part:
    samples = load_data(folder, split=None).samples
    chosen = [sample for sample in samples if is_measured_chart(sample.image)]
    placed = [
        replace(sample, boxes=tuple(located(load_page(sample.image, words and words / folder.name), sample.answers)))
        for sample in chosen
    ]
    found = [sample for sample in placed if sample.boxes]
    share = f"{len(found)} of {len(chosen)} answers ({100 * len(found) / max(1, len(chosen)):.0f}%) are located by OCR"
    return Part(found, [f"{share}; the others are left out.", TRAINED])


SETS = {
    "docvqa": Measured(_eval_part),
    "docvqa_half": Measured(_eval_part),
    "sroie": Measured(_eval_part),
    "funsd": Measured(_eval_part),
    "chartqa": Measured(_charts),
    "coco": Measured(_photographs, "none", ("objects", "fidelity")),
}


def sampled(samples: Sequence[Sample], pages: int | None) -> list[Sample]:
    """All samples of the pages with the smallest hash, page by page in that order; None takes every page."""
    kept = sorted({sample.image for sample in samples}, key=name_hash)[:pages]
    place = {image: number for number, image in enumerate(kept)}
    return sorted((sample for sample in samples if sample.image in place), key=lambda one: place[one.image])


def finished(samples: Sequence[Sample], folder: Path) -> list[Sample]:
    """The samples whose page has results in a folder: a run writes all rows of a page together."""
    rows = read_journal(folder / "results.jsonl", "a result of this program", dict)
    pages = {row["image"] for row in rows if "image" in row}
    return [sample for sample in samples if sample.image.name in pages]


def all_tokens(size: tuple[int, int]) -> int:
    """How many tokens an image has at its own resolution."""
    rows, columns = (-(-extent // PATCH) for extent in size)
    return rows * columns


def compared() -> dict[str, Any]:
    """Name → allocator; `grid` and `resize` are part of every evaluation."""
    names: dict[str, Any] = {name: name for name in ALLOCATORS if name not in ("resize", "grid")}
    return {**names, BEST_OF_ALL: partial(ALLOCATORS["grid"], share=1e-9)}


def study(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    wanted = options.sets.split(",")
    for name in wanted:
        check_choice("allocators", "--sets", name, SETS)
    for name in wanted:
        print(name, file=sys.stderr)
        measured = SETS[name]
        part = measured.part(options.data / name, options.words)
        samples = sampled(part.samples, options.limit)
        if options.finished:
            samples = finished(samples, options.out / name)
        if not samples:
            wanted_here = "with results" if options.finished else "with a located answer"
            raise ValueError(f"allocators: {options.data / name} must hold samples {wanted_here}, got none")
        evaluation = evaluate(
            samples,
            allocators=compared(),
            relevances=(measured.relevance,),
            budgets=BUDGETS,
            patch=PATCH,
            metrics=measured.metrics,
            ocr=options.ocr.split(","),
            controlled=("auto",),
            out=options.out / name,
        )
        pages, every = ({sample.image for sample in some} for some in (samples, part.samples))
        encoded = median(all_tokens(sample.size) for sample in samples)
        notes = [
            f"Command: `{options.command}`.",
            f"{len(samples)} samples on {len(pages)} of {len(every)} images of {name}.",
            *part.notes,
            f'"{BEST_OF_ALL}" encodes the whole image at its own resolution first, {encoded:.0f} tokens in the median.',
        ]
        publish(evaluation, options.out / name, title=f"Allocators on {name}", notes=notes)


OPTIONS = (
    option("--sets", default=",".join(SETS), metavar="A,B", help="data sets (default: all)"),
    option("--words", type=Path, metavar="CACHE", help="cache of the words of charts, one folder per set"),
    option("--finished", action="store_true", help="run nothing: tables of the pages that a stopped run has"),
)
main = study_main(__name__, __doc__, study, None, OCR, *OPTIONS)
