"""Photographs without a question: `layers` against `density`, by objects and by fidelity.

    python -m texturevlm_lab.studies.photograph_allocators DATA --out DIR [--limit N]

DATA is a folder of photographs with object boxes (shared/data/coco); its split `train` is measured, and every image is
treated as a photograph. Fine tokens on objects is `evaluate.objects`; PSNR is of the rebuilt picture against the image,
over all pixels and over the pixels of objects, at most 50 dB.
"""

import argparse
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from texturevlm.allocate import ALLOCATORS
from texturevlm.rebuilding import rebuild
from texturevlm.relevance import prepare
from texturevlm.types import Allocation, Texture
from texturevlm_lab.evaluate.markdown import format_interval, markdown_page, markdown_table
from texturevlm_lab.evaluate.objects import on_objects, painted
from texturevlm_lab.evaluate.statistics import paired_difference, pooled_ratio
from texturevlm_lab.studies.study import boxes_by_image, provenance, study_main

BUDGETS, PATCH, MOST_DB = (64, 273), 32, 50.0
Compared = Mapping[str, tuple[str, str]]
COMPARED = {"layers": ("none", "layers"), "density": ("none", "density")}  # name → relevance and allocator
MEASURES = {
    "fine_on_objects": "fine tokens on objects",
    "object_iou": "overlap of fine footprints with objects (IoU)",
    "psnr": "PSNR in dB",
    "psnr_objects": "PSNR on objects in dB",
}


def measures(texture: Texture, allocation: Allocation, boxes: Sequence[Sequence[float]]) -> dict[str, float]:
    """The MEASURES of one image's tokens, and the objects' share of its area."""
    picture = rebuild(texture, allocation)[0].clamp(0, 1).double().mean(0)
    error = (picture - texture.levels[0][0].double().mean(0)).square()
    objects = painted(boxes, texture.size)
    found = on_objects(allocation, boxes)
    return {**found, "psnr": _decibel(error), "psnr_objects": _decibel(error[objects] if objects.any() else error)}


def _decibel(error: torch.Tensor) -> float:
    return min(MOST_DB, -10 * math.log10(float(error.mean()) + 1e-12))


def measure(options: argparse.Namespace, compared: Compared = COMPARED) -> dict[str, Any]:
    """The number of images, of those seen as photographs, and "budget/name" → measures, one per image."""
    torch.set_num_threads(1)
    images = boxes_by_image(options.data / "questions.jsonl", "train", options.limit)
    found: dict[str, list[dict[str, float]]] = {}
    photographs = 0
    for image, boxes in images.items():
        texture = Texture.open(options.data / image).mipmapped()
        prepared = prepare(texture, "none", patch=PATCH)
        photographs += bool(prepared.maps.photograph)
        for name, (scorer, allocator) in compared.items():
            relevance = prepared.find(scorer=scorer)
            for budget in BUDGETS:
                allocation = ALLOCATORS[allocator](texture, relevance, budget=budget, patch=PATCH)
                found.setdefault(f"{budget}/{name}", []).append(measures(texture, allocation, boxes))
    return {"images": len(images), "photographs": photographs, "measured": found}


def report(record: dict[str, Any]) -> str:
    title = "# Photographs without a question: `layers` against `density`"
    return compared_page(title, record, COMPARED)


def compared_page(title: str, record: dict[str, Any], compared: Compared) -> str:
    """The table of two choices, with paired 95% bootstrap intervals."""
    first, second = compared
    rows: list[Sequence[object]] = []
    for budget in BUDGETS:
        pair = [record["measured"][f"{budget}/{name}"] for name in compared]
        lifts = [pooled_ratio([one["fine_on_objects"] for one in r], [one["object_area"] for one in r]) for r in pair]
        rows.append((budget, "lift", *(format_interval(lift, ".2f") for lift in lifts), "–", "–"))
        for key, words in MEASURES.items():
            ours, theirs = ([one[key] for one in r] for r in pair)
            more = sum(a > b for a, b in zip(ours, theirs))
            difference = format_interval(paired_difference(ours, theirs))
            means = (f"{np.mean(ours):.3f}", f"{np.mean(theirs):.3f}")
            rows.append((budget, words, *means, difference, f"{more} of {len(ours)}"))
    return markdown_page(
        title,
        provenance(record),
        f"{record['images']} images, split train, {record['photographs']} of which are seen as photographs; tokens of "
        f"{PATCH}×{PATCH}. Differences are paired by image, with 95% bootstrap intervals. Lift: fine tokens on objects "
        "over the objects' share of the area, pooled.",
        markdown_table(("tokens", "measure", first, second, f"{first} − {second}", f"{first} higher in"), rows),
    )


main = study_main(__name__, __doc__, measure, report)
