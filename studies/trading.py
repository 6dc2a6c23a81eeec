"""One budget shared by a batch of pages against the same budget for each: what trading is worth.

    python -m studies.trading DATA --out results [--limit N] [--pages 8] [--budgets 32,64,96,273]

Pages are taken in groups, one question each. Every page gets k tokens, or the group's pages trade among themselves, k
tokens a page in total. Both are judged by expected value, which is what trading raises, and by legibility, which asks
a reader whether that was worth anything.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from studies.study import provenance, versions, write_study
from texturevlm.allocate import ALLOCATORS
from texturevlm.allocate.share import split_budget
from texturevlm.allocate.value import expected_value
from texturevlm.check import check_choice, check_count
from texturevlm.evaluate.data import Sample, load
from texturevlm.evaluate.delivered import Delivered
from texturevlm.evaluate.legibility import as_bytes, crop_boxes, legibility_score
from texturevlm.evaluate.ocr import CachedOcr, OcrEngine, open_ocr
from texturevlm.evaluate.page_cache import PageCache
from texturevlm.evaluate.run import without_colour
from texturevlm.evaluate.statistics import paired_difference
from texturevlm.relevance import find_relevance
from texturevlm.progress import Progress
from texturevlm.rebuilding import median_grey
from texturevlm.relevance import Relevance, WordsScorer, find_relevance
from texturevlm.types import Texture

BUDGETS = (32, 64, 96, 273)
FLOOR, CEILING = 0.25, 4.0  # of an equal share: no page is left out, and none takes it all
WAYS = ("equal", "shared")


@dataclass(frozen=True)
class Result:
    """One page of one group: its tokens, expected value and legibility (None without a reader), either way."""

    question: str
    relevance: str
    budget: int
    tokens: dict[str, int]
    value: dict[str, float]
    legibility: dict[str, float] | None


def one_a_page(samples: Sequence[Sample]) -> list[Sample]:
    """The first question of each page."""
    return list({sample.image: sample for sample in reversed(samples)}.values())[::-1]


def groups(samples: Sequence[Sample], pages: int, seed: int = 0) -> list[list[Sample]]:
    """Whole groups of pages drawn at random, so that a group is a mixed batch and not one document."""
    order = np.random.default_rng(seed).permutation(len(samples)).tolist()
    drawn = [samples[index] for index in order]
    return [drawn[first : first + pages] for first in range(0, len(drawn) - pages + 1, pages)]


def measure(
    group: Sequence[Sample],
    *,
    relevance: str,
    budgets: Sequence[int],
    patch: int,
    allocator: str,
    pages: Pages,
    reader: Reader | None,
) -> list[Result]:
    """The results of one group of pages."""
    choose = ALLOCATORS[allocator]
    textures = [Texture.open(sample.image) for sample in group]
    maps = [
        _relevance(sample, texture, relevance, patch, pages) for sample, texture in zip(group, textures, strict=True)
    ]
    seen = [without_colour(texture) for texture in textures]
    greys = [median_grey(texture) for texture in seen]
    found = []
    for budget in budgets:
        shared = split_budget(
            textures,
            maps,
            budget=budget * len(group),
            floor=max(1, round(FLOOR * budget)),
            ceiling=round(CEILING * budget),
            patch=patch,
            allocator=choose,
        )
        for index, sample in enumerate(group):
            tokens = dict(zip(WAYS, (budget, shared[index])))
            value, crops = {}, []
            for way, count in tokens.items():
                allocation = choose(textures[index], maps[index], budget=count, patch=patch)
                value[way] = float(expected_value(maps[index], allocation))
                delivered = Delivered(seen[index], greys[index], allocation)
                crops.append([as_bytes(delivered.picture(box)) for box in places(sample.boxes, sample.size)])
            found.append(Result(sample.id, relevance, budget, tokens, value, _read(reader, crops, sample)))
    return found


def _relevance(sample: Sample, texture: Texture, way: str, patch: int, pages: Pages) -> Relevance:
    scorer = WordsScorer(pages.words(sample.image, texture)[0]) if way == "words" else way
    return find_relevance(texture, sample.question, patch=patch, relevance=scorer)


def _read(reader: Reader | None, crops: Sequence[Sequence[np.ndarray]], sample: Sample) -> dict[str, float] | None:
    if reader is None:
        return None
    texts = iter(reader.read([crop for ours in crops for crop in ours]))
    return {way: score([next(texts) for _ in ours], sample.answers) for way, ours in zip(WAYS, crops)}


def summary(results: Sequence[Result]) -> list[dict[str, Any]]:
    """A row for each relevance and budget: both ways, and the paired difference with its interval, page by page."""
    rows = []
    for relevance, budget in dict.fromkeys((result.relevance, result.budget) for result in results):
        some = [result for result in results if (result.relevance, result.budget) == (relevance, budget)]
        shared = sorted(result.tokens["shared"] for result in some)
        row: dict[str, Any] = {
            "relevance": relevance,
            "budget": budget,
            "pages": len(some),
            "tokens": {"least": shared[0], "middle": shared[len(shared) // 2], "most": shared[-1]},
            "value": _compared([result.value for result in some]),
        }
        read = [result.legibility for result in some if result.legibility is not None]
        rows.append({**row, "legibility": _compared(read) if read else None})
    return rows


def _compared(pairs: Sequence[dict[str, float]]) -> dict[str, Any]:
    columns = {way: [pair[way] for pair in pairs] for way in WAYS}
    means = {way: float(np.mean(column)) for way, column in columns.items()}
    return {**means, "difference": list(paired_difference(columns["shared"], columns["equal"]))}


def report(record: dict[str, Any]) -> str:
    lines = [
        "# One budget shared by a batch of pages against the same budget for each",
        "",
        provenance(record, record["reader"] or "no reader"),
        "",
        f"Groups of {record['pages']} pages drawn at random, one question a page, allocator `{record['allocator']}`, "
        f"patches of {record['patch']}. Shared: the group's pages trade k tokens a page among themselves by expected "
        f"value, none below {FLOOR:g} k or above {CEILING:g} k. Differences are paired by page, with 95% bootstrap "
        "intervals.",
        "",
        "| relevance | k | tokens a page when shared: least, middle, most | expected value, each k | shared | "
        "difference | legibility, each k | shared | difference | pages |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in record["rows"]:
        tokens = ", ".join(str(count) for count in row["tokens"].values())
        cells = [f"{row['relevance']} | {row['budget']} | {tokens}", _cells(row["value"]), _cells(row["legibility"])]
        lines.append(f"| {' | '.join(cells)} | {row['pages']} |")
    return "\n".join([*lines, ""])


def _cells(compared: dict[str, Any] | None) -> str:
    if compared is None:
        return "– | – | –"
    mean, low, high = compared["difference"]
    return f"{compared['equal']:.3f} | {compared['shared']:.3f} | {mean:+.3f} ({low:+.3f} to {high:+.3f})"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    torch.set_num_threads(1)
    budgets = [check_count("trading", "budgets", int(part), 1) for part in options.budgets.split(",")]
    check_choice("trading", "allocator", options.allocator, ALLOCATORS)
    check_count("trading", "pages", options.pages, 1)
    options.out.mkdir(parents=True, exist_ok=True)
    samples = one_a_page(load(options.data, located=True).samples)[: options.limit]
    batches = groups(samples, options.pages)
    if not batches:
        raise ValueError(f"trading: {options.data} must hold {options.pages} pages with a place, got {len(samples)}")
    reader = None if options.reader == "none" else Remembering(open_reader(options.reader), options.readings)
    kept = Pages(options.words or options.out / "pages")
    relevances = ["words", "none"] if find_spec("rapidocr") is not None else ["none"]
    results: list[Result] = []
    progress = Progress(len(batches) * len(relevances), "groups")
    for group in batches:
        for relevance in relevances:
            results += measure(
                group,
                relevance=relevance,
                budgets=budgets,
                patch=options.patch,
                allocator=options.allocator,
                pages=kept,
                reader=reader,
            )
            progress.step()
    record = {
        "command": "python -m studies.trading DATA --out DIR"
        + (f" --limit {options.limit}" if options.limit else "")
        + (" --words DIR" if options.words else ""),
        "data": options.data.name,
        "reader": reader.name if reader is not None else None,
        **versions(),
        "pages": options.pages,
        "patch": options.patch,
        "allocator": options.allocator,
        "rows": sorted(summary(results), key=lambda row: relevances.index(row["relevance"])),
    }
    print(write_study(options.out, "trading", record, report))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m studies.trading", description=__doc__)
    parser.add_argument("data", type=Path, metavar="DATA", help="a folder of questions with places (docvqa)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="trading.md and trading.json go here")
    parser.add_argument("--limit", type=int, metavar="N", help="the first N pages (default: all)")
    parser.add_argument("--pages", type=int, default=8, metavar="N", help="pages that share a budget (default: 8)")
    parser.add_argument("--budgets", default=",".join(map(str, BUDGETS)), help="tokens a page, by commas")
    parser.add_argument("--patch", type=int, default=32, help="side of a token (default: 32)")
    parser.add_argument("--allocator", default="auto", help="a name of ALLOCATORS (default: auto)")
    parser.add_argument("--reader", default="auto", help="auto, tesseract, rapidocr or none (default: auto)")
    parser.add_argument("--readings", type=Path, metavar="FILE", help="remember here what was read")
    parser.add_argument("--words", type=Path, metavar="DIR", help="the pages' words, read before (default: in --out)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
