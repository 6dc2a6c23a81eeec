"""How much work a relevance pyramid saves, with the same answer: cells tested against all cells, on real images.

    python -m texturevlm.evaluate.pruning DATA --out DIR [--pages CACHE] [--limit N]

DATA is a folder with questions.jsonl (shared/data/docvqa). For each image the map of what may be asked (`none`), and
for each question the map of `words`; thresholds are such that the share given is above. A number is the values read by
the descent, over the number of cells, which is what testing every cell reads. Building the pyramid reads every
level once: it pays where a map is tested more than once, or comes with its levels.
"""

import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from texturevlm.allocate.prune import above, relevance_pyramid
from texturevlm.evaluate.data import load
from texturevlm.evaluate.study import MISTAKES, check_limit, command_parser, complain, provenance, versions, write_study
from texturevlm.relevance import find_relevance
from texturevlm.progress import Progress
from texturevlm.relevance.ocr import load_page
from texturevlm.types import Texture

SHARES = (0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)  # of the cells that are above the threshold


def measure(folder: Path, cache: Path | None, limit: int | None) -> dict[str, Any]:
    """name of the map → share above → values read over cells, one a map; and whether the answers were all the same."""
    samples = load(folder, split=None, limit=limit).samples
    read: dict[str, dict[str, list[float]]] = {}
    same, cells, built = True, [], []
    progress = Progress(len(samples), "questions")
    seen: set[Path] = set()
    for sample in samples:
        texture = Texture.open(sample.image).mipmapped()
        for name, values in _maps(texture, sample.question, sample.image, cache, sample.image not in seen):
            pyramid = relevance_pyramid(values)
            cells.append(values.numel())
            built.append(sum(level.numel() for level in pyramid[:-1]) / values.numel())
            for share in SHARES:
                threshold = float(values.flatten().sort(descending=True).values[int(share * (values.numel() - 1))])
                found = above(pyramid, threshold)
                same &= torch.equal(found.cells, (values > threshold).nonzero())
                read.setdefault(name, {}).setdefault(str(share), []).append(found.tested / values.numel())
        seen.add(sample.image)
        progress.step()
    return {
        "questions": len(samples),
        "images": len(seen),
        "cells": float(np.mean(cells)),
        "built": float(np.mean(built)),
        "same": same,
        "read": read,
    }


def _maps(texture: Texture, question: str, path: Path, cache: Path | None, first: bool) -> Iterator[tuple[str, Tensor]]:
    if first:
        yield "none", find_relevance(texture, relevance="none").mass[0]
    if find_spec("rapidocr") is not None or cache is not None:
        page = load_page(path, cache)
        yield "words", find_relevance(texture, question, relevance="words", page=page).mass[0]


def report(record: dict[str, Any]) -> str:
    lines = [
        "# The relevance pyramid: values read by the descent, as a share of all cells",
        "",
        provenance(record),
        "",
        f"{record['questions']} questions on {record['images']} images of {record['cells']:.0f} cells on average. The "
        f"answer was {'always' if record['same'] else '**not** always'} that of testing every cell. In brackets: the "
        f"largest share of any map. Testing every cell is 1; building the pyramid, once a map, {record['built']:.2f}.",
        "",
        "| cells above the threshold | "
        + " | ".join(f"{name} ({_count(record, name)})" for name in record["read"])
        + " |",
        "|---|" + "---|" * len(record["read"]),
    ]
    for share in SHARES:
        columns = [record["read"][name][str(share)] for name in record["read"]]
        numbers = (f"{np.mean(column):.3f} ({np.max(column):.3f})" for column in columns)
        lines.append(f"| {100 * share:g}% | " + " | ".join(numbers) + " |")
    return "\n".join(lines) + "\n"


def _count(record: dict[str, Any], name: str) -> str:
    return f"{len(record['read'][name][str(SHARES[0])])} maps"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_parser("texturevlm.evaluate.pruning", __doc__)
    parser.add_argument("data", type=Path, metavar="DATA", help="folder with images and questions.jsonl")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="for pruning.md and pruning.json")
    parser.add_argument("--pages", type=Path, metavar="CACHE", help="folder where the words of the pages are kept")
    parser.add_argument("--limit", type=int, metavar="N", help="at most N questions, evenly spread")
    options = parser.parse_args(arguments)
    try:
        check_limit(options.limit)
        options.out.mkdir(parents=True, exist_ok=True)
        command = "python -m texturevlm.evaluate.pruning DATA --pages CACHE --out DIR"
        command += f" --limit {options.limit}" if options.limit else ""
        with torch.inference_mode():
            found = measure(options.data, options.pages, options.limit)
    except MISTAKES as error:
        return complain(parser, error)
    print(write_study(options.out, "pruning", {"command": command, **versions(), **found}, report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
