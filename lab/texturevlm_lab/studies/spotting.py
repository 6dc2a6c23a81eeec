"""How well the scout spots a question's words on real pages, against RapidOCR: mean average precision.

Tesseract reads the page at full resolution. Its word boxes are ranked for each word of the page's questions; a box is
right if Tesseract reads that word there. The scout ranks a box by the best cosine of the word with the spots in it,
RapidOCR by the similarity of the word and what it read there. Equal values are in random order. The average is over the
words that are on their page.
"""

from __future__ import annotations

import csv
import io
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps

from texturevlm.allocate.footprints import Box
from texturevlm.progress import Progress
from texturevlm.relevance.ocr import Page, Word, load_page
from texturevlm.scout import Scout, Spots
from texturevlm.scout.question import letter_codes, letter_features
from texturevlm.scout.spotter import SPOT
from texturevlm.text.strings import STOP, plain, terms, word_similarity
from texturevlm.types import Texture
from texturevlm_lab.evaluate.data import Sample
from texturevlm_lab.evaluate.ocr import Tesseract, run_tesseract
from texturevlm_lab.studies.relevance import descending, gain
from texturevlm_lab.studies.study import evenly

SHORTEST = 3  # letters or digits of a query word
SAME = 0.5  # of the smaller of two boxes that overlap as much: RapidOCR read that word there
HEIGHTS = (0, 9, 12, 16, 1000)  # of words, in pixels of what the spotter saw
METHODS = ("scout", "RapidOCR", "random order")


def measure_spotting(samples: Sequence[Sample], cache: Path | None, scout: Scout, limit: int) -> dict[str, Any]:
    """On at most `limit` pages of the samples, evenly spread; needs tesseract 5."""
    asked: dict[Path, list[str]] = {}
    for sample in samples:
        asked.setdefault(sample.image, []).append(sample.question)
    images = evenly(list(asked), limit)
    tesseract, progress = Tesseract(), Progress(len(images), "pages read by Tesseract")
    which, rows = [], []
    for image in images:
        page, words = tesseract_page(image, cache, tesseract.program), sought_words(asked[image])
        found = _precisions(image, page, load_page(image, cache), scout, words) if page.words and words else []
        rows += found
        which += [str(image)] * len(found)
        progress.step()
    record: dict[str, Any] = {"reader": tesseract.name.split(" --")[0], "pages": len(images), "words": len(rows)}
    if not rows:
        return record
    height, scores = np.array(rows)[:, 0], np.array(rows)[:, 1:]
    by_height = []
    for low, high in pairwise(HEIGHTS):
        chosen = (height >= low) & (height < high)
        if chosen.any():
            means = dict(zip(METHODS, scores[chosen].mean(0).tolist()))
            by_height.append({"low": low, "high": high, "words": int(chosen.sum()), "precision": means})
    return {
        **record,
        "precision": {method: gain(scores[:, column], which) for column, method in enumerate(METHODS)},
        "difference": gain(scores[:, 0] - scores[:, 1], which),
        "by height": by_height,
    }


def _precisions(image: Path, page: Page, read: Page, scout: Scout, words: list[str]) -> list[list[float]]:
    """For each word that is on the page: its height as the scout sees it, and the average precision by METHODS."""
    boxes, texts = [word.box for word in page.words], [plain(word.text) for word in page.words]
    spots = scout.read(Texture.open(image).mipmapped())
    heights = np.array([y1 - y0 for _, y0, _, y1 in boxes]) * (spots.text.shape[1] * SPOT / page.size[0])
    by_method = np.stack(
        [
            scout_scores(scout, spots, boxes, page.size, words),
            rapidocr_scores(read, boxes, words),
            np.zeros((len(words), len(boxes))),
        ],
        1,
    )
    found = []
    for word, scores in zip(words, by_method):
        right = np.array([text == word for text in texts])
        if right.any():
            found.append([float(np.median(heights[right])), *(average_precision(values, right) for values in scores)])
    return found


def sought_words(questions: Sequence[str]) -> list[str]:
    """The words of questions that say something, each once, as `plain` makes them."""
    words = {word for question in questions for word, _ in terms(question)}
    return sorted(word for word in words if len(word) >= SHORTEST and word not in STOP)


def tesseract_page(image: Path, cache: Path | None, program: str = "tesseract") -> Page:
    """The words that Tesseract reads on a page; from the folder `tesseract` in `cache` if they are there, or kept."""

    def read(image: Path) -> Page:
        with Image.open(image) as opened:
            upright = ImageOps.exif_transpose(opened).convert("L")
        with tempfile.TemporaryDirectory(prefix="texturevlm-") as folder:
            upright.save(Path(folder) / "page.ppm")
            done = run_tesseract([program, f"{folder}/page.ppm", "-", "tsv"])
        if done.returncode != 0:
            reason = done.stderr.strip()
            raise OSError(f"tesseract_page: {program} ended with {done.returncode} on {image}: {reason:.300}")
        return Page(words_of_table(done.stdout), (upright.height, upright.width))

    return load_page(image, None if cache is None else cache / "tesseract", read)


def words_of_table(table: str) -> tuple[Word, ...]:
    """The words in what `tesseract … tsv` prints, without those that have neither letter nor digit."""
    words, lines = [], dict[tuple[str, ...], int]()
    for row in csv.DictReader(io.StringIO(table), delimiter="\t", quoting=csv.QUOTE_NONE):
        if row["level"] != "5" or not plain(row["text"] or ""):
            continue
        line = lines.setdefault((row["block_num"], row["par_num"], row["line_num"]), len(lines))
        x, y, width, height = (float(row[name]) for name in ("left", "top", "width", "height"))
        words.append(Word(row["text"], (x, y, x + width, y + height), line, float(row["conf"]) / 100))
    return tuple(words)


@torch.inference_mode()
def scout_scores(
    scout: Scout, spots: Spots, boxes: Sequence[Box], size: tuple[int, int], words: Sequence[str]
) -> np.ndarray:
    """(words, boxes): the greatest cosine of the word with the spots whose middle is in the box.

    boxes: xyxy in pixels of a page of `size`
    """
    looked_for = scout.spotter.embed(letter_features(letter_codes(words)).to(scout.dtype)).float()
    cosine = torch.einsum("kd,dhw->khw", looked_for, spots.words[0].float())
    down, across = cosine.shape[1] / size[0], cosine.shape[2] / size[1]
    best = []
    for x0, y0, x1, y1 in boxes:
        rows = _middles(y0 * down, y1 * down, cosine.shape[1])
        columns = _middles(x0 * across, x1 * across, cosine.shape[2])
        best.append(cosine[:, rows, columns].amax((1, 2)))
    return torch.stack(best, 1).numpy()


def _middles(low: float, high: float, count: int) -> slice:
    """The parts, each 1 long, whose middle lies between low and high; at least the one that holds their middle."""
    first, last = round(low), round(high)
    if last <= first:
        first = int((low + high) / 2)
        last = first + 1
    return slice(min(first, count - 1), max(1, min(last, count)))


def rapidocr_scores(page: Page, boxes: Sequence[Box], words: Sequence[str]) -> np.ndarray:
    """(words, boxes): how alike the word and the likest of the page's words in the box are."""
    alike = word_similarity(words, [plain(word.text) for word in page.words])
    theirs = np.array([word.box for word in page.words], dtype=float).reshape(-1, 4)
    ours = np.array(boxes, dtype=float).reshape(-1, 4)
    both = np.minimum(ours[:, None, 2:], theirs[:, 2:]) - np.maximum(ours[:, None, :2], theirs[:, :2])
    smaller = np.minimum(_areas(ours)[:, None], _areas(theirs))
    same = both.clip(0).prod(2) >= SAME * smaller
    best: np.ndarray = np.where(same, alike[:, None], 0.0).max(2, initial=0.0)
    return best


def _areas(boxes: np.ndarray) -> np.ndarray:
    areas: np.ndarray = np.maximum((boxes[:, 2:] - boxes[:, :2]).prod(1), 1e-9)
    return areas


def average_precision(values: np.ndarray, right: np.ndarray) -> float:
    """The mean, over the right ones, of the share of right ones among those ranked as high or higher."""
    places = np.flatnonzero(right[descending(values)])
    return float(np.mean(np.arange(1, len(places) + 1) / (places + 1)))
