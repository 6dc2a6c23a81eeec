"""One budget shared by a batch of pages against the same budget for each: the gain by trading.

    python -m texturevlm_lab.studies.trading DATA --out results [--limit N] [--pages 8] [--budgets 32,64,96,273]

Pages are taken in groups, one question per page. Either every page gets k tokens, or the pages of a group share k
tokens per page. Both are judged by expected value, which trading raises, and by legibility.
"""

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from texturevlm.allocate import ALLOCATORS
from texturevlm.allocate.share import Item, spend
from texturevlm.allocate.value import expected_value
from texturevlm.check import check_choice, check_count
from texturevlm.rebuilding import median_grey
from texturevlm.relevance import Relevance, WordsScorer, find_relevance
from texturevlm.types import Allocation, Texture
from texturevlm_lab.evaluate.data import Sample, load_data
from texturevlm_lab.evaluate.markdown import format_interval, markdown_page, markdown_table
from texturevlm_lab.evaluate.metrics import Delivered
from texturevlm_lab.evaluate.ocr import OcrEngine
from texturevlm_lab.evaluate.page_cache import PageCache
from texturevlm_lab.evaluate.run import without_colour
from texturevlm_lab.evaluate.statistics import paired_difference
from texturevlm_lab.studies.study import READINGS, each, ocr_engines, option, provenance, read_scores, study_main

BUDGETS = "32,64,96,273"
FLOOR, CEILING = 0.25, 4.0  # of an equal share: no page is left out, and none takes it all
SPLITS = ("equal", "shared")


class PageResult(NamedTuple):
    """One page of one group: its tokens and expected value per split, and its legibility per OCR engine and split."""

    relevance: str
    budget: int
    tokens: dict[str, int]
    value: dict[str, float]
    legibility: dict[str, dict[str, float]]
    group: int = 0


def one_per_page(samples: Sequence[Sample]) -> list[Sample]:
    """The first question of each page."""
    return list({sample.image: sample for sample in reversed(samples)}.values())[::-1]


def groups(samples: Sequence[Sample], pages: int, seed: int = 0) -> list[list[Sample]]:
    """Whole groups of pages drawn at random, so that a group is a mixed batch and not one document."""
    order = np.random.default_rng(seed).permutation(len(samples)).tolist()
    drawn = [samples[index] for index in order]
    return [drawn[first : first + pages] for first in range(0, len(drawn) - pages + 1, pages)]


def measure(
    group: Sequence[Sample],
    relevance: str,
    budget: int,
    *,
    patch: int,
    allocator: str,
    pages: PageCache,
    engines: Mapping[str, OcrEngine],
    number: int = 0,
) -> list[PageResult]:
    """The results of one group of pages, which has this number."""
    choose = ALLOCATORS[allocator]
    textures = [Texture.open(sample.image) for sample in group]
    maps = []
    for sample, texture in zip(group, textures):
        scorer: Any = WordsScorer(pages.words(sample.image, texture)[0]) if relevance == "words" else relevance
        maps.append(find_relevance(texture, sample.question, patch=patch, relevance=scorer))
    floor, ceiling, total = max(1, round(FLOOR * budget)), round(CEILING * budget), budget * len(group)
    ceiling = min(ceiling, total - floor * (len(group) - 1))  # what the other pages leave
    items = [Item(partial(_opened, *pair), floor=floor, ceiling=ceiling) for pair in zip(textures, maps)]
    found, shared = [], spend(items, budget=total, patch=patch, allocator=choose)
    for sample, texture, own, count in zip(group, textures, maps, shared):
        tokens = dict(zip(SPLITS, (budget, count)))
        chosen = {split: choose(texture, own, budget=count, patch=patch) for split, count in tokens.items()}
        value = {split: float(expected_value(own, allocation)) for split, allocation in chosen.items()}
        legibility = _legibility(engines, sample, texture, chosen) if engines else {}
        found.append(PageResult(relevance, budget, tokens, value, legibility, number))
    return found


def _opened(texture: Texture, relevance: Relevance) -> tuple[Texture, Relevance]:
    return texture, relevance


def _legibility(
    engines: Mapping[str, OcrEngine], sample: Sample, texture: Texture, chosen: dict[str, Allocation]
) -> dict[str, dict[str, float]]:
    shown = without_colour(texture)
    grey = median_grey(shown)
    crops = {split: Delivered(shown, grey, allocation).crops(sample) for split, allocation in chosen.items()}
    return {name: read_scores(engine, crops, sample.answers) for name, engine in engines.items()}


def summary(results: Sequence[PageResult]) -> list[dict[str, Any]]:
    """One row per relevance and budget: both splits, and their difference, paired by page; groups are resampled."""
    rows = []
    for relevance, budget in dict.fromkeys((result.relevance, result.budget) for result in results):
        some = [result for result in results if (result.relevance, result.budget) == (relevance, budget)]
        shared = sorted(result.tokens["shared"] for result in some)
        groups = [result.group for result in some]
        rows.append(
            {
                "relevance": relevance,
                "budget": budget,
                "pages": len(some),
                "tokens": {"least": shared[0], "middle": shared[len(shared) // 2], "most": shared[-1]},
                "value": _compared([result.value for result in some], groups),
                "legibility": {
                    name: _compared([result.legibility[name] for result in some], groups) for name in some[0].legibility
                },
            }
        )
    return rows


def _compared(pairs: Sequence[dict[str, float]], groups: Sequence[int]) -> dict[str, Any]:
    columns = {split: [pair[split] for pair in pairs] for split in SPLITS}
    means = {split: float(np.mean(column)) for split, column in columns.items()}
    difference = paired_difference(columns["shared"], columns["equal"], groups=groups)  # a group's pages share tokens
    return {**means, "difference": list(difference)}


def report(record: dict[str, Any]) -> str:
    heads = ["relevance", "k", "tokens per page when shared: least, middle, most", "expected value, each k", "shared"]
    heads += ["difference", *(head for name in record["ocr"] for head in (f"{name}, each k", "shared", "difference"))]
    rows = []
    for row in record["rows"]:
        tokens = ", ".join(str(count) for count in row["tokens"].values())
        compared = [cell for one in (row["value"], *row["legibility"].values()) for cell in _cells(one)]
        rows.append((row["relevance"], row["budget"], tokens, *compared, row["pages"]))
    return markdown_page(
        "# One budget shared by a batch of pages against the same budget for each",
        provenance(record, *(record["ocr"].values() or ["no OCR"])),
        f"Groups of {record['pages']} pages drawn at random, one question per page, allocator `{record['allocator']}`, "
        f"patches of {record['patch']}. Shared: the group's pages trade k tokens per page among themselves by expected "
        f"value, none below {FLOOR:g} k or above {CEILING:g} k. Differences are paired by page, with 95% intervals "
        "from resampling groups; legibility by each OCR engine.",
        markdown_table([*heads, "pages"], rows),
    )


def _cells(compared: dict[str, Any]) -> Sequence[str]:
    return f"{compared['equal']:.3f}", f"{compared['shared']:.3f}", format_interval(compared["difference"])


def study(options: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(1)
    budgets = [check_count("trading", "budgets", int(part), 1) for part in options.budgets.split(",")]
    check_choice("trading", "allocator", options.allocator, ALLOCATORS)
    check_count("trading", "pages", options.pages, 1)
    samples = one_per_page(load_data(options.data, located=True).samples)[: options.limit]
    batches = groups(samples, options.pages)
    if not batches:
        raise ValueError(f"trading: {options.data} must hold {options.pages} pages with boxes, got {len(samples)}")
    engines = ocr_engines(options)
    cache = PageCache(options.words or options.out / "pages")
    relevances = ["words", "none"] if find_spec("rapidocr") is not None else ["none"]
    results: list[PageResult] = []
    common: Any = {"patch": options.patch, "allocator": options.allocator, "pages": cache, "engines": engines}
    for number, group in enumerate(each(batches, "groups")):
        for relevance in relevances:
            for budget in budgets:
                results += measure(group, relevance, budget, number=number, **common)
    return {
        "data": options.data.name,
        "ocr": {name: engine.name for name, engine in engines.items()},
        "pages": options.pages,
        "patch": options.patch,
        "allocator": options.allocator,
        "rows": sorted(summary(results), key=lambda row: relevances.index(row["relevance"])),
    }


OPTIONS = (
    option("--pages", type=int, default=8, metavar="N", help="pages that share a budget (default: 8)"),
    option("--budgets", default=BUDGETS, help=f"tokens per page (default: {BUDGETS})"),
    option("--patch", type=int, default=32, help="side of a token (default: 32)"),
    option("--allocator", default="auto", help="a name of ALLOCATORS (default: auto)"),
    option("--ocr", default="auto", metavar="E,E", help="tesseract, rapidocr, or none (default: those installed)"),
    READINGS,
    option("--words", type=Path, metavar="DIR", help="cache of the pages' words (default: in --out)"),
)
main = study_main(__name__, __doc__, study, report, *OPTIONS)
