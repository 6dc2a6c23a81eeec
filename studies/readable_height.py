"""How many token pixels tall text must be to be legible, and the effect of stretching it.

    python -m studies.readable_height DATA --out results [--limit N] [--ocr auto]

Each box of an answer that OCR reads in the full image is shrunk (means of equal cells, enlarged again, as by `resized`)
until it is a given number of token pixels tall, and read again. Then the same at equal token area, but shrunk more
across than down, and the reverse. `recall` takes its threshold from here.
"""

import argparse
import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from studies.study import READINGS, option, provenance, study_main
from texturevlm.evaluate.data import Sample, load_data
from texturevlm.evaluate.legibility import as_bytes, crop_boxes, similarity
from texturevlm.evaluate.markdown import markdown_page, markdown_table
from texturevlm.evaluate.ocr import CachedOcr, OcrEngine, open_ocr
from texturevlm.evaluate.statistics import paired_difference
from texturevlm.image import to_tensor
from texturevlm.progress import Progress
from texturevlm.rebuilding import PixelBox, shrunk_axis

HEIGHTS = (4, 5, 6, 7, 8, 9, 10, 12, 14, 17, 20, 24)  # token pixels
RATIOS = (1 / 2, 2 / 3, 1, 3 / 2, 2)  # shrunk that many times more across than down
STRETCHED = (5, 6, 7, 8, 9, 10, 12)  # token pixels of the square of the same area
SHARES = (0.8, 0.9, 0.95)  # of the ceiling

Trial = tuple[float, float]  # height in token pixels, ratio
FULL: Trial = (math.inf, 1.0)


def shrunk(image: Tensor, box: PixelBox, across: float, down: float) -> Tensor:
    """A part of an image (C, H, W) averaged over cells of across × down pixels; an axis of 1 or less stays."""
    left, top, right, bottom = box
    height, width = image.shape[1:]
    part = image
    if down > 1:
        means, blend, source = shrunk_axis(height, max(1, round(height / down)), top, bottom, image)
        part = blend @ (means @ part[:, source])
    else:
        part = part[:, top:bottom]
    if across > 1:
        means, blend, source = shrunk_axis(width, max(1, round(width / across)), left, right, image)
        return (part[:, :, source] @ means.mT) @ blend.mT
    return part[:, :, left:right]


def trials(height: float) -> list[Trial]:
    """The heights and ratios to which a box of this height can be shrunk without enlarging either axis."""
    plain = [(float(wanted), 1.0) for wanted in HEIGHTS]
    stretched = [(float(wanted), ratio) for wanted in STRETCHED for ratio in RATIOS if ratio != 1]
    return [
        FULL,
        *((wanted, ratio) for wanted, ratio in plain + stretched if height / wanted >= max(ratio, 1 / ratio) ** 0.5),
    ]


def measure(samples: Sequence[Sample], ocr: OcrEngine) -> list[dict[Trial, float]]:
    """For each box that OCR reads in the full image: its legibility in each trial."""
    found = []
    progress = Progress(len(samples), "questions")
    for sample in samples:
        image = _grey(sample.image)
        for box, place in zip(sample.boxes, crop_boxes(sample.boxes, sample.size)):
            height = box[3] - box[1]
            tried = trials(height)
            crops = []
            for wanted, ratio in tried:
                side = height / wanted
                crops.append(as_bytes(shrunk(image, place, side * ratio**0.5, side / ratio**0.5)))
            texts = ocr.read(crops)
            scores = {
                trial: max(similarity(text, answer) for answer in sample.answers) for trial, text in zip(tried, texts)
            }
            if scores.pop(FULL) == 1:
                found.append(scores)
        progress.step()
    return found


@lru_cache(maxsize=1)  # the questions of a page follow one another
def _grey(path: Path) -> Tensor:
    return to_tensor(path)[0].mean(0, keepdim=True)


def summary(found: Sequence[dict[Trial, float]]) -> dict[str, Any]:
    """Both tables, the heights at which shares of the ceiling are reached, and what stretching is worth."""
    heights = []
    for height in HEIGHTS:
        scores = [scores[height, 1.0] for scores in found if (height, 1.0) in scores]
        if scores:
            heights.append({"height": height, "places": len(scores), "legibility": float(np.mean(scores))})
    curve = [(row["height"], row["legibility"]) for row in heights]
    ceiling = max(score for _, score in curve)
    stretched = []
    for height in STRETCHED:
        complete = [scores for scores in found if all((height, ratio) in scores for ratio in RATIOS)]
        if not complete:
            continue
        square = [scores[height, 1.0] for scores in complete]
        for ratio in RATIOS:
            own = [scores[height, ratio] for scores in complete]
            row = {"height": height, "ratio": ratio, "places": len(own), "legibility": float(np.mean(own))}
            stretched.append({**row, "difference": list(paired_difference(own, square))})
    return {
        "ceiling": ceiling,
        "heights": heights,
        "reached": {str(share): reached(curve, share * ceiling) for share in SHARES},
        "stretched": stretched,
        "across": across_exponent(curve, stretched),
    }


def reached(curve: Sequence[tuple[float, float]], wanted: float) -> float:
    """The height from which on the curve stays at or above a legibility; between two heights, a straight line."""
    last = curve[-1][0]
    for (low, below), (high, above) in reversed(list(pairwise(curve))):
        if below < wanted:
            return low + (high - low) * (wanted - below) / (above - below) if above >= wanted else math.inf
        last = low
    return last


def across_exponent(curve: Sequence[tuple[float, float]], stretched: Sequence[dict[str, Any]]) -> float:
    """a, where text r times coarser across than down (r > 1) reads like unstretched text r^a smaller; least squares.

    Only from the steep part of the curve: where everything or nothing is read, the height is undetermined.
    """
    heights = [height for height, _ in curve]
    rising = np.maximum.accumulate([score for _, score in curve])
    ratios, smaller = [], []
    for row in stretched:
        if row["ratio"] > 1 and 0.25 <= row["legibility"] <= 0.9:
            equal = float(np.interp(row["legibility"], rising, heights))
            ratios.append(math.log(row["ratio"]))
            smaller.append(math.log(row["height"] / equal))
    return float(np.dot(ratios, smaller) / np.dot(ratios, ratios)) if ratios else 0.0


def report(record: dict[str, Any]) -> str:
    shares = ", ".join(f"{100 * float(share):.0f}% at {height:.1f}" for share, height in record["reached"].items())
    stretched = []
    for height in STRETCHED:
        rows = [row for row in record["stretched"] if row["height"] == height]
        if rows:
            cells = [f"{row['legibility']:.3f}" + ("" if row["ratio"] == 1 else _bracket(row)) for row in rows]
            stretched.append((height, *cells, rows[0]["places"]))
    return markdown_page(
        "# How tall text must stand in the tokens' pixels to be read",
        provenance(record, record["ocr"]),
        f"{record['places']} places of answers to {record['questions']} questions, those that OCR reads in the "
        "full image. Height: of the answer's box, in token pixels. Legibility as in the evaluation, of one place.",
        markdown_table(
            ("height", "legibility", "places"),
            [(row["height"], f"{row['legibility']:.3f}", row["places"]) for row in record["heights"]],
        ),
        f"The ceiling is {record['ceiling']:.3f}; of it are reached: {shares} token pixels.",
        "## Stretched, at equal token area",
        "Shrunk r times more across than down, so that the token pixels are r times wider than tall in the image; the "
        "height is that of the unstretched square of the same area. In brackets: the paired difference to r = 1 with "
        "its 95% bootstrap interval.",
        markdown_table(
            ("height", *(f"r = {Fraction(ratio).limit_denominator(9)}" for ratio in RATIOS), "places"), stretched
        ),
        f"Text that is r times coarser across than down (r > 1) reads like unstretched text r^{record['across']:.2f} "
        "times smaller.",
    )


def _bracket(row: dict[str, Any]) -> str:
    mean, low, high = row["difference"]
    return f" ({mean:+.3f}, {low:+.3f} to {high:+.3f})"


def study(options: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(1)
    samples = load_data(options.data, located=True, limit=options.limit).samples
    ocr = CachedOcr(open_ocr(options.ocr), options.readings)
    found = measure(samples, ocr)
    counts = {"questions": len(samples), "places": len(found)}
    return {"data": options.data.name, "ocr": ocr.name, **counts, **summary(found)}


OCR = option("--ocr", default="auto", help="auto, tesseract or rapidocr (default: auto)")
main = study_main(__name__, __doc__, study, report, OCR, READINGS)
