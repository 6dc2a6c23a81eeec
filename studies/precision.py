"""Half or float textures: does the precision change the samples? (question 16)

    python -m studies.precision DATA --out DIR [--limit N]

The same tokens of the same pages are sampled from levels in float and in half precision. Reported: the largest
difference, and the share of samples that round to another of 256 grey steps.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from studies.study import run_study, study_parser, write_study
from texturevlm.evaluate.data import load_data
from texturevlm.evaluate.markdown import markdown_page, markdown_table
from texturevlm.pipeline import choose_tokens
from texturevlm.sampling import sample
from texturevlm.types import Texture

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


def study(options: argparse.Namespace, command: str) -> None:
    pages = list(dict.fromkeys(sample.image for sample in load_data(options.data).samples))
    limit = options.limit or PAGES
    pages = pages[:: max(1, len(pages) // limit)][:limit]
    with torch.inference_mode():
        rows = [compare_precision(page) for page in pages]
    record = {
        "command": command,
        "pages": len(rows),
        "greatest_difference": max(difference for difference, _ in rows),
        "changed": sum(share for _, share in rows) / len(rows),
    }
    print(write_study(options.out, "precision", record, report))


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


def main(arguments: Sequence[str] | None = None) -> int:
    return run_study(study_parser("precision", __doc__), arguments, study)


if __name__ == "__main__":
    sys.exit(main())
