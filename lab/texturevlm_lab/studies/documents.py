"""One question to fifty pages: is the page with the answer among the few that are seen finely?

    python -m texturevlm_lab.studies.documents DATA --out DIR [--limit N] [--split S] [--files N] [--traversed N]
        [--tokens N]

DATA is a folder like docvqa_half. Pages of different documents, one per document, are bound into PDFs of 50 pages in a
temporary folder; each page has one question. Every question is scored by the rank of its page; the first --traversed
questions of each file are also run through the whole traversal, which says how legible the answer is.
"""

import argparse
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from texturevlm.allocate.plain import tiling
from texturevlm.allocate.value import delivered_scale
from texturevlm.defaults import BUDGET, FINE_PAGES, PATCH
from texturevlm.pages import PageTokens, open_pages
from texturevlm.pages.choose import page_tokens
from texturevlm.pages.pictures import PagePictures
from texturevlm.pages.scouting import PageSight, scouted
from texturevlm.placement import TokenConfig
from texturevlm.relevance import find_scorer
from texturevlm_lab.evaluate.data import Sample, load_data
from texturevlm_lab.evaluate.markdown import format_interval, markdown_page, markdown_table
from texturevlm_lab.evaluate.statistics import paired_difference
from texturevlm_lab.studies.place_measures import legible_at
from texturevlm_lab.studies.study import SPLIT, each, option, provenance, study_main

PAGES = 50
DPI = 100  # of the bound pages, which are half of 200
CPU = torch.device("cpu")
HOW = TokenConfig(patch=PATCH, turn=0.0)
OURS, BLIND = "the question's words", "question-blind"


@dataclass(frozen=True)
class Asked:
    """One question: whether its page is seen finely by each choice of pages, and how legible the answer is by each
    way to spend the tokens (None: not located, or not traversed)."""

    page: str
    seen: dict[str, float]
    legible: dict[str, float] | None


def bound_files(samples: Sequence[Sample], files: int) -> list[list[Sample]]:
    """Per file, PAGES samples of different documents."""
    draw = random.Random(0)
    by_document: dict[str, list[Sample]] = {}
    for sample in samples:
        by_document.setdefault(sample.image.stem.rpartition("_")[0], []).append(sample)
    each = [draw.choice(own) for own in by_document.values()]
    draw.shuffle(each)
    found = [each[first : first + PAGES] for first in range(0, files * PAGES, PAGES)]
    if not found[-1]:
        raise ValueError(f"DATA must hold {files} times {PAGES} documents, got {len(each)}")
    return found


def write_pdf(samples: Sequence[Sample], path: Path) -> None:
    first, *others = (Image.open(sample.image).convert("RGB") for sample in samples)
    first.save(path, save_all=True, append_images=others, resolution=DPI, quality=95)


def measure(file: Sequence[Sample], pages: PagePictures, tokens: int, traversed: int) -> list[Asked]:
    """The questions of one file."""
    sights = scouted(pages, ["", *(sample.question for sample in file)], how=HOW, device=CPU)
    blind, found = sights[0], []
    for number, (sample, own) in enumerate(zip(file, sights[1:])):
        seen = {OURS: float(number in best(own)), BLIND: float(number in best(blind))}
        legible = None
        if number < traversed:
            chosen = traversed_pages(pages, own, sample.question, tokens)
            seen["traversal"] = float(any(one.numbers == (number + 1,) for one in chosen))
            legible = ways(sample, number, chosen, own, tokens, len(file)) if sample.boxes else None
        found.append(Asked(sample.image.name, seen, legible))
    return found


def best(sights: Sequence[PageSight]) -> list[int]:
    """The FINE_PAGES pages of most worth."""
    return sorted(range(len(sights)), key=lambda index: -sights[index].worth)[:FINE_PAGES]


def traversed_pages(pages: PagePictures, sights: Sequence[PageSight], question: str, tokens: int) -> list[PageTokens]:
    how = replace(HOW, budget=tokens, relevance=find_scorer("documents", "scout", question))
    return page_tokens(pages, sights, question, how, fine_pages=FINE_PAGES, device=CPU)


def ways(
    sample: Sample, number: int, chosen: Sequence[PageTokens], sights: Sequence[PageSight], tokens: int, count: int
) -> dict[str, float]:
    """How legible the answer is by each way to spend the tokens."""
    own = next((one for one in chosen if one.numbers == (number + 1,)), None)
    top = tokens // FINE_PAGES if number in best(sights) else 0
    return {
        "one traversal": 0.0 if own is None else _in_tokens(sample, own),
        "the top 5 pages, resized": _resized(sample, top),
        f"all {count} pages, resized": _resized(sample, tokens // count),
    }


def _in_tokens(sample: Sample, page: PageTokens) -> float:
    scale = delivered_scale(page.allocation, page.relevance.grid)[0].numpy()
    times = sample.size[0] / page.texture.size[0]
    return max(legible_at(box, scale, sample.size, times) for box in sample.boxes)


def _resized(sample: Sample, tokens: int) -> float:
    if tokens == 0:
        return 0.0
    rows, columns = tiling(sample.size, tokens, PATCH)
    scale = max(1.0, (sample.size[0] / rows * sample.size[1] / columns) ** 0.5 / PATCH)
    return max(legible_at(box, np.array([[scale]]), sample.size) for box in sample.boxes)


def study(options: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(1)
    samples = load_data(options.data, split=options.split).samples[: options.limit]
    files = bound_files(samples, options.files)
    asked: list[Asked] = []
    with tempfile.TemporaryDirectory() as folder:
        for number, file in enumerate(each(files, "files")):
            path = Path(folder) / f"{number}.pdf"
            write_pdf(file, path)
            asked += measure(file, PagePictures(open_pages(path)), options.tokens, options.traversed)
    return {
        "split": options.split,
        "files": [len(file) for file in files],
        "tokens": options.tokens,
        "seen": _shares([one.seen for one in asked]),
        "lead": list(paired_difference([one.seen[OURS] for one in asked], [one.seen[BLIND] for one in asked])),
        "traversed": _shares([one.seen for one in asked if "traversal" in one.seen]),
        "legible": _shares([one.legible for one in asked if one.legible is not None]),
    }


def _shares(rows: Sequence[dict[str, float]]) -> dict[str, Any]:
    """The mean of each column that all rows have, with its interval, and how many rows there are."""
    names = [name for name in rows[0] if all(name in row for row in rows)] if rows else []
    means = {
        name: list(paired_difference([row[name] for row in rows], [0.0] * len(rows), groups=range(len(rows))))
        for name in names
    }
    return {"n": len(rows), "means": means}


def report(record: dict[str, Any]) -> str:
    heads = ("pages chosen by", "n", "share of questions whose page is seen finely")
    tables = [("seen", heads), ("traversed", heads), ("legible", ("tokens spent on", "n", "legibility of the answer"))]
    blocks = []
    for name, columns in tables:
        own = record[name]
        rows = [(label, own["n"], format_interval(mean, ".2f")) for label, mean in own["means"].items()]
        blocks += [markdown_table(columns, rows)] if rows else []
    return markdown_page(
        "# One question to fifty pages",
        provenance(record),
        f"Pages of different documents (`{record['split']}`), bound into PDFs of {record['files']} pages, one question "
        f"per page. At most {FINE_PAGES} pages are seen finely; by chance that is "
        f"{FINE_PAGES / record['files'][0]:.2f}. Question-blind: the {FINE_PAGES} pages about which most is usually "
        "asked, by the scout. 95% intervals from resampling pages; each page has one question. Ahead of the blind "
        f"choice by {format_interval(record['lead'], '+.2f')}.",
        *blocks,
        "The second and third tables are of the first questions of each file, those that went through the whole "
        f"traversal with {record['tokens']} tokens. Legibility is that of text as high as the answer's box, 0 where "
        "its page is not shown; of questions whose answer is located.",
    )


OPTIONS = (
    option("--files", type=int, default=1, metavar="N", help="of 50 pages (default: 1)"),
    option("--traversed", type=int, default=10, metavar="N", help="questions per file, by traversal (default: 10)"),
    option("--tokens", type=int, default=BUDGET, metavar="N", help=f"for the whole file (default: {BUDGET})"),
)
main = study_main(__name__, __doc__, study, report, SPLIT, *OPTIONS)
