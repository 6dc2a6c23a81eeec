"""Do a model's answers follow legibility, question by question? And is what it calls unreadable illegible?

    python -m texturevlm_lab.studies.reader_legibility DATA --out results [--split eval] [--limit N] [--ocr E,E]
        [--at-once N]

DATA holds sroie/, funsd/ and docvqa/. Each question with a located answer is asked with tokens of several choosers and
budgets, and OCR engines read the answer's lines from the same tokens. Answers are compared with what OCR could read:
over all choosers and budgets together, and within each, where only questions differ. A model may also say how likely it
was to answer that it cannot read: that chance is compared with what OCR could not read, and with wrong answers.
"""

import argparse
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise, product
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from texturevlm.ask import VLM, load_vlm
from texturevlm.rebuilding import median_grey
from texturevlm_lab.evaluate.answers import anls
from texturevlm_lab.evaluate.data import Sample, load_data
from texturevlm_lab.evaluate.markdown import markdown_page, markdown_table
from texturevlm_lab.evaluate.metrics import Delivered
from texturevlm_lab.evaluate.ocr import OcrEngine, open_engines
from texturevlm_lab.studies.asking import page_by_page
from texturevlm_lab.studies.study import (
    AT_ONCE,
    MODEL,
    OCR,
    SPLIT,
    evenly,
    mean_by_page,
    provenance,
    read_scores,
    study_main,
)

SETS = ("sroie", "funsd", "docvqa")
CHOOSERS = {"the scout": "scout", "no question": "none", "resize": "none"}  # and the relevance of each
BUDGETS = (64, 96, 273)
LEGIBLE = 0.5  # the least ANLS of what OCR read, and of a right answer
EDGES = (0.0, 0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98, 1.0)  # bins of the chance that it cannot be read
MOST = 160  # tokens of an answer


class Judged(NamedTuple):
    """A question under one chooser and budget: its id and page, the score of the answer, the chance of "unreadable" if
    the model has such an answer, and legibility by each engine."""

    chooser: str
    budget: int
    question: str
    page: str
    answer: float
    unreadable: float | None
    legibility: dict[str, float]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    engines = open_engines(options.ocr.split(","))
    by_set = {}
    for name in SETS:
        data = load_data(options.data / name, split=options.split, located=True, answered=True, skip_broken=True)
        by_set[name] = evenly(data.samples, options.limit)
    found: dict[str, list[Judged]] = {name: [] for name in SETS}
    given = (options.model, options.ocr)
    for name, _, own in page_by_page("reader_legibility", options, by_set, _judged, *given):
        found[name] += [Judged(*row) for row in own]
    rows = {name: [row._asdict() for row in own] for name, own in found.items()}
    named = {name: engine.name for name, engine in engines.items()}
    return {"model": options.model, "split": options.split, "engines": named, "sets": rows}


@cache
def _loaded(model: str, ocr: str, threads: int) -> tuple[VLM, dict[str, OcrEngine]]:
    """The model and the engines of this process."""
    torch.set_num_threads(threads)
    return load_vlm(model, turn=0, captured=False), open_engines(ocr.split(","))


def _judged(samples: Sequence[Sample], model: str, ocr: str, threads: int) -> list[Judged]:
    return judged(samples, *_loaded(model, ocr, threads))


def judged(samples: Sequence[Sample], model: VLM, engines: dict[str, OcrEngine]) -> list[Judged]:
    """Questions about one page by every chooser and budget."""
    session, found = model.prepare(samples[0].image), []
    image = session.pictures[0].original
    grey = median_grey(image)
    for sample in samples:
        settings, answers = list(product(CHOOSERS, BUDGETS)), []
        for chooser, budget in settings:
            how: dict[str, Any] = {"budget": budget, "relevance": CHOOSERS[chooser], "max_new_tokens": MOST}
            if chooser == "resize":
                how["allocator"] = "resize"
            answers.append(session.ask(sample.question, return_details=True, **how))
        crops = {n: Delivered(image, grey, one.placements[0].given).crops(sample) for n, one in enumerate(answers)}
        read = {name: read_scores(engine, crops, sample.answers) for name, engine in engines.items()}
        for number, (setting, answer) in enumerate(zip(settings, answers)):
            score, legibility = anls(answer.text, sample.answers), {name: own[number] for name, own in read.items()}
            found.append(Judged(*setting, sample.id, sample.image.name, score, answer.unreadable, legibility))
    return found


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's, equal values sharing their mean rank; nan where one side is constant."""
    ranks = [_ranks(np.asarray(values)) for values in (one, other)]
    if any(np.ptp(rank) == 0 for rank in ranks):
        return float("nan")
    return float(np.asarray(np.corrcoef(ranks))[0, 1])


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = count.cumsum()
    middle: NDArray[np.float64] = (last - (count - 1) / 2)[place]
    return middle


def report(record: dict[str, Any]) -> str:
    engines, by_set = list(record["engines"]), _rows(record)
    parts = []
    for name, rows in by_set.items():
        count = len({row.question for row in rows})
        parts += [
            f"## {name}",
            f"{count} questions with a located answer. All choosers and budgets together:",
            _by_engine(rows, engines),
            "Each chooser, by each judge; behind an engine's mean its rank correlation with the answers of that row:",
            _by_chooser(rows, engines),
        ]
    return markdown_page(
        "# Answers and legibility, question by question",
        provenance(record, *record["engines"].values()),
        f"{record['model']}, {record['split']} split. OCR reads the lines of the answer from the tokens that the model "
        f"was given; pages are not turned. An answer is legible to an engine if what it reads has "
        f"an ANLS of at least {LEGIBLE}. 95% intervals by resampling pages.",
        *parts,
        "## What the model calls unreadable",
        "All answers, by the chance that the model gave to the answer that it cannot read: the mean of that chance, "
        f"the share that no engine reads, and the share whose answer is wrong (ANLS below {LEGIBLE}).",
        _by_chance([row for rows in by_set.values() for row in rows]),
    )


def _rows(record: dict[str, Any]) -> dict[str, list[Judged]]:
    return {name: [Judged(**row) for row in rows] for name, rows in record["sets"].items()}


def _by_engine(rows: Sequence[Judged], engines: Sequence[str]) -> str:
    table = []
    for engine in engines:
        cells = []
        for legible in (True, False):
            some = [row for row in rows if (row.legibility[engine] >= LEGIBLE) == legible]
            cells.append(mean_by_page([row.answer for row in some], [row.page for row in some]))
        table.append([engine, *cells, _followed(rows, engine)])
    return markdown_table(["OCR engine", "answers where legible", "where not", "rank correlation"], table)


def _followed(rows: Sequence[Judged], engine: str, before: str = "") -> str:
    """How answers follow an engine's legibility; nothing where either is the same for all."""
    ranked = rank_correlation([row.legibility[engine] for row in rows], [row.answer for row in rows])
    return "" if np.isnan(ranked) else f"{before}{ranked:.2f}"


def _by_chooser(rows: Sequence[Judged], engines: Sequence[str]) -> str:
    table = []
    for budget, chooser in product(BUDGETS, CHOOSERS):
        own = [row for row in rows if (row.budget, row.chooser) == (budget, chooser)]
        if own:
            cells = [f"{mean(row.legibility[one] for row in own):.3f}{_followed(own, one, ', ')}" for one in engines]
            table.append([chooser, budget, len(own), *cells, f"{mean(row.answer for row in own):.3f}"])
    return markdown_table(["chooser", "tokens", "questions", *engines, "answers"], table)


def _by_chance(rows: Sequence[Judged]) -> str:
    table = []
    for low, high in pairwise(EDGES):
        own = [row for row in rows if row.unreadable is not None and low <= row.unreadable < high + (high == 1)]
        if own:
            shares: list[Callable[[Judged], bool]] = [
                lambda row: all(score < LEGIBLE for score in row.legibility.values()),
                lambda row: row.answer < LEGIBLE,
            ]
            cells = [f"{mean(share(row) for row in own):.3f}" for share in shares]
            table.append([f"{low:g} to {high:g}", len(own), f"{mean(row.unreadable or 0 for row in own):.3f}", *cells])
    return markdown_table(["chance", "answers", "mean chance", "no engine reads it", "wrong"], table)


main = study_main(__name__, __doc__, measure, report, MODEL, SPLIT, OCR, AT_ONCE)
