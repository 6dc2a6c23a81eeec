"""Half or float textures: does the precision change the samples? (question 16)

    python -m texturevlm_lab.studies.precision DATA --out DIR [--limit N]

The same tokens of the same pages are sampled from levels in float and in half precision. Reported: the largest
difference, and the share of samples that round to another of 256 grey steps.
"""

import argparse
from pathlib import Path
from typing import Any

import torch

from texturevlm.placement import choose_tokens
from texturevlm.sampling import sample
from texturevlm.types import Texture
from texturevlm_lab.evaluate.data import load_data
from texturevlm_lab.evaluate.markdown import markdown_page, markdown_table
from texturevlm_lab.studies.study import study_main

STEPS = 255
PAGES = 20


def compare_precision(image: Path, *, budget: int = 273, patch: int = 32) -> tuple[float, float]:
    """The greatest difference in steps of 1/255, and the share of samples that round to another step."""
    texture = Texture.open(image).mipmapped()
    allocation = choose_tokens(texture, budget=budget, patch=patch, relevance="none")
    float_samples = sample(texture, allocation).pixels
    halved = Texture(tuple(level.half().float() for level in texture.levels), texture.names, texture.size)
    half_samples = sample(halved, allocation).pixels.half().float()
    difference = (half_samples - float_samples).abs().max().item() * STEPS
    changed = ((half_samples * STEPS).round() != (float_samples * STEPS).round()).float().mean().item()
    return difference, changed


@torch.inference_mode()
def measure(options: argparse.Namespace) -> dict[str, Any]:
    pages = list(dict.fromkeys(sample.image for sample in load_data(options.data).samples))
    limit = options.limit or PAGES
    differences, changed = zip(*map(compare_precision, pages[:: max(1, len(pages) // limit)][:limit]))
    return {"pages": len(changed), "greatest_difference": max(differences), "changed": sum(changed) / len(changed)}


def report(record: dict[str, Any]) -> str:
    rows = [
        ("greatest difference of a sample", f"{record['greatest_difference']:.3f} of a step of 1/255"),
        ("samples that round to another step", f"{record['changed']:.2%}"),
    ]
    return markdown_page(
        "# Half or float textures",
        f"Command: `{record['command']}`. 273 tokens of 32×32 by `auto`, {record['pages']} pages.",
        markdown_table(("", ""), rows),
    )


main = study_main(__name__, __doc__, measure, report)
