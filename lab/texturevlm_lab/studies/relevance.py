"""How well a relevance map ranks the place of the answer on document pages, against baselines and a control.

    python -m texturevlm_lab.studies.relevance DATA --pages CACHE --out DIR [--limit N]

DATA is a folder like shared/data/docvqa: images and questions.jsonl with the boxes of the answers. Each page is cut
into cells of 16×16 pixels, ranked by the map's value; equal values are in random order. A question counts as found in
the top x% of the page if at least 90% of the area of one of its boxes lies in the highest-ranked cells that make up x%
of the page. CACHE keeps RapidOCR's words. Differences are paired, with a 95% interval from resampling pages (questions
of one page are not independent).
"""

import argparse
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.channels.structure import saliency
from texturevlm.channels.text import text_map
from texturevlm.image import to_tensor
from texturevlm.ops.mip import mipmap
from texturevlm.relevance.features import FEATURE_NAMES, layout_of, word_features
from texturevlm.relevance.ocr import Page
from texturevlm.relevance.words import answer_probability, overlaps, spread, words_map
from texturevlm_lab.evaluate.data import Sample, load_data
from texturevlm_lab.evaluate.markdown import format_interval, markdown_page, markdown_table
from texturevlm_lab.evaluate.statistics import pooled_ratio
from texturevlm_lab.studies.study import PAGES, each, provenance, study_main
from texturevlm_lab.train.pages import load_page

CELL = 16  # pixels
TOPS = (0.05, 0.10, 0.20, 0.30)
COVERED = 0.9  # of a box must lie in the chosen cells
ENOUGH = COVERED - 1e-9  # allows for rounding
BINS = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)  # of a word's probability, to compare with what came true
RIVAL = "near the question's words"
BY_IMAGE: dict[str, Callable[[Tensor, Sequence[Tensor]], Tensor]] = {"saliency": saliency, "text channel": text_map}


def found_within(values: np.ndarray, boxes: Sequence[Sequence[float]], size: Sequence[int]) -> list[bool]:
    """For each of TOPS: whether one of the boxes lies in the cells of greatest value that make up that share."""
    return [bool(best >= ENOUGH) for best in np.amax(shares_within(values, boxes, size), axis=1)]


def shares_within(values: np.ndarray, boxes: Sequence[Sequence[float]], size: Sequence[int]) -> np.ndarray:
    """(len(TOPS), boxes): how much of each box lies in the cells of greatest value that make up that share.

    values: (h, w); boxes: xyxy in pixels; size: (height, width) in pixels
    """
    height, width = size
    rank = np.empty(values.size)
    rank[descending(values.ravel())] = np.arange(values.size) / values.size
    corners = np.array(boxes, dtype=float)
    across = overlaps(corners[:, 0], corners[:, 2], values.shape[1], width)
    down = overlaps(corners[:, 1], corners[:, 3], values.shape[0], height)
    area = (corners[:, 2] - corners[:, 0]) * (corners[:, 3] - corners[:, 1])
    chosen = [(rank < top).reshape(values.shape).astype(float) for top in TOPS]
    return np.stack([((down @ cells) * across).sum(1) / area for cells in chosen])


def descending(values: np.ndarray) -> np.ndarray:
    """The order of values (N,) from the greatest, equal values in random order."""
    shuffled = np.random.default_rng(0).permutation(len(values))
    order: np.ndarray = shuffled[np.argsort(-values[shuffled], kind="stable")]
    return order


def near_words(page: Page, question: str, cells: tuple[int, int]) -> np.ndarray:
    """The rival: the share of the question's words near each word, fading with distance."""
    near = word_features(page, question, {})[:, FEATURE_NAMES.index("share_near")]
    return spread(page, near * layout_of(page).areas, cells).numpy()  # so that a word's size does not count


@torch.inference_mode()
def measure(options: argparse.Namespace) -> dict[str, Any]:
    samples = load_data(options.data, split="eval", located=True, limit=options.limit).samples
    found: dict[str, list[list[bool]]] = {}
    predicted, true = [], []
    by_image: tuple[Path, dict[str, np.ndarray]] = (Path(), {})
    for number, sample in enumerate(each(samples, "questions")):
        cells = (math.ceil(sample.size[0] / CELL), math.ceil(sample.size[1] / CELL))
        page = load_page(sample.image, options.pages)
        if sample.image != by_image[0]:
            by_image = (sample.image, channel_maps(sample.image, cells))
        other = of_another_page(samples, number)
        maps = {
            "words": words_map(page, sample.question, cells).numpy(),
            RIVAL: near_words(page, sample.question, cells),
            "where there are words": spread(page, np.full(len(page.words), 1 / max(len(page.words), 1)), cells).numpy(),
            "words, the question of another page": words_map(page, other.question, cells).numpy(),
            **by_image[1],
        }
        for method, values in maps.items():
            found.setdefault(method, []).append(found_within(values, sample.boxes, sample.size))
        predicted.append(answer_probability(page, sample.question))
        true.append(answer_share(page, sample.boxes))
    pages = [str(sample.image) for sample in samples]
    tables = {method: np.array(hits, dtype=float) for method, hits in found.items()}
    scores = {
        method: {
            "found": table.mean(0).tolist(),
            "gain": [gain(table[:, k] - tables[RIVAL][:, k], pages) for k in range(len(TOPS))],
        }
        for method, table in tables.items()
    }
    return {
        "questions": len(samples),
        "pages": len(set(pages)),
        "scores": scores,
        "calibration": calibration(np.concatenate(predicted), np.concatenate(true)),
    }


def of_another_page(samples: Sequence[Sample], number: int) -> Sample:
    """The next sample whose page is another; the sample itself if there is one page only."""
    following = (*samples[number:], *samples[:number])
    return next((later for later in following if later.image != samples[number].image), samples[number])


def channel_maps(path: Path, cells: tuple[int, int]) -> dict[str, np.ndarray]:
    """BY_IMAGE of an image file, on cells (h, w)."""
    image = to_tensor(path)
    levels = mipmap(image)
    return {
        name: functional.adaptive_avg_pool2d(channel(image, levels)[:, None], cells)[0, 0].numpy()
        for name, channel in BY_IMAGE.items()
    }


def answer_share(page: Page, boxes: Sequence[Sequence[float]]) -> np.ndarray:
    """(N,): 1 shared out by area over the words whose middle is in one of the answer's boxes; 0 if none is."""
    layout = layout_of(page)
    middle = (layout.boxes[:, :2] + layout.boxes[:, 2:]) / 2
    within = [(middle > (x0, y0)).all(1) & (middle < (x1, y1)).all(1) for x0, y0, x1, y1 in boxes]
    inside = np.any(within, axis=0) * layout.areas
    shares: np.ndarray = inside / max(inside.sum(), 1e-12)
    return shares


def calibration(predicted: np.ndarray, true: np.ndarray) -> list[dict[str, float]]:
    """For each bin of a word's probability: how many words, the mean probability, and the mean that came true."""
    rows = []
    for low, high in pairwise(BINS):
        chosen = (predicted > low) & (predicted <= high)
        if chosen.any():
            means = {"predicted": float(predicted[chosen].mean()), "true": float(true[chosen].mean())}
            rows.append({"low": low, "high": high, "words": int(chosen.sum()), **means})
    return rows


def gain(difference: np.ndarray, pages: Sequence[str]) -> list[float]:
    """The mean difference over questions and its 95% interval, pages resampled."""
    return ratio(difference, np.ones(len(pages)), pages)


def ratio(ours: np.ndarray, theirs: np.ndarray, pages: Sequence[str]) -> list[float]:
    """The sum of ours over the sum of theirs and its 95% interval, pages resampled."""
    _, which = np.unique(pages, return_inverse=True)
    return list(pooled_ratio(np.bincount(which, ours), np.bincount(which, theirs)))


def report(record: dict[str, Any]) -> str:
    tops = [f"top {100 * top:.0f}%" for top in TOPS]
    scores = record["scores"].items()
    calibrated = [
        (f"{row['low']:g} to {row['high']:g}", row["words"], f"{row['predicted']:.4f}", f"{row['true']:.4f}")
        for row in record["calibration"]
    ]
    return markdown_page(
        "# Relevance: how often the whole answer lies in the part of the page that a map ranks highest",
        provenance(record),
        f"{record['questions']} questions with a located answer on {record['pages']} pages, all `eval`. Cells of "
        f"{CELL}×{CELL} pixels; found if {100 * COVERED:.0f}% of one of the answer's boxes lies in the chosen cells. "
        "Words by RapidOCR.",
        markdown_table(
            ("map", *tops), [(method, *(f"{value:.3f}" for value in score["found"])) for method, score in scores]
        ),
        f"Difference to “{RIVAL}”, paired, with a 95% interval from resampling pages:",
        markdown_table(
            ("map", *tops),
            [(method, *map(format_interval, score["gain"])) for method, score in scores if method != RIVAL],
        ),
        "Calibration: words sorted by their probability; the words of an answer share what comes true by area.",
        markdown_table(("probability", "words", "mean probability", "came true"), calibrated),
    )


main = study_main(__name__, __doc__, measure, report, PAGES)
