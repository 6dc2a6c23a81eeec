"""Half or float textures: does it change what is read? (question 16)

    python -m studies.precision DATA --out DIR [--limit N]

The same tokens of the same pages, sampled from levels kept in float and in half precision; how far the samples differ,
and how many of them round to another of the 256 steps that a reader or a model's processor sees.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from texturevlm.evaluate.data import load
from texturevlm.pipeline import choose_tokens
from texturevlm.sampling import sample
from texturevlm.types import Texture

STEPS = 255


def compared(image: Path, *, budget: int = 273, patch: int = 32) -> tuple[float, float]:
    """The greatest difference in steps of 1/255, and the share of samples that round to another step."""
    texture = Texture.open(image).mipmapped()
    allocation = choose_tokens(texture, budget=budget, patch=patch, relevance="none")
    float_samples = sample(texture, allocation).pixels
    halved = Texture(tuple(level.half().float() for level in texture.levels), texture.names, texture.size)
    half_samples = sample(halved, allocation).pixels.half().float()
    difference = (half_samples - float_samples).abs().max().item() * STEPS
    changed = ((half_samples * STEPS).round() != (float_samples * STEPS).round()).float().mean().item()
    return difference, changed


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m studies.precision", description=__doc__)
    parser.add_argument("data", type=Path, metavar="DATA")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="pages (default: 20)")
    options = parser.parse_args(arguments)
    pages = list(dict.fromkeys(sample.image for sample in load(options.data).samples))
    pages = pages[:: max(1, len(pages) // options.limit)][: options.limit]
    with torch.inference_mode():
        rows = [compared(page) for page in pages]
    worst = max(difference for difference, _ in rows)
    changed = sum(share for _, share in rows) / len(rows)
    text = [
        "# Half or float textures",
        "",
        f"Command: `python -m studies.precision DATA --out DIR --limit {options.limit}`. 273 tokens "
        f"of 32×32 by `auto`, {len(rows)} pages.",
        "",
        "| | |",
        "|---|---|",
        f"| greatest difference of a sample | {worst:.3f} of a step of 1/255 |",
        f"| samples that round to another step | {changed:.2%} |",
        "",
    ]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "precision.md").write_text("\n".join(text), encoding="utf-8")
    record = {"pages": len(rows), "greatest_difference": worst, "changed": changed}
    (options.out / "precision.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print("\n".join(text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
