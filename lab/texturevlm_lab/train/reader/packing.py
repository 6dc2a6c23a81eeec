"""Real pages of train splits for the reader, with the words that OCR read on them.

    texturevlm pack-reader DATA --words CACHE --out FOLDER [--limit N]

FOLDER gets images as WebP, at most PAGE_SIZE, pages.json (words with boxes, annotated questions with answers) and
views.npz (see chosen.py).
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from texturevlm.progress import Progress
from texturevlm_lab.train.pages import CHARTS, HELD_OUT, is_measured_chart, load_page, located, train_rows
from texturevlm_lab.train.reader.chosen import ChosenView, ChosenViews, choose_views, save_views
from texturevlm_lab.train.reader.pages import PAGE_SIZE, ReaderPage
from texturevlm_lab.train.reader.questions import ReaderQuestion

_SETS = ("docvqa_half", "funsd", "sroie", CHARTS)
_QUALITY = 45  # of WebP
TYPE_SHARE = 0.6  # of OCR's boxes, see ReaderPage: the median of capitals and digits on train pages
_CONFIDENT = 0.6  # OCR words with less are neither read nor asked for


class RealPage(NamedTuple):
    """A page of a train split: its file, the rows of its data set about it, and the document that it is a page of."""

    source: str
    path: Path
    rows: list[dict[str, Any]]

    @property
    def document(self) -> str:
        return f"{self.source}/{self.rows[0].get('document', self.path.name)}"


def train_pages(data: Path, limit: int | None = None) -> list[RealPage]:
    """The pages that may be learned from. Of charts, which have no `eval` split, one in five is left for measuring."""
    found: dict[Path, RealPage] = {}
    for name in _SETS:
        for row in train_rows(data, name, limit):
            path = data / name / row["image"]
            if name != CHARTS or not is_measured_chart(path):
                found.setdefault(path, RealPage(name, path, [])).rows.append(row)
    return list(found.values())


def is_held(name: str, one_in: int = HELD_OUT) -> bool:
    """Whether a document, or another thing with a name, is held out: the same ones whatever else there is."""
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % one_in == 0


def read_page(page: RealPage, cache: Path) -> ReaderPage:
    """A page at its own size, with what OCR read (kept in `cache`) and the questions whose answer has a place."""
    read = load_page(page.path, cache / page.source)
    with Image.open(page.path) as file:
        image = np.asarray(file.convert("L"))
    height, width = image.shape

    def scaled(boxes: Sequence[Sequence[float]], size: Sequence[int]) -> tuple[Any, ...]:
        across, down = width / size[1], height / size[0]
        return tuple((x0 * across, y0 * down, x1 * across, y1 * down) for x0, y0, x1, y1 in boxes)

    questions = []
    for row in page.rows:
        answer = max(row["answers"], key=lambda text: sum(map(str.isupper, text)))  # as it is printed, if any is
        if page.source == CHARTS:
            places = located(read, row["answers"])
            boxes = scaled(places, read.size) if len(places) == 1 else ()
        else:
            boxes = scaled(row["boxes"], row["size"])
            boxes = boxes[:1] if page.source == "docvqa_half" else boxes  # there each box alone is enough
        if boxes and answer.isascii():
            questions.append(ReaderQuestion(page.source, row["question"], answer, boxes))
    sure = [word for word in read.words if word.confidence >= _CONFIDENT]
    words = [(word.text, word.box) for word in sure if word.text.isascii() and word.text.isprintable()]
    boxes = scaled([box for _, box in words], read.size)
    return ReaderPage(image, list(zip((text for text, _ in words), boxes)), questions, type_share=TYPE_SHARE)


def pack_reader(data: Path, cache: Path, out: Path, limit: int | None = None, *, views: int = 2) -> int:
    """Write the folder from the `train` pages of DATA; returns the number of pages. views: made ahead per question"""
    pages = train_pages(data, limit)
    out.mkdir(parents=True, exist_ok=True)
    progress, listed, chosen = Progress(len(pages), "pages"), [], []
    # spawn: threads of PyTorch and of OCR do not survive a fork
    with ProcessPoolExecutor(mp_context=get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)) as pool:
        made = pool.map(_pack_page, pages, repeat(cache), repeat(out), repeat(views), range(len(pages)))
        for row, own in made:
            listed.append(row)
            chosen.append(own)
            progress.step()
    save_views(chosen, out)
    (out / "pages.json").write_text(json.dumps(listed, separators=(",", ":")), encoding="utf-8")
    return len(listed)


def _pack_page(
    page: RealPage, cache: Path, out: Path, views: int, number: int
) -> tuple[dict[str, Any], list[ChosenView]]:
    """Write page `number`; returns its row and its views."""
    row, width = _packed(page, read_page(page, cache), out)
    texts, rng = [question[0] for question in row["questions"]], np.random.default_rng([11, number])
    with Image.open(page.path) as file:
        return row, choose_views(file.convert("RGB"), width, texts, rng, each=views)


def _packed(page: RealPage, read: ReaderPage, out: Path) -> tuple[dict[str, Any], int]:
    """Write a page; returns its row and the width of its image."""
    grey = Image.fromarray(read.image)
    shrink = min(1.0, PAGE_SIZE[0] / grey.height, PAGE_SIZE[1] / grey.width)
    size = (round(grey.width * shrink), round(grey.height * shrink))
    method = Image.Resampling.BOX if shrink < 0.6 else Image.Resampling.BILINEAR
    file_name = f"{page.source}-{page.path.stem}.webp"
    grey.resize(size, method).save(out / file_name, quality=_QUALITY, method=4)
    across, down = size[0] / grey.width, size[1] / grey.height

    def scaled(box: Sequence[float]) -> list[float]:
        return [round(value * ratio, 1) for value, ratio in zip(box, (across, down, across, down))]

    questions = [[one.text, one.answer, [scaled(box) for box in one.boxes]] for one in read.questions]
    words = [[text, scaled(box)] for text, box in read.words]
    row = {"file": file_name, "set": page.source, "document": page.document, "words": words, "questions": questions}
    return row, size[0]


class PackedPages:
    """The folder that `pack_reader` wrote; images stay compressed in memory."""

    def __init__(self, folder: Path) -> None:
        listing = folder / "pages.json"
        if not listing.is_file():
            raise FileNotFoundError(f"reader: {listing} must exist; make it with texturevlm pack-reader DATA")
        self.rows: list[dict[str, Any]] = json.loads(listing.read_text(encoding="utf-8"))
        self._files = [(folder / row["file"]).read_bytes() for row in self.rows]
        self._views = ChosenViews(folder)

    def split(self) -> tuple[list[int], list[int]]:
        """The pages to learn from, and those of held-out documents."""
        held = [is_held(row["document"]) for row in self.rows]
        return [number for number, one in enumerate(held) if not one], [
            number for number, one in enumerate(held) if one
        ]

    def size(self, number: int) -> tuple[int, int]:
        """Height and width of a page, from the head of its file."""
        with Image.open(io.BytesIO(self._files[number])) as file:
            return file.height, file.width

    def page(self, number: int, scale: float = 1.0) -> ReaderPage:
        """One page, `scale` times as large."""
        row = self.rows[number]
        with Image.open(io.BytesIO(self._files[number])) as file:
            grey = file.convert("L")
        if scale != 1:
            size = (max(32, round(grey.width * scale)), max(32, round(grey.height * scale)))
            grey = grey.resize(size, Image.Resampling.BILINEAR)

        def scaled(boxes: Sequence[Sequence[float]]) -> tuple[Any, ...]:
            return tuple(tuple(edge * scale for edge in box) for box in boxes)

        words = list(zip((text for text, _ in row["words"]), scaled([box for _, box in row["words"]])))
        asked = [ReaderQuestion(row["set"], text, answer, scaled(boxes)) for text, answer, boxes in row["questions"]]
        return ReaderPage(np.asarray(grey), words, asked, self._views.of(number, scale), TYPE_SHARE)

    def texts(self, number: int) -> ReaderPage:
        """The words and questions without the image."""
        row = self.rows[number]
        asked = [ReaderQuestion(row["set"], text, answer, ()) for text, answer, _ in row["questions"]]
        return ReaderPage(np.zeros((1, 1), np.uint8), [(text, tuple(box)) for text, box in row["words"]], asked)
