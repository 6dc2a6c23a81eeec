"""How finely a reader must see print: its answers when choosers count print as finer than OCR needs it.

    python -m studies.reader_finer DATA --out results [--limit N] [--model reader] [--split train] [--at-once N]

DATA holds folders of questions, such as `studies.rewritten_pages` makes. For each number the model is asked as if its
config said so (`finer`, vlm/finer.py): tokens by the scout, and small images enlarged where it is above 1. N processes
share the pages.
"""

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from itertools import product, repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from studies.study import MODEL, SPLIT, evenly, option, provenance, study_main
from texturevlm.ask import VLM, load_vlm
from texturevlm.check import check_count
from texturevlm.evaluate.answers import anls
from texturevlm.evaluate.data import Sample, load_data
from texturevlm.evaluate.markdown import format_interval, markdown_page, markdown_table
from texturevlm.evaluate.statistics import paired_difference
from texturevlm.progress import Progress
from texturevlm.vlm.finer import Finer

FINER = (1.6, 1.01, 2.2, 3.0)  # all are compared with the first; 1.01: images are enlarged, and no more
BUDGETS = (64, 96, 273)
MOST = 60  # tokens of an answer
Scores = dict[str, list[float]]  # "FINER BUDGET" → the score of each question


def measure(options: argparse.Namespace) -> dict[str, Any]:
    check_count("reader_finer", "--at-once", options.at_once, 1)
    folders = sorted(path.parent for path in options.data.glob("*/questions.jsonl"))
    if not folders:
        raise FileNotFoundError(f"DATA must hold folders with questions.jsonl, got {options.data}")
    asked = {folder.name: evenly(load_data(folder, split=options.split).samples, options.limit) for folder in folders}
    pages: dict[Path, list[Sample]] = {}
    for sample in (sample for samples in asked.values() for sample in samples):
        pages.setdefault(sample.image, []).append(sample)
    pages = dict(sorted(pages.items(), key=lambda page: -len(page[1])))  # no process is left with a long one at the end
    given = (list(pages.values()), repeat(options.model), repeat(torch.get_num_threads() // options.at_once or 1))
    found: dict[int, dict[str, float]] = {}  # by the identity of a question
    progress = Progress(len(pages), "pages")
    context = get_context("spawn")  # CUDA does not survive a fork
    with ProcessPoolExecutor(options.at_once, mp_context=context) as pool:
        for samples, by_setting in zip(pages.values(), pool.map(_answered, *given)):
            for number, sample in enumerate(samples):
                found[id(sample)] = {key: own[number] for key, own in by_setting.items()}
            progress.step()
    scores = {
        name: {key: [found[id(sample)][key] for sample in samples] for key in map(_key, product(FINER, BUDGETS))}
        for name, samples in asked.items()
    }
    names = {name: [sample.image.name for sample in samples] for name, samples in asked.items()}
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {"model": options.model, "split": options.split, "scores": scores, "pages": names, "device": device}


def _key(setting: tuple[float, int]) -> str:
    finer, budget = setting
    return f"{finer:g} {budget}"


@cache
def _loaded(name: str, threads: int) -> VLM:
    """The model of this process."""
    torch.set_num_threads(threads)
    return load_vlm(name, relevance="scout", captured=False)  # graphs per budget do not pay


def _answered(samples: Sequence[Sample], name: str, threads: int) -> Scores:
    """The scores of the questions about one page, by all settings."""
    model, found = _loaded(name, threads), {}
    for finer in FINER:
        model.adapter.trained = replace(model.adapter.trained, finer=Finer(((1, finer),)))
        session = model.prepare(samples[0].image)
        for budget in BUDGETS:
            texts = [session.ask(one.question, budget=budget, max_new_tokens=MOST) for one in samples]
            found[_key((finer, budget))] = [anls(text, one.answers) for text, one in zip(texts, samples)]
    return found


def report(record: dict[str, Any]) -> str:
    table = []
    for name, own in record["scores"].items():
        for finer in FINER:
            cells = []
            for budget in BUDGETS:
                ours, base = own[_key((finer, budget))], own[_key((FINER[0], budget))]
                mean = f"{sum(ours) / len(ours):.3f}"
                difference = format_interval(paired_difference(ours, base, groups=record["pages"][name]))
                cells.append(mean if finer == FINER[0] else f"{mean}, {difference}")
            table.append([name, len(record["pages"][name]), f"{finer:g}", *cells])
    return markdown_page(
        "# How finely a reader must see print",
        f"{record['model']}, tokens by the scout, split {record['split']}. ANLS; behind it the difference to the first "
        "row of the set, paired, with 95% intervals by resampling pages. Print counts as so many times finer than OCR "
        "needs it; above 1, images with at most 1.25 million pixels are shown at twice their size (1.01: that alone).",
        markdown_table(["set", "questions", "finer", *(f"{budget} tokens" for budget in BUDGETS)], table),
        provenance(record, record["device"]),
    )


AT_ONCE = option("--at-once", type=int, default=1, metavar="N", help="processes (default: 1)")
main = study_main(__name__, __doc__, measure, report, MODEL, SPLIT, AT_ONCE)
