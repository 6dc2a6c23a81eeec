"""Pages for the reader: rendered without end, or real ones of train splits with the words that OCR read on them.

    texturevlm pack-reader DATA --words CACHE --out FOLDER [--limit N]

FOLDER gets images as WebP, at most PAGE_SIZE, pages.json (words with boxes, annotated questions with answers) and
views.npz (see chosen.py).
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from texturevlm.allocate.footprints import Box
from texturevlm.progress import Progress
from texturevlm.relevance.ocr import load_page
from texturevlm.train.pages import HELD_OUT, train_rows
from texturevlm.train.reader.bill import bill
from texturevlm.train.reader.chosen import ChosenView, ChosenViews, choose_views, save_views
from texturevlm.train.reader.questions import LABELS, ReaderQuestion, entry_questions
from texturevlm.train.render import Vocabulary, render_page
from texturevlm.train.render.page import LAYOUTS, PageKind
from texturevlm.train.render.prose import heading, notes
from texturevlm.train.render.sheet import Column, PlacedWord, Sheet
from texturevlm.train.render.tables import fields, purchases
from texturevlm.train.render.vocabulary import fact, fill_form

PAGE_SIZE = (1100, 850)  # the largest page, height and width
_SETS = ("docvqa_half", "funsd", "sroie")
_SIZES = ((1100, 850), (1100, 850), (1100, 850), (1100, 850), (700, 600), (700, 600), (480, 700), (1000, 460))
_QUALITY = 45  # of WebP
_TYPE_SHARE = 0.6  # of OCR's boxes, see ReaderPage: the median of capitals and digits on train pages
_CONFIDENT = 0.6  # OCR words with less are neither read nor asked for
_DATES = ("##/##/20##", "##-##-20##", "##/##/##", "20##-##-##")


class ReaderPage(NamedTuple):
    """image: (H, W) uint8; words with boxes in its pixels; questions that were annotated or remembered."""

    image: NDArray[np.uint8]
    words: list[PlacedWord]
    questions: list[ReaderQuestion]
    views: Sequence[ChosenView] = ()  # made ahead for some of the questions
    type_share: float = 1.0  # height of type over the height of its boxes
    readable: bool = True  # False for a page that is turned or mirrored: nobody is to read it


def shop(page: Sheet, column: Column, y: float) -> float:
    """The head of a receipt: company, address, date."""
    rng, style = page.rng, page.style
    centred = rng.random() < 0.75

    def put(text: str, kind: str | None = None) -> tuple[int, ...]:
        nonlocal y
        pen = style.title if kind == "company" and style.title.width(text) < column.width else style.body
        y += max(style.leading, pen.x_height * 2.4)
        text = pen.shortened(text, column.width, least=1)
        page.write(text, column.start(pen.width(text), centred=centred), y, pen)
        return page.last(text)

    ending = rng.choice((" SDN BHD", " ENTERPRISE", " (M) SDN BHD", " TRADING", " RESTAURANT", ""))
    name = rng.choice((fact(rng, "company"), page.vocabulary.phrase(rng, longest=3).upper() + ending))
    page.remember("company", (), put(name, "company"))
    if rng.random() < 0.4:
        put(fill_form(rng, rng.choice(("(######-~)", "CO.REG : ######-~", "Co No: ######-~"))))
    words = [page.vocabulary.phrase(rng, longest=2).upper() for _ in range(3)]
    lines = (
        f"{rng.choice(('NO. ', 'LOT ', ''))}{rng.randint(1, 200)}, {rng.choice(('JALAN ', 'JLN ', ''))}{words[0]}",
        f"{rng.choice(('TAMAN ', 'BANDAR ', ''))}{words[1]},",
        fill_form(rng, f"##### {words[2]}{rng.choice(('.', '', ', JOHOR', ', SELANGOR'))}"),
    )
    page.remember("address", (), tuple(number for line in lines[: rng.randint(2, 3)] for number in put(line)))
    if rng.random() < 0.5:
        put(fact(rng, "telephone"))
    y += style.leading * rng.uniform(1, 2)
    x = column.x0
    called: tuple[int, ...] = ()
    if rng.random() < 0.7:
        label = rng.choice(("Date", "DATE", "Date:", "DATE :", "Invoice Date:", "Bill Date"))
        x = page.write(label, x, y, style.body) + rng.choice((5, 10, 60))
        called = page.last(label)
    date = fill_form(rng, rng.choice(_DATES)) if rng.random() < 0.7 else fact(rng, "date")
    x = page.write(date, x, y, style.body)
    page.remember("date", called, page.last(date))
    if rng.random() < 0.5:
        page.write(fact(rng, "clock"), x + 8, y, style.body)
    return y + style.leading


PAGE_KINDS = {
    **LAYOUTS,
    "form": LAYOUTS["form"]._replace(weight=5),
    "bill": PageKind(9, (notes, fields), 0.0, (bill,), most=(0, 2)),
    "receipt": PageKind(4, (fields, heading, notes), 0.0, (shop, purchases), most=(0, 2), strip=True),
}


def make_vocabulary(pages: Sequence[ReaderPage]) -> Vocabulary:
    """The words, and the labels of forms, of real pages that may be learned from."""
    asked = [question.text for page in pages for question in page.questions]
    texts = [text for page in pages for text, _ in page.words]
    forms = [text.rstrip(" :") for text in asked if "?" not in text and len(text) <= 32]  # FUNSD asks by label
    return Vocabulary([*texts, *asked], [*LABELS, *forms])


def rendered(
    rng: np.random.Generator, fonts: Sequence[Path], vocabulary: Vocabulary, *, wording: str = "asked"
) -> ReaderPage:
    """A random page with a question for everything that it remembers."""
    size = _SIZES[int(rng.integers(len(_SIZES)))]
    page = render_page(rng, fonts, vocabulary, size, PAGE_KINDS)
    return ReaderPage(page.image, page.words, entry_questions(page.words, page.entries, rng, wording=wording))


def turned(page: ReaderPage, *, across: bool, down: bool) -> ReaderPage:
    """A page mirrored along one axis, or upside down: boxes move along, and nothing on it is to be read."""
    height, width = page.image.shape

    def moved(boxes: Sequence[Box]) -> tuple[Box, ...]:
        table = np.array(boxes, np.float64).reshape(-1, 4)
        if across:
            table[:, [0, 2]] = width - table[:, [2, 0]]
        if down:
            table[:, [1, 3]] = height - table[:, [3, 1]]
        return tuple((x0, y0, x1, y1) for x0, y0, x1, y1 in table.tolist())

    image = np.ascontiguousarray(page.image[:: -1 if down else 1, :: -1 if across else 1])
    words = list(zip((text for text, _ in page.words), moved([box for _, box in page.words])))
    asked = [one._replace(boxes=moved(one.boxes), named=moved(one.named)) for one in page.questions]
    return page._replace(image=image, words=words, questions=asked, views=(), readable=False)


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
        """The pages to learn from, and those of held-out documents: the same ones whatever else is packed."""
        learned: list[int] = []
        held: list[int] = []
        for number, row in enumerate(self.rows):
            digest = hashlib.blake2b(row["document"].encode(), digest_size=8).digest()
            (learned if int.from_bytes(digest, "big") % HELD_OUT else held).append(number)
        return learned, held

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
        return ReaderPage(np.asarray(grey), words, asked, self._views.of(number, scale), _TYPE_SHARE)

    def texts(self, number: int) -> ReaderPage:
        """The words and questions without the image."""
        row = self.rows[number]
        asked = [ReaderQuestion(row["set"], text, answer, ()) for text, answer, _ in row["questions"]]
        return ReaderPage(np.zeros((1, 1), np.uint8), [(text, tuple(box)) for text, box in row["words"]], asked)


def pack_reader(data: Path, cache: Path, out: Path, limit: int | None = None, *, views: int = 2) -> int:
    """Write the folder from the `train` pages of DATA; returns the number of pages. views: made ahead per question"""
    out.mkdir(parents=True, exist_ok=True)
    by_image: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for name in _SETS:
        for row in train_rows(data, name, limit):
            by_image.setdefault((name, row["image"]), []).append(row)
    progress, listed, chosen = Progress(len(by_image), "pages"), [], []
    for number, ((name, image), rows) in enumerate(by_image.items()):
        row, width = _packed(data / name / image, cache / name, out, name, rows)
        texts, rng = [question[0] for question in row["questions"]], np.random.default_rng([11, number])
        with Image.open(data / name / image) as file:
            chosen.append(choose_views(file.convert("RGB"), width, texts, rng, each=views))
        listed.append(row)
        progress.step()
    save_views(chosen, out)
    (out / "pages.json").write_text(json.dumps(listed, separators=(",", ":")), encoding="utf-8")
    return len(listed)


def _packed(path: Path, cache: Path, out: Path, name: str, rows: list[dict[str, Any]]) -> tuple[dict[str, Any], int]:
    """Write a page; returns its row and the width of its image."""
    read = load_page(path, cache)
    with Image.open(path) as file:
        grey = file.convert("L")
    shrink = min(1.0, PAGE_SIZE[0] / grey.height, PAGE_SIZE[1] / grey.width)
    size = (round(grey.width * shrink), round(grey.height * shrink))
    method = Image.Resampling.BOX if shrink < 0.6 else Image.Resampling.BILINEAR
    file_name = f"{name}-{path.stem}.webp"
    grey.resize(size, method).save(out / file_name, quality=_QUALITY, method=4)

    def scaled(box: Sequence[float], of: Sequence[int]) -> list[float]:
        across, down = size[0] / of[1], size[1] / of[0]
        return [round(value * ratio, 1) for value, ratio in zip(box, (across, down, across, down))]

    questions = []
    for row in rows:
        answer = max(row["answers"], key=lambda text: sum(map(str.isupper, text)))  # as it is printed, if any is
        boxes = row["boxes"][:1] if name == "docvqa_half" else row["boxes"]  # there each box alone is enough
        if boxes and answer.isascii():
            questions.append([row["question"], answer, [scaled(box, row["size"]) for box in boxes]])
    words = [
        [word.text, scaled(word.box, read.size)]
        for word in read.words
        if word.confidence >= _CONFIDENT and word.text.isascii() and word.text.isprintable()
    ]
    document = f"{name}/{rows[0].get('document', path.name)}"
    return {"file": file_name, "set": name, "document": document, "words": words, "questions": questions}, size[0]
