"""Pages for the reader: what a page is to it, and pages that are rendered without end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from texturevlm.allocate.footprints import Box
from texturevlm_lab.train.reader.bill import bill
from texturevlm_lab.train.reader.chosen import ChosenView
from texturevlm_lab.train.reader.questions import LABELS, ReaderQuestion, entry_questions
from texturevlm_lab.train.render import Vocabulary, render_page
from texturevlm_lab.train.render.page import LAYOUTS, PageKind
from texturevlm_lab.train.render.prose import heading, notes, paragraph
from texturevlm_lab.train.render.sheet import Column, PlacedWord, Sheet
from texturevlm_lab.train.render.tables import fields, purchases
from texturevlm_lab.train.render.vocabulary import fact, fill_form

PAGE_SIZE = (1100, 850)  # the largest page, height and width
_SIZES = ((1100, 850), (1100, 850), (1100, 850), (1100, 850), (700, 600), (700, 600), (480, 700), (1000, 460))
_DATES = ("##/##/20##", "##-##-20##", "##/##/##", "20##-##-##")


class ReaderPage(NamedTuple):
    """image: (H, W) uint8; words with boxes in its pixels; questions that were annotated or remembered."""

    image: NDArray[np.uint8]
    words: list[PlacedWord]
    questions: list[ReaderQuestion]
    views: Sequence[ChosenView] = ()  # made ahead for some of the questions
    type_share: float = 1.0  # height of type over the height of its boxes
    readable: bool = True  # False for a page that is turned, mirrored or spoiled: nobody is to read it


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
    "bill": PageKind(9, (notes, fields, paragraph), 0.0, (bill,), columns=(1, 1, 2), most=(0, 3)),
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


def spoiled(page: ReaderPage, rng: np.random.Generator) -> ReaderPage:
    """A page with nothing to read: blank paper, its own pieces in another order, shades as in a photograph, or letters
    upside down, as strange as another alphabet, beside digits that are as they were."""
    image: NDArray[Any] = page.image.copy()
    height, width = image.shape
    words, questions, kind = page.words, page.questions, rng.integers(4)
    if kind == 0:
        noise = rng.integers(0, 1 + int(rng.integers(24)), (height, width))
        image = np.clip(int(rng.integers(160, 256)) - noise, 0, 255)
    elif kind == 1:
        side = int(rng.choice((16, 24, 32, 48)))
        rows, columns = height // side, width // side
        pieces = image[: rows * side, : columns * side].reshape(rows, side, columns, side).swapaxes(1, 2)
        mixed = rng.permutation(pieces.reshape(-1, side, side)).reshape(rows, columns, side, side).swapaxes(1, 2)
        image[: rows * side, : columns * side] = mixed.reshape(rows * side, columns * side)
    elif kind == 2:
        # Digits alone can be read, but not what they mean, if a question must find them by a label.
        words = [word for word in words if any(map(str.isalpha, word[0]))]
        questions = [one for one in questions if one.named or any(map(str.isalpha, one.answer))]
        for _, (x0, y0, x1, y1) in words:
            spot = image[max(0, int(y0)) : int(np.ceil(y1)), max(0, int(x0)) : int(np.ceil(x1))]
            spot[:] = spot[::-1, ::-1].copy()
    else:
        shades = np.zeros((height, width))
        for cells, weight in ((3, 1.0), (9, 0.7), (40, 0.4), (150, 0.2)):
            knots = Image.fromarray(rng.uniform(0, weight, (cells, cells)).astype(np.float32))
            shades += np.asarray(knots.resize((width, height), Image.Resampling.BICUBIC))
        image = (shades - shades.min()) / np.ptp(shades) * 255
    return page._replace(image=image.astype(np.uint8), words=words, questions=questions, views=(), readable=False)
