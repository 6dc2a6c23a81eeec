"""The steepness of the legibility curve that allocators spend tokens by: the shipped one against the one fitted again.

    python -m texturevlm_lab.studies.steepness DATA --out DIR [--limit N] [--ocr E,E] [--readings DIR]

`readable_height` fits the curve to text whose height is known. An allocator knows the legible scale of a cell only by
an estimate, which makes the best curve flatter; so the steepness is chosen by the legibility that it leads to, with
`auto` and the scout, on pages that the training of the scout held out (held_out.py).
"""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

from texturevlm.allocate import ALLOCATORS, cells
from texturevlm.ops import legibility
from texturevlm.relevance import prepare
from texturevlm.types import Allocation, Texture
from texturevlm_lab.evaluate.data import Sample
from texturevlm_lab.studies import held_out
from texturevlm_lab.studies.study import OCR, READINGS, study_main

SHIPPED = legibility.STEEPNESS
TRIED = (SHIPPED, 7.0)  # 7.0: between what Tesseract and RapidOCR give in results/readable-height.md


@contextmanager
def steepness(value: float) -> Iterator[None]:
    """Allocate on the CPU with another steepness."""

    def worth(self: cells.Cells, scale: float) -> cells.Array:
        mass, legible_scale = self.live_maps
        ratio = np.float32(scale) / legible_scale
        return cells._units(mass, 1 / (1 + ratio ** np.float32(value)))

    with (
        patch.object(legibility, "STEEPNESS", value),
        patch.object(cells, "STEEPNESS", value),
        patch.object(cells.Cells, "worth", worth),  # it has the power of the kernels in closed form
    ):
        yield


def variants(texture: Texture, samples: Sequence[Sample]) -> list[dict[str, Allocation]]:
    """For each sample its tokens by each steepness."""
    prepared = prepare(texture, "scout", patch=held_out.PATCH)
    found: list[dict[str, Allocation]] = []
    for sample in samples:
        relevance = prepared.find(sample.question)
        chosen = {}
        for value in TRIED:
            with steepness(value):
                for budget in held_out.BUDGETS:
                    tokens = ALLOCATORS["auto"](texture, relevance, budget=budget, patch=held_out.PATCH)
                    chosen[f"{budget}/{value:g}"] = tokens
        found.append(chosen)
    return found


def study(options: argparse.Namespace) -> dict[str, Any]:
    return held_out.compare_variants(options, variants, f"{SHIPPED:g}")


def report(record: dict[str, Any]) -> str:
    about = "Legibility with the scout and `auto`, whose legibility curve has the steepness of the variant."
    return held_out.variants_page("Which steepness of the legibility curve", about, record)


main = study_main(__name__, __doc__, study, report, OCR, READINGS)
