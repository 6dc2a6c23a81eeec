"""Does the scout find the answer, and does the question help? Against `words`, plain maps and controls.

    python -m studies.scout DATA --pages CACHE --out DIR [--limit N]

DATA is a folder like shared/data/docvqa; `eval` questions with boxes are used. All maps are ranked on its spots,
equal values in random order. Reported: how often the whole answer (90% of one of its boxes, or of all where they are
one answer), and how much of it, lies in the highest-ranked 5, 10, 20 and 30% of the page; then word spotting
(`spotting`), and the cost of the scout. CACHE keeps RapidOCR's words. Differences are paired, with a 95% interval from
resampling pages.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from studies.relevance import COVERED, ENOUGH, TOPS, channel_maps, gain, of_another_page, shares_within
from studies.spotting import evenly, measure_spotting
from studies.study import provenance, run_study, study_parser, versions, write_study
from texturevlm.channels.saliency import centre_prior
from texturevlm.check import check_count
from texturevlm.evaluate.data import Sample, load_data
from texturevlm.evaluate.markdown import format_interval, markdown_page, markdown_table
from texturevlm.evaluate.statistics import pooled_ratio
from texturevlm.progress import Progress
from texturevlm.relevance.ocr import load_page
from texturevlm.relevance.words import overlaps, words_map
from texturevlm.scout import Question, Scout, encode, load_scout
from texturevlm.train.pages import ONE_ANSWER
from texturevlm.types import Texture

SCOUT, BLIND, OTHER, WORDS = "scout", "scout without the question", "scout with the question of another page", "words"
RIVALS = (WORDS, BLIND, OTHER)
READ_PAGES = 60
Timed = TypeVar("Timed")


def measure(folder: Path, cache: Path | None, limit: int | None, read: int) -> dict[str, Any]:
    samples = load_data(folder, split="eval").samples
    kept = set(evenly(list(dict.fromkeys(sample.image for sample in samples if sample.boxes)), limit))
    scout, name = load_scout(), folder.resolve().name
    located = [sample for sample in samples if sample.boxes and sample.image in kept]
    if not located:
        raise ValueError(f"DATA must hold eval questions with boxes, got {folder}")
    record: dict[str, Any] = {
        "set": name,
        **versions(),
        "threads": torch.get_num_threads(),
        "processors": os.cpu_count(),
        "dtype": str(scout.dtype).removeprefix("torch."),
        **measure_recall(located, cache, scout, together=name in ONE_ANSWER),
    }
    if shutil.which("tesseract") is None:
        record["spotting"] = {"reason": "Not measured: it needs `tesseract` 5, which is not installed here."}
    else:
        record["spotting"] = measure_spotting(
            [sample for sample in samples if sample.image in kept], cache, scout, read
        )
    return record


def measure_recall(samples: Sequence[Sample], cache: Path | None, scout: Scout, *, together: bool) -> dict[str, Any]:
    """Shares of answers in the top of each map, and milliseconds; together: all boxes of a sample are one answer."""
    shares: dict[str, list[np.ndarray]] = {}
    spent: dict[str, list[float]] = {"look": [], "where": []}
    by_image: tuple[Path, Any, dict[str, np.ndarray]] = (Path(), None, {})
    progress = Progress(len(samples), "questions")
    for number, sample in enumerate(samples):
        if sample.image != by_image[0]:
            texture = Texture.open(sample.image).mipmapped()
            spots = _timed(spent["look"], scout.read, texture)
            by_image = (sample.image, spots, _page_maps(sample.image, scout, spots))
        _, spots, fixed = by_image
        question = encode([sample.question])
        chance = _timed(spent["where"], scout.where, spots, question)
        other = of_another_page(samples, number).question
        cells = tuple(chance.shape[1:])
        maps = {
            SCOUT: _array(chance),
            BLIND: fixed[BLIND],
            OTHER: _array(scout.where(spots, other)),
            **{name: _array(scout.where(spots, part)) for name, part in parts_of(question).items()},
            WORDS: words_map(load_page(sample.image, cache), sample.question, cells).numpy(),
            **fixed,
            "oracle": answer_map(_enough(sample, together), cells, sample.size),
        }
        for method, values in maps.items():
            shares.setdefault(method, []).append(answer_shares(values, sample, together=together))
        progress.step()
    pages = [str(sample.image) for sample in samples]
    return {
        "questions": len(samples),
        "pages": len(set(pages)),
        "together": together,
        **_compared({method: np.stack(rows) for method, rows in shares.items()}, pages),
        "milliseconds": {name: _spread(values) for name, values in spent.items()},
    }


def parts_of(question: Question) -> dict[str, Question]:
    """The parts of a question: its words alone, and the kind of answer alone."""
    letters, traits, asked = question
    return {
        "scout with the question's words alone": Question(letters, traits, torch.zeros_like(asked)),
        "scout with the kind of answer alone": Question(torch.full_like(letters, -1), torch.zeros_like(traits), asked),
    }


def _page_maps(image: Path, scout: Scout, spots: Any) -> dict[str, np.ndarray]:
    """Maps that do not know the question."""
    cells = (spots.text.shape[1], spots.text.shape[2])
    return {
        BLIND: _array(scout.where(spots, "")),
        "the scout's text map": _array(spots.text.sigmoid()),
        **channel_maps(image, cells),
        "centre bias": centre_prior(torch.empty(1, 1, *cells)).numpy(),
    }


def _array(values: Tensor) -> np.ndarray:
    array: np.ndarray = values[0].float().numpy()
    return array


def _timed(spent: list[float], work: Callable[..., Timed], *arguments: Any) -> Timed:
    started = time.perf_counter()
    result = work(*arguments)
    spent.append(1e3 * (time.perf_counter() - started))
    return result


def _spread(values: list[float]) -> list[float]:
    """Median, and the middle half."""
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return [middle, low, high]


def answer_shares(values: np.ndarray, sample: Sample, *, together: bool) -> np.ndarray:
    """(len(TOPS),): how much of the answer is in the top cells; of its best box, or of all together by their area."""
    shares = shares_within(values, sample.boxes, sample.size)
    areas = _areas(sample)
    found: np.ndarray = shares @ (areas / areas.sum()) if together else shares.max(1)
    return found


def _areas(sample: Sample) -> np.ndarray:
    return np.array([(x1 - x0) * (y1 - y0) for x0, y0, x1, y1 in sample.boxes])


def _enough(sample: Sample, together: bool) -> Sequence[Sequence[float]]:
    """The fewest places that are the whole answer: all of them, or the smallest."""
    return sample.boxes if together else [sample.boxes[int(_areas(sample).argmin())]]


def answer_map(boxes: Sequence[Sequence[float]], cells: tuple[int, ...], size: tuple[int, int]) -> np.ndarray:
    """(h, w): how much of each cell lies in boxes, in pixels."""
    corners = np.array(boxes, dtype=float)
    down = overlaps(corners[:, 1], corners[:, 3], cells[0], size[0])
    shares: np.ndarray = down.T @ overlaps(corners[:, 0], corners[:, 2], cells[1], size[1])
    return shares


def _compared(shares: dict[str, np.ndarray], pages: Sequence[str]) -> dict[str, Any]:
    """method → (questions, TOPS) shares: means, what the scout has more than its rivals, and how many times
    what it has without the question."""
    whole = {method: (table >= ENOUGH).astype(float) for method, table in shares.items()}
    columns = range(len(TOPS))
    found = {}
    for name, tables in (("whole", whole), ("share", shares)):
        found[name] = {
            "mean": {method: table.mean(0).tolist() for method, table in tables.items()},
            "difference": {
                rival: [gain(tables[SCOUT][:, top] - tables[rival][:, top], pages) for top in columns]
                for rival in RIVALS
            },
            "ratio": [_times(tables[SCOUT][:, top], tables[BLIND][:, top], pages) for top in columns],
        }
    return found


def _times(ours: np.ndarray, theirs: np.ndarray, pages: Sequence[str]) -> list[float] | None:
    """The sum of ours over the sum of theirs and its 95% interval, pages resampled; None where theirs have nothing."""
    _, which = np.unique(pages, return_inverse=True)
    return list(pooled_ratio(np.bincount(which, ours), np.bincount(which, theirs))) if theirs.any() else None


def report(record: dict[str, Any]) -> str:
    boxes = "all of the answer's boxes together" if record["together"] else "one of the answer's boxes"
    costs = []
    for name, what in (("look", "reading a page"), ("where", "one question")):
        middle, low, high = record["milliseconds"][name]
        costs.append(f"- `scout.{name}`, {what}: {middle:.0f} ms (median; the middle half {low:.0f} to {high:.0f}).")
    return markdown_page(
        "# The scout: does it know where the answer is?",
        provenance(record),
        f"{record['questions']} `eval` questions with a located answer on {record['pages']} pages of {record['set']}. "
        f"Every map is ranked on the scout's spots (8×8 of the pixels that it sees, 16×16 of a page of 200 dots an "
        f"inch). Whole: {100 * COVERED:.0f}% of {boxes} is in the top part of the page; share: how much of it is, on "
        "average. `words` are RapidOCR's; the oracle is the box itself.",
        "## Whole answers",
        *_recall_blocks(record["whole"]),
        "## Share of the answer's box",
        *_recall_blocks(record["share"]),
        "## Word spotting",
        *_spotting_blocks(record["spotting"]),
        "## Cost",
        "\n".join(costs),
        f"Wall clock on {record['threads']} thread(s) of this machine's {record['processors']}, weights in "
        f"{record['dtype']}, whatever else was running; mips made before. `texturevlm bench scout` is the measurement.",
    )


def _recall_blocks(recall: dict[str, Any]) -> list[str]:
    heads = [f"top {100 * top:.0f}%" for top in TOPS]
    rows = [(f"{SCOUT} − {rival}", *map(format_interval, row)) for rival, row in recall["difference"].items()]
    ratios = (format_interval(row, ".2f") if row else "–" for row in recall["ratio"])
    return [
        markdown_table(
            ("map", *heads), [(name, *(f"{mean:.3f}" for mean in means)) for name, means in recall["mean"].items()]
        ),
        "Paired, with a 95% interval from resampling pages:",
        markdown_table(("", *heads), [*rows, (f"{SCOUT} / {BLIND}", *ratios)]),
    ]


def _spotting_blocks(spotting: dict[str, Any]) -> list[str]:
    if not spotting.get("words"):
        return [spotting.get("reason", "No word of a question was read on its page.")]
    pairs = [(name, each, spotting["pooled precision"][name]) for name, each in spotting["precision"].items()]
    difference = (format_interval(spotting["difference"]), format_interval(spotting["pooled difference"]))
    by_height = []
    for row in spotting["by height"]:
        means = row["precision"]
        above = f"{row['low']} pixels and more" if row["high"] >= 1000 else f"{row['low']} to {row['high']} pixels"
        by_height.append((above, row["words"], f"{means['scout']:.3f}", f"{means['RapidOCR']:.3f}"))
    return [
        f"{spotting['words']} words of questions (not stop words, three letters or more) that {spotting['reader']} "
        f"reads on their page at full resolution, on {spotting['pages']} pages. Its word boxes are ranked by how "
        "surely that word is there. Each: mean average precision over these words. Pooled: average precision of "
        f"one ranking of all pages and of all {spotting['words sought']} words, also those that are not on their page. "
        "95% intervals, pages resampled.",
        markdown_table(
            ("ranked by", "each", "pooled"),
            [
                *((name, format_interval(each, ".3f"), format_interval(pooled, ".3f")) for name, each, pooled in pairs),
                ("scout − RapidOCR", *difference),
            ],
        ),
        markdown_table(("height of the word as the scout sees it", "words", "scout", "RapidOCR"), by_height),
        "What favours RapidOCR: the truth is another OCR engine's, so a word that no engine reads is not asked for; it "
        "reads the page at three times as many pixels, and the same word scores exactly 1. What favours the scout: "
        "places are given, so it need not say where words begin and end, while RapidOCR's rough places of words must "
        "meet Tesseract's; and, pooled, likeness also counts other forms and short forms of a word (“No.” for "
        "“number”), which are not right here. Both are blamed where Tesseract misread.",
    ]


def study(options: argparse.Namespace, command: str) -> None:
    check_count("--read", "N", options.read, 1)
    found = measure(options.data, options.pages, options.limit, options.read)
    write_study(options.out, "scout", {"command": command, **found}, report)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = study_parser("scout", __doc__)
    parser.add_argument("--pages", type=Path, metavar="CACHE", help="cache of the pages' words")
    parser.add_argument(
        "--read", type=int, default=READ_PAGES, metavar="N", help=f"pages that Tesseract reads (default: {READ_PAGES})"
    )
    return run_study(parser, arguments, study)


if __name__ == "__main__":
    sys.exit(main())
