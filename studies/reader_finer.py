"""How finely a reader must see print: its answers when choosers count print as finer than OCR needs it.

    python -m studies.reader_finer DATA --out results [--limit N] [--model reader] [--split train]

DATA holds folders of questions, such as `studies.rewritten_pages` makes. For each number the model is asked as if its
config said so (`finer`, vlm/trained.py): tokens by the scout, and small images enlarged where it is above 1.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from studies.study import MODEL, SPLIT, evenly, provenance, study_main
from texturevlm.ask import load_vlm
from texturevlm.evaluate.answers import anls
from texturevlm.evaluate.data import Sample, load_data
from texturevlm.evaluate.markdown import format_interval, markdown_page, markdown_table
from texturevlm.evaluate.statistics import paired_difference
from texturevlm.progress import Progress

FINER = (1.0, 1.01, 1.3, 1.6, 2.2)  # all are compared with the first; 1.01: images are enlarged, and no more
BUDGETS = (96, 273)
MOST = 60  # tokens of an answer


def measure(options: argparse.Namespace) -> dict[str, Any]:
    folders = sorted(path.parent for path in options.data.glob("*/questions.jsonl"))
    if not folders:
        raise FileNotFoundError(f"DATA must hold folders with questions.jsonl, got {options.data}")
    asked = {folder.name: evenly(load_data(folder, split=options.split).samples, options.limit) for folder in folders}
    model = load_vlm(options.model, relevance="scout")
    progress = Progress(sum(map(len, asked.values())) * len(FINER) * len(BUDGETS), "answers")
    scores: dict[str, dict[str, list[float]]] = {}
    for name, samples in asked.items():
        scores[name] = {}
        for finer in FINER:
            model.adapter.trained = replace(model.adapter.trained, finer=finer)
            for budget in BUDGETS:
                scores[name][f"{finer:g} {budget}"] = _answered(model, samples, budget, progress)
    pages = {name: [sample.image.name for sample in samples] for name, samples in asked.items()}
    return {"model": options.model, "split": options.split, "scores": scores, "pages": pages}


def _answered(model: Any, samples: list[Sample], budget: int, progress: Progress) -> list[float]:
    """The score of each answer; the questions about one page are asked together."""
    by_page: dict[Path, list[int]] = {}
    for number, sample in enumerate(samples):
        by_page.setdefault(sample.image, []).append(number)
    found = [0.0] * len(samples)
    for page, numbers in by_page.items():
        texts = model.ask(page, [samples[one].question for one in numbers], budget=budget, max_new_tokens=MOST)
        for number, text in zip(numbers, texts):
            found[number] = anls(text, samples[number].answers)
            progress.step()
    return found


def report(record: dict[str, Any]) -> str:
    table = []
    for name, own in record["scores"].items():
        for finer in FINER:
            cells = []
            for budget in BUDGETS:
                ours, base = own[f"{finer:g} {budget}"], own[f"{FINER[0]:g} {budget}"]
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
        provenance(record),
    )


main = study_main(__name__, __doc__, measure, report, MODEL, SPLIT)
