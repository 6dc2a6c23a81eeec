"""Variants compared on the pages that the training of the scout held out, all `train`: a setting must not be chosen on
the pages that judge it later. Shared by the studies that choose settings.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from texturevlm.progress import Progress
from texturevlm.rebuilding import median_grey
from texturevlm.types import Allocation, Texture
from texturevlm_lab.evaluate.data import Sample, load_data
from texturevlm_lab.evaluate.legibility import legibility_score
from texturevlm_lab.evaluate.markdown import format_interval, markdown_page, markdown_table
from texturevlm_lab.evaluate.metrics import Delivered
from texturevlm_lab.evaluate.ocr import OcrEngine, cached_engines, open_engines
from texturevlm_lab.evaluate.run import without_colour
from texturevlm_lab.evaluate.statistics import paired_difference
from texturevlm_lab.studies.study import provenance
from texturevlm_lab.train.pages import held_images

BUDGETS, PATCH = (64, 96, 273), 32
MAIN_SET = "docvqa_half"
PAIRED = f"Tokens of {PATCH}×{PATCH}. Differences are paired, with 95% intervals from resampling pages."
# The samples of one page → for each sample: "budget/variant" → its tokens
Variants = Callable[[Texture, Sequence[Sample]], list[dict[str, Allocation]]]


def compare_variants(options: Any, variants: Variants, baseline: str, name: str = MAIN_SET) -> dict[str, Any]:
    """The record of a study: the score of each variant by each engine, and its difference to the baseline.

    name: of the data set
    """
    torch.set_num_threads(1)
    held = held_images(options.data, name)
    samples = load_data(options.data / name, split="train", located=True).samples
    chosen = [sample for sample in samples if sample.image.name in held][: options.limit]
    if not chosen:
        raise ValueError(f"{options.data} must hold questions of held-out documents, got none")
    engines = cached_engines(open_engines(options.ocr.split(",")), options.readings)
    found, pages = measure(chosen, engines, variants)
    rows = {
        engine: {
            key: {
                "score": float(np.mean(scores)),
                "difference": list(paired_difference(scores, own[f"{key.split('/')[0]}/{baseline}"], groups=pages)),
            }
            for key, scores in own.items()
        }
        for engine, own in found.items()
    }
    names = {short: engine.name for short, engine in engines.items()}
    counts = {"set": name, "questions": len(chosen), "pages": len(set(pages))}
    return {"ocr": names, **counts, "baseline": baseline, "rows": rows}


def measure(
    samples: Sequence[Sample], engines: Mapping[str, OcrEngine], variants: Variants
) -> tuple[dict[str, dict[str, list[float]]], list[str]]:
    """engine → "budget/variant" → scores, and the page of each score."""
    found: dict[str, dict[str, list[float]]] = {name: {} for name in engines}
    by_image: dict[Path, list[Sample]] = {}
    for sample in samples:
        by_image.setdefault(sample.image, []).append(sample)
    progress = Progress(len(by_image), "pages")
    for image, own in by_image.items():
        texture = Texture.open(image).mipmapped()
        shown = without_colour(texture)
        grey = median_grey(shown)
        for sample, chosen in zip(own, variants(texture, own)):
            crops = {key: Delivered(shown, grey, allocation).crops(sample) for key, allocation in chosen.items()}
            for name, engine in engines.items():
                texts = iter(engine.read([crop for some in crops.values() for crop in some]))
                for key, some in crops.items():
                    score = legibility_score([next(texts) for _ in some], sample.answers)
                    found[name].setdefault(key, []).append(score)
        progress.step()
    return found, [image.name for image, own in by_image.items() for _ in own]


def counted(record: dict[str, Any]) -> str:
    """What was measured, in a sentence."""
    return (
        f"{record['questions']} located questions on {record['pages']} `train` pages of {record['set']} whose "
        "documents the training of the scout held out."
    )


def variants_table(record: dict[str, Any]) -> str:
    """One row per budget and variant, score and difference by each engine."""
    engines, baseline = record["rows"], record["baseline"]
    rows = []
    for key in sorted(next(iter(engines.values())), key=lambda key: int(key.split("/")[0])):
        budget, _, variant = key.partition("/")
        cells = []
        for own in engines.values():
            lead = "–" if variant == baseline else format_interval(own[key]["difference"])
            cells += [f"{own[key]['score']:.3f}", lead]
        rows.append((budget, variant, *cells))
    heads = [head for name in engines for head in (name, f"difference to {baseline}")]
    return markdown_table(("tokens", "variant", *heads), rows)


def variants_page(title: str, about: str, record: dict[str, Any]) -> str:
    """The report of a study of one data set."""
    return markdown_page(
        f"# {title}",
        provenance(record, *record["ocr"].values()),
        f"{counted(record)} {about} {PAIRED}",
        variants_table(record),
    )
