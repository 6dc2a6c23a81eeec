"""How many token pixels tall text must be to be legible, and the effect of stretching it, for each OCR engine.

    python -m texturevlm_lab.studies.readable_height DATA --out results [--limit N] [--ocr E,E] [--split train]

Each box of an answer that OCR reads in the full image is shrunk (means of equal cells, enlarged again, as by `resized`)
until it is a given number of token pixels tall, and read again. Then the same at equal token area, but shrunk more
across than down, and the reverse. The legibility curve (relevance/maps.py), the costs of stretching (allocate/value.py)
and the threshold of `recall` come from here, so it measures `train` pages: those that judge must not fit. Pages at half
size (docvqa_half) are enlarged to the size of the data set's pages before OCR.
"""

import argparse
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.allocate.value import FREE
from texturevlm.image import to_tensor
from texturevlm.rebuilding import PixelBox, shrunk_axis
from texturevlm_lab.evaluate.data import Sample, load_data
from texturevlm_lab.evaluate.legibility import as_bytes, crop_boxes
from texturevlm_lab.evaluate.markdown import markdown_page, markdown_table
from texturevlm_lab.evaluate.ocr import LineCrop, OcrEngine
from texturevlm_lab.evaluate.statistics import paired_difference
from texturevlm_lab.studies.study import OCR, READINGS, SPLIT, each, ocr_engines, provenance, read_scores, study_main

HEIGHTS = (2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 17, 20, 24)  # token pixels
RATIOS = (1 / 2, 2 / 3, 1, 3 / 2, 2)  # shrunk that many times more across than down
STRETCHED = (3, 4, 5, 6, 7, 8, 10)  # token pixels of the square of the same area
SHARES = (0.8, 0.9, 0.95)  # of the ceiling

Trial = tuple[float, float]  # height in token pixels, ratio
FULL: Trial = (math.inf, 1.0)
_SLOPES = np.arange(2, 10.01, 0.1)  # candidates of the curve's steepness
_MIDDLES = np.arange(1.5, 8.01, 0.05)  # and of the height at which half is legible


class Place(NamedTuple):
    """One box of an answer: its page, and its legibility in each trial."""

    page: str
    scores: dict[Trial, float]


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


def measure(samples: Sequence[Sample], engines: Mapping[str, OcrEngine]) -> dict[str, list[Place]]:
    """For each engine: the boxes that it reads in the full image, with their legibility in each trial."""
    found: dict[str, list[Place]] = {name: [] for name in engines}
    for sample in each(samples, "questions"):
        enlarge = round(sample.reduced)
        image = _grey(sample.image, enlarge)
        size = (image.shape[1], image.shape[2])
        boxes = [[enlarge * edge for edge in box] for box in sample.boxes]
        for box, place in zip(boxes, crop_boxes(boxes, size)):
            height = box[3] - box[1]
            tried = trials(height / enlarge)
            crops: dict[Trial, list[LineCrop]] = {}
            for wanted, ratio in tried:
                side = height / wanted
                crops[wanted, ratio] = [as_bytes(shrunk(image, place, side * ratio**0.5, side / ratio**0.5))]
            for name, engine in engines.items():
                scores = read_scores(engine, crops, sample.answers)
                if scores.pop(FULL) == 1:
                    found[name].append(Place(sample.image.name, scores))
    return found


@lru_cache(maxsize=1)  # the questions of a page follow one another
def _grey(path: Path, enlarge: int) -> Tensor:
    grey = to_tensor(path).mean(1, keepdim=True)
    return grey[0] if enlarge == 1 else functional.interpolate(grey, scale_factor=enlarge, mode="bicubic")[0]


def summary(found: Sequence[Place]) -> dict[str, Any]:
    """Both tables of one engine, the heights at which shares of the ceiling are reached, and what stretching costs."""
    heights = []
    for height in HEIGHTS:
        scores = [place.scores[height, 1.0] for place in found if (height, 1.0) in place.scores]
        if 2 * len(scores) >= len(found):  # the few places that are taller are other text
            heights.append({"height": height, "places": len(scores), "legibility": float(np.mean(scores))})
    curve = [(row["height"], row["legibility"]) for row in heights]
    ceiling = max(score for _, score in curve)
    stretched = []
    for height in STRETCHED:
        complete = [place for place in found if all((height, ratio) in place.scores for ratio in RATIOS)]
        if 2 * len(complete) < len(found):
            continue
        square, pages = [place.scores[height, 1.0] for place in complete], [place.page for place in complete]
        for ratio in RATIOS:
            own = [place.scores[height, ratio] for place in complete]
            row = {"height": height, "ratio": ratio, "places": len(own), "legibility": float(np.mean(own))}
            stretched.append({**row, "difference": list(paired_difference(own, square, groups=pages))})
    middle, steepness = fitted_curve(curve, ceiling)
    return {
        "places": len(found),
        "pages": len({place.page for place in found}),
        "ceiling": ceiling,
        "heights": heights,
        "reached": {str(share): reached(curve, share * ceiling) for share in SHARES},
        "half_legible": middle,
        "steepness": steepness,
        "stretched": stretched,
        "across": stretch_exponent(curve, stretched, lambda ratio: ratio),
        "along": stretch_exponent(curve, stretched, lambda ratio: 1 / (ratio * FREE)),
    }


def fitted_curve(curve: Sequence[tuple[float, float]], ceiling: float) -> tuple[float, float]:
    """The height h and the steepness a for which ceiling / (1 + (h / height)^a) is nearest to the curve."""
    heights, scores = np.array(curve).T
    middles, slopes = (part[..., None] for part in np.meshgrid(_MIDDLES, _SLOPES, indexing="ij"))
    errors = np.square(ceiling / (1 + (middles / heights) ** slopes) - scores).sum(-1)
    row, column = np.unravel_index(errors.argmin(), errors.shape)
    return float(_MIDDLES[row]), float(_SLOPES[column])


def reached(curve: Sequence[tuple[float, float]], wanted: float) -> float:
    """The height from which on the curve stays at or above a legibility; between two heights, a straight line."""
    last = curve[-1][0]
    for (low, below), (high, above) in reversed(list(pairwise(curve))):
        if below < wanted:
            return low + (high - low) * (wanted - below) / (above - below) if above >= wanted else math.inf
        last = low
    return last


def stretch_exponent(
    curve: Sequence[tuple[float, float]], stretched: Sequence[dict[str, Any]], excess: Callable[[float], float]
) -> float:
    """a, where text whose `excess` of its ratio is e > 1 reads like unstretched text e^a smaller; least squares.

    Only from the steep part of the curve: where everything or nothing is read, the height is undetermined.
    """
    heights = [height for height, _ in curve]
    rising = np.maximum.accumulate([score for _, score in curve])
    ratios, smaller = [], []
    for row in stretched:
        if excess(row["ratio"]) > 1.001 and 0.25 <= row["legibility"] <= 0.9:
            equal = float(np.interp(row["legibility"], rising, heights))
            ratios.append(math.log(excess(row["ratio"])))
            smaller.append(math.log(row["height"] / equal))
    return float(np.dot(ratios, smaller) / np.dot(ratios, ratios)) if ratios else 0.0


def report(record: dict[str, Any]) -> str:
    engines = record["engines"]
    blocks = []
    for name, own in engines.items():
        shares = ", ".join(f"{100 * float(share):.0f}% at {height:.1f}" for share, height in own["reached"].items())
        blocks += [
            f"## {name}: stretched, at equal token area",
            markdown_table(
                ("height", *(f"r = {Fraction(ratio).limit_denominator(9)}" for ratio in RATIOS), "places"),
                list(_stretched_rows(own)),
            ),
            f"Ceiling {own['ceiling']:.3f}; of it are reached: {shares} token pixels. The curve is nearest to "
            f"1 / (1 + ({own['half_legible']:.2f} / height)^{own['steepness']:.1f}). Text that is r times coarser "
            f"across than down (r > 1) reads like unstretched text r^{own['across']:.2f} times smaller; text that is "
            f"r times finer across, from r = {FREE:g} on, like text (r / {FREE:g})^{own['along']:.2f} times smaller.",
        ]
    counts = "; ".join(f"{name}: {own['places']} places on {own['pages']} pages" for name, own in engines.items())
    return markdown_page(
        "# How tall text must stand in the tokens' pixels to be read",
        provenance(record, *record["ocr"].values()),
        f"Answers to {record['questions']} `{record['split']}` questions of {record['data']}, those places that the "
        f"engine reads in the full image ({counts}). {record['left_out']} Height: of the answer's box, in "
        "token pixels. Legibility as in the evaluation, of one place.",
        markdown_table(("height", *(f"{name} (places)" for name in engines)), list(_height_rows(engines))),
        "Below: shrunk r times more across than down, so that the token pixels are r times wider than tall in the "
        "image; the height is that of the unstretched square of the same area. In brackets: the paired difference to "
        "r = 1 with its 95% interval from resampling pages.",
        *blocks,
    )


def _height_rows(engines: Mapping[str, Any]) -> Iterator[Sequence[object]]:
    for height in HEIGHTS:
        rows = [[row for row in own["heights"] if row["height"] == height] for own in engines.values()]
        if any(rows):
            yield height, *(f"{row[0]['legibility']:.3f} ({row[0]['places']})" if row else "–" for row in rows)


def _stretched_rows(own: dict[str, Any]) -> Iterator[Sequence[object]]:
    for height in STRETCHED:
        if rows := [row for row in own["stretched"] if row["height"] == height]:
            cells = [f"{row['legibility']:.3f}" + ("" if row["ratio"] == 1 else _bracket(row)) for row in rows]
            yield height, *cells, rows[0]["places"]


def _bracket(row: dict[str, Any]) -> str:
    mean, low, high = row["difference"]
    return f" ({mean:+.3f}, {low:+.3f} to {high:+.3f})"


def study(options: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(1)
    data = load_data(options.data, split=options.split, located=True, limit=options.limit)
    engines = ocr_engines(options)
    found = measure(data.samples, engines)
    if empty := [name for name, places in found.items() if not places]:
        raise ValueError(f"readable_height: DATA must hold answers that OCR reads, got none by {', '.join(empty)}")
    return {
        "data": options.data.name,
        "split": options.split,
        "left_out": data.left_out,
        "ocr": {name: engine.name for name, engine in engines.items()},
        "questions": len(data.samples),
        "engines": {name: summary(places) for name, places in found.items()},
    }


main = study_main(__name__, __doc__, study, report, OCR, READINGS, SPLIT)
