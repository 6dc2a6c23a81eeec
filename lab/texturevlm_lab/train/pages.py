"""Real training pages, packed: each at the spotter's input size, with its words, questions and answer boxes.

    texturevlm pack-pages DATA --words CACHE --out FOLDER [--sets NAME ...] [--limit N]

DATA holds docvqa_half, funsd, sroie and chartqa; only their `train` pages are used. CACHE keeps the words of pages, one
folder per data set; a page that is not there is read by RapidOCR, which takes seconds. Answers of charts have no boxes:
they are searched among the words, and a question whose answer is not found is left out. FOLDER gets images as WebP and
pages.json, small enough to be carried to a machine with a GPU.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import combinations, groupby
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from texturevlm.allocate.footprints import Box
from texturevlm.check import check_choice
from texturevlm.progress import Progress
from texturevlm.relevance.ocr import Page, Word, read_page
from texturevlm.scout.spotter import input_size
from texturevlm.text.strings import plain

CHARTS = "chartqa"
SETS = ("docvqa_half", "funsd", "sroie", CHARTS)
ONE_ANSWER = ("funsd",)  # data sets where all boxes together are the answer
_LISTING = "pages.json"
_QUALITY = 50  # of WebP
_CONFIDENT = 0.6  # OCR words with less confidence are not used to teach reading
HELD_OUT = 12  # one document in 12 is held out
MOST_MATCHES = 3  # an answer found more often is as likely to be there by accident
# "1200", "1,200", "1 200" and "$1200*" are one number; no part of "2019/20" is a number.
_NUMBER = re.compile(r"[^\w.-]*(-?(?:\d{1,3}(?:[ ,]\d{3})+|\d+)(?:\.\d+)?)\W*")


@dataclass(frozen=True, eq=False)
class TrainingPage:
    """One page at the spotter's input size; all boxes are in its pixels."""

    image: np.ndarray  # (H, W) uint8
    words: tuple[tuple[str, Box], ...]  # those that were read with confidence
    questions: tuple[tuple[str, tuple[Box, ...]], ...]  # with the boxes of the answer
    source: str  # the data set
    document: str  # pages of one document are held out together


def name_hash(path: Path) -> int:
    """sha256 of a file's name, as a number."""
    return int(hashlib.sha256(path.name.encode()).hexdigest(), 16)


def is_measured_chart(path: Path) -> bool:
    """Whether a chart belongs to the fifth of ChartQA that stands for its missing `eval` split."""
    return name_hash(path) % 5 == 0


def train_rows(data: Path, name: str, limit: int | None) -> list[dict[str, Any]]:
    """The `train` questions of the first `limit` pages of a data set."""
    listing = data / name / "questions.jsonl"
    if not listing.is_file():
        raise FileNotFoundError(f"DATA must hold {name}/questions.jsonl, got {data}")
    rows = [json.loads(line) for line in listing.read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if row["split"] == "train"]
    pages = set(list(dict.fromkeys(row["image"] for row in rows))[:limit])
    return [row for row in rows if row["image"] in pages]


def load_pages(folder: Path) -> list[TrainingPage]:
    """The pages that `pack` wrote."""
    listing = folder / _LISTING
    if not listing.is_file():
        raise FileNotFoundError(f"load_pages: {listing} must exist; make it with texturevlm pack-pages DATA")

    def read(row: dict[str, Any]) -> TrainingPage:
        with Image.open(folder / "pages" / row["file"]) as file:
            image = np.array(file.convert("L"))
        words = tuple((text, tuple(box)) for text, box, _, confidence in row["words"] if confidence >= _CONFIDENT)
        questions = tuple((question, tuple(map(tuple, boxes))) for question, boxes in row["questions"])
        return TrainingPage(image, words, questions, row["set"], row["document"])

    with ThreadPoolExecutor() as readers:
        return list(readers.map(read, json.loads(listing.read_text(encoding="utf-8"))))


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


def held_images(data: Path, name: str) -> set[str]:
    """Names of the images of a data set whose documents the training of the scout held out."""
    rows = [(one, row) for one in SETS for row in train_rows(data, one, None)]
    empty = np.zeros((1, 1), np.uint8)
    pages = [TrainingPage(empty, (), (), one, f"{one}/{row.get('document', row['image'])}") for one, row in rows]
    return {Path(row["image"]).name for (one, row), held in zip(rows, held_out(pages)) if held and one == name}


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


def load_page(image: Path, cache: Path | None) -> Page:
    """The page of an image file: from the folder `cache` if it was read before, else read and stored there."""
    kept = None if cache is None else cache / f"{image.name}.json"
    if kept is not None and kept.is_file():
        return Page.from_json(kept.read_text(encoding="utf-8"))
    page = read_page(image)
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(page.to_json(), encoding="utf-8")
    return page


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
            runs = (line[start:end] for start, end in combinations(range(len(line) + 1), 2))
            for run in runs if value is None else _numbers(line):
                text = " ".join(word.text for word in run)
                if plain(text) == wanted if value is None else number_value(text) == value:
                    left, top, right, bottom = zip(*(word.box for word in run))
                    found.add((min(left), min(top), max(right), max(bottom)))
    return sorted(found) if len(found) <= MOST_MATCHES else []


def number_value(text: str) -> float | None:
    """The value of a text that is one number, with any signs around it: "1,200" → 1200, "45 %" → 45."""
    match = _NUMBER.fullmatch(text.replace("−", "-"))
    return float(match[1].replace(",", "").replace(" ", "")) if match else None


def _numbers(line: Sequence[Word]) -> Iterator[Sequence[Word]]:
    """A line in runs of words, as many in each as form one number: "60 932 152" is one run, not three."""
    start = 0
    while start < len(line):
        runs = (line[start:end] for end in range(len(line), start, -1))
        numbers = (run for run in runs if number_value(" ".join(word.text for word in run)) is not None)
        run = next(numbers, line[start : start + 1])
        yield run
        start += len(run)
