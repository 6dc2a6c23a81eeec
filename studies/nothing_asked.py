"""Nothing is asked: is the salience of the page the better guess, or what the scout learned about usual questions?

    python -m studies.nothing_asked DATA --out DIR [--limit N] [--ocr E,E] [--readings DIR]

DATA holds the sets that the scout was trained on. Measured are the located questions of the docvqa_half documents that
its training held out, all `train`: a choice between the two must not be made on pages that judge it later. The scout
was trained with one question in twenty left out, so it answers an empty question with what is usually asked. `auto`
takes the tokens; legibility by each OCR engine; intervals from resampling pages.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from studies.study import OCR, READINGS, provenance, study_main
from texturevlm.allocate import ALLOCATORS
from texturevlm.evaluate.data import Sample, load_data
from texturevlm.evaluate.legibility import legibility_score
from texturevlm.evaluate.markdown import format_interval, markdown_page, markdown_table
from texturevlm.evaluate.metrics import Delivered
from texturevlm.evaluate.ocr import OcrEngine, cached_engines, open_engines
from texturevlm.evaluate.run import without_colour
from texturevlm.evaluate.statistics import paired_difference
from texturevlm.progress import Progress
from texturevlm.rebuilding import median_grey
from texturevlm.relevance import Balance, ImageMaps, Relevance, ScoutScorer, prepare
from texturevlm.scout import encode, load_scout
from texturevlm.train.pages import SETS, TrainingPage, held_out, train_rows
from texturevlm.types import Texture

BUDGETS, PATCH = (64, 96, 273), 32
MAIN_SET = "docvqa_half"
SALIENCE, PRIOR = "salience", "scout, nothing asked"
EXPLORE = (0.1, 0.5)  # shares of salience in the mixture that are tried


def held_documents(data: Path) -> set[str]:
    """Images of the main set whose documents the training of the scout held out."""
    rows = [(name, row) for name in SETS for row in train_rows(data, name, None)]
    empty = np.zeros((1, 1), np.uint8)
    pages = [TrainingPage(empty, (), (), name, f"{name}/{row.get('document', row['image'])}") for name, row in rows]
    return {Path(row["image"]).name for (name, row), held in zip(rows, held_out(pages)) if held and name == MAIN_SET}


def guesses(texture: Texture) -> dict[str, Relevance]:
    """The relevance by each method."""
    prepared = prepare(texture, "none", patch=PATCH)
    maps: ImageMaps = prepared.maps
    found = {SALIENCE: Balance().weigh(None, maps, texture.size)}
    query = _prior(texture, maps)
    for explore in EXPLORE:
        balance = Balance(explore=explore)
        found[f"{PRIOR}, {explore:g} of salience"] = balance.weigh(query, maps, texture.size, "scout")
    return found


def _prior(texture: Texture, maps: ImageMaps) -> Tensor:
    """Where the scout expects the answer to an unknown question."""

    query, _ = ScoutScorer().score(load_scout().read(texture), encode([""]), maps)
    assert query is not None  # an encoded question always counts as asked
    return query


def measure(samples: Sequence[Sample], engines: Mapping[str, OcrEngine]) -> dict[str, dict[str, list[float]]]:
    """engine → "budget/method" → scores, in the order of the samples, whose pages follow one another."""
    found: dict[str, dict[str, list[float]]] = {name: {} for name in engines}
    pages: dict[Path, list[Sample]] = {}
    for sample in samples:
        pages.setdefault(sample.image, []).append(sample)
    progress = Progress(len(pages), "pages")
    for image, own in pages.items():
        texture = Texture.open(image).mipmapped()
        shown = without_colour(texture)
        grey = median_grey(shown)
        for method, relevance in guesses(texture).items():
            for budget in BUDGETS:
                allocation = ALLOCATORS["auto"](texture, relevance, budget=budget, patch=PATCH)
                crops = [Delivered(shown, grey, allocation).crops(sample) for sample in own]
                for name, engine in engines.items():
                    texts = iter(engine.read([crop for some in crops for crop in some]))
                    scores = [
                        legibility_score([next(texts) for _ in some], sample.answers)
                        for sample, some in zip(own, crops)
                    ]
                    found[name].setdefault(f"{budget}/{method}", []).extend(scores)
        progress.step()
    return found


def study(options: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(1)
    held = held_documents(options.data)
    samples = load_data(options.data / MAIN_SET, split="train", located=True).samples
    chosen = [sample for sample in samples if sample.image.name in held][: options.limit]
    if not chosen:
        raise ValueError(f"nothing_asked: {options.data} must hold questions of held-out documents, got none")
    engines = cached_engines(open_engines(options.ocr.split(",")), options.readings)
    found = measure(chosen, engines)
    pages = [sample.image.name for sample in chosen]
    rows = {
        name: {
            key: {
                "score": float(np.mean(scores)),
                "difference": list(paired_difference(scores, own[f"{key.split('/')[0]}/{SALIENCE}"], groups=pages)),
            }
            for key, scores in own.items()
        }
        for name, own in found.items()
    }
    names = {name: engine.name for name, engine in engines.items()}
    return {"ocr": names, "questions": len(chosen), "pages": len(set(pages)), "rows": rows}


def report(record: dict[str, Any]) -> str:
    engines = record["rows"]
    rows = []
    for key in next(iter(engines.values())):
        budget, _, method = key.partition("/")
        cells = []
        for own in engines.values():
            lead = "–" if method == SALIENCE else format_interval(own[key]["difference"])
            cells += [f"{own[key]['score']:.3f}", lead]
        rows.append((budget, method, *cells))
    rows.sort(key=lambda row: int(row[0]))
    heads = [head for name in engines for head in (name, "difference to salience")]
    return markdown_page(
        "# Nothing is asked: salience against what the scout knows about usual questions",
        provenance(record, *record["ocr"].values()),
        f"{record['questions']} located questions on {record['pages']} `train` pages of {MAIN_SET} whose documents the "
        f"training of the scout held out. Legibility of answers to questions that were not asked; allocator `auto`, "
        f"tokens of {PATCH}×{PATCH}. Differences are paired, with 95% intervals from resampling pages.",
        markdown_table(("tokens", "relevance", *heads), rows),
    )


main = study_main(__name__, __doc__, study, report, OCR, READINGS)
