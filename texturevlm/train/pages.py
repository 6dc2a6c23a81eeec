"""Real training pages, packed: each at the spotter's input size, with its words, questions and answer boxes.

    texturevlm pack-pages DATA --words CACHE --out FOLDER [--sets NAME ...] [--limit N]

DATA holds docvqa_half, funsd, sroie and chartqa; only their `train` pages are used. CACHE keeps the words of pages, one
folder per data set; a page that is not there is read by RapidOCR, which takes seconds. Answers of charts have no boxes:
they are searched among the words, and a question whose answer is not found is left out. FOLDER gets images as WebP and
pages.json, small enough to be carried to a machine with a GPU.
"""

import json
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from texturevlm.allocate.footprints import Box
from texturevlm.check import check_choice
from texturevlm.progress import Progress
from texturevlm.relevance.ocr import Page, Word, load_page
from texturevlm.scout.spotter import input_size
from texturevlm.text.strings import plain
from texturevlm.train.word_ranking import train_rows

CHARTS = "chartqa"
SETS = ("docvqa_half", "funsd", "sroie", CHARTS)
_LISTING = "pages.json"
_QUALITY = 50  # of WebP
_CONFIDENT = 0.6  # OCR words with less confidence are not used to teach reading
HELD_OUT = 12  # one document in so many is held out
MOST_MATCHES = 3  # an answer found more often is as likely to be there by accident
# "1200", "1,200", "1 200" and "$1200*" are one number; no part of "2019/20" is a number.
_NUMBER = re.compile(r"[^\w.-]*(-?(?:\d{1,3}(?:[ ,]\d{3})+|\d+)(?:\.\d+)?)\W*")


@dataclass(frozen=True, eq=False)
class TrainingPage:
    """One page at the spotter's input size; all boxes are in its pixels.

    image:     (H, W) uint8
    words:     (text, box) of the words that were read with confidence
    questions: (question, boxes of the answer)
    source:    the data set
    document:  pages of one document are held out together
    """

    image: np.ndarray
    words: tuple[tuple[str, Box], ...]
    questions: tuple[tuple[str, tuple[Box, ...]], ...]
    source: str
    document: str


def load_pages(folder: Path) -> list[TrainingPage]:
    """The pages that `pack` wrote."""
    listing = folder / _LISTING
    if not listing.is_file():
        raise FileNotFoundError(f"load_pages: {listing} must exist; make it with texturevlm pack-pages DATA")
    rows = json.loads(listing.read_text(encoding="utf-8"))
    with ThreadPoolExecutor() as readers:
        return list(readers.map(lambda row: _page(folder, row), rows))


def _page(folder: Path, row: dict[str, Any]) -> TrainingPage:
    with Image.open(folder / "pages" / row["file"]) as file:
        image = np.array(file.convert("L"))
    words = tuple((text, tuple(box)) for text, box, _, confidence in row["words"] if confidence >= _CONFIDENT)
    questions = tuple((question, tuple(map(tuple, boxes))) for question, boxes in row["questions"])
    return TrainingPage(image, words, questions, row["set"], row["document"])


def held_out(pages: Sequence[TrainingPage], seed: int = 7) -> list[bool]:
    """Which pages belong to held-out documents.

    Charts are drawn separately: whether they are included must not change which documents are held out.
    """
    kept: set[str] = set()
    for charts in (False, True):
        documents = sorted({page.document for page in pages if (page.source == CHARTS) == charts})
        order = np.random.default_rng(seed).permutation(len(documents))
        kept |= {documents[index] for index in order[: -(-len(documents) // HELD_OUT)]}
    return [page.document in kept for page in pages]


def pack(data: Path, cache: Path, out: Path, limit: int | None = None, *, sets: Sequence[str] = SETS) -> int:
    """Write the folder; returns the number of pages."""
    for name in sets:
        check_choice("pack", "sets", name, SETS)
    (out / "pages").mkdir(parents=True, exist_ok=True)
    by_image: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for name in dict.fromkeys(sets):
        for row in train_rows(data, name, limit):
            by_image.setdefault((name, row["image"]), []).append(row)
    listed = []
    progress = Progress(len(by_image), "pages")
    for (name, image), rows in by_image.items():
        listed.append(_packed(data, cache, out, name, image, rows))
        progress.step()
    (out / _LISTING).write_text(json.dumps(listed), encoding="utf-8")
    return len(listed)


def _packed(data: Path, cache: Path, out: Path, name: str, image: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    path = data / name / image
    with Image.open(path) as file:
        grey = file.convert("L")
    height, width = input_size((grey.height, grey.width))
    method = Image.Resampling.BOX if grey.height > 1.5 * height else Image.Resampling.BICUBIC
    file_name = f"{name}-{path.stem}.webp"
    grey.resize((width, height), method).save(out / "pages" / file_name, quality=_QUALITY, method=4)
    read = load_page(path, cache / name)

    def scaled(box: Sequence[float], size: Sequence[int]) -> list[float]:
        across, down = width / size[1], height / size[0]
        return [round(value * ratio, 1) for value, ratio in zip(box, (across, down, across, down))]

    if name == CHARTS:
        asked = [(row["question"], places, read.size) for row in rows if (places := located(read, row["answers"]))]
    else:
        asked = [(row["question"], row["boxes"], row["size"]) for row in rows]
    return {
        "file": file_name,
        "set": name,
        "document": f"{name}/{rows[0].get('document', image)}",
        "words": [[word.text, scaled(word.box, read.size), word.line, word.confidence] for word in read.words],
        "questions": [[question, [scaled(box, size) for box in boxes]] for question, boxes, size in asked],
    }


def located(page: Page, answers: Sequence[str]) -> list[Box]:
    """The boxes where one of the answers is printed, as words of one line; none if they are not informative.

    They are not if there are more than MOST_MATCHES, or if the answer is yes, no or one character: such answers are
    more often judged, counted or computed than read. Numbers are compared by value, all else by letters and digits.
    """
    found: set[Box] = set()
    for answer in answers:
        wanted, value = plain(answer), number_value(answer)
        if wanted in ("yes", "no") or sum(map(str.isalnum, wanted)) < 2:
            continue
        for _, words in groupby(page.words, key=lambda word: word.line):
            line = [word for word in words if plain(word.text)]  # drop bullets and the like
            runs = _spelled(line, wanted) if value is None else _numbers(line, value)
            found.update(_union(run) for run in runs)
    return sorted(found) if len(found) <= MOST_MATCHES else []


def number_value(text: str) -> float | None:
    """The value of a text that is one number, with any signs around it: "1,200" → 1200, "45 %" → 45."""
    match = _NUMBER.fullmatch(text.replace("−", "-"))
    return float(match[1].replace(",", "").replace(" ", "")) if match else None


def _spelled(line: Sequence[Word], wanted: str) -> Iterator[Sequence[Word]]:
    """Consecutive words whose letters and digits are those wanted."""
    for start in range(len(line)):
        text = ""
        for end, word in enumerate(line[start:], start + 1):
            text += plain(word.text)
            if text == wanted:
                yield line[start:end]
            if not wanted.startswith(text):
                break


def _numbers(line: Sequence[Word], value: float) -> Iterator[Sequence[Word]]:
    """Numbers of this value. Each takes as many words as form one number: the "152" of "60 932 152" is none."""
    start = 0
    while start < len(line):
        ends = range(len(line), start, -1)
        read = ((end, number_value(" ".join(word.text for word in line[start:end]))) for end in ends)
        end, said = next((one for one in read if one[1] is not None), (start + 1, None))
        if said == value:
            yield line[start:end]
        start = end


def _union(words: Sequence[Word]) -> Box:
    left, top, right, bottom = zip(*(word.box for word in words))
    return min(left), min(top), max(right), max(bottom)
