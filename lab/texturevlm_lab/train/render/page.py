"""One rendered page: a layout stacks its kinds of blocks from top to bottom, marks are added, and it is scanned."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from texturevlm.check import check_size
from texturevlm_lab.train.render.fonts import families
from texturevlm_lab.train.render.marks import MARKS
from texturevlm_lab.train.render.prose import address_block, bullets, heading, notes, opening, paragraph, title
from texturevlm_lab.train.render.scan import scanned
from texturevlm_lab.train.render.sheet import FINE, Column, Pen, PlacedEntry, PlacedWord, Sheet, make_style
from texturevlm_lab.train.render.tables import chart, checks, fields, leaders, purchases, table
from texturevlm_lab.train.render.vocabulary import Vocabulary, fact

ARCHIVED = 0.35  # share of pages with an archive's address along the bottom
NOTE_HEIGHT = 28  # pixels
RECEIPT_TYPE = (10.0, 26.0)  # a receipt fills its picture, so its type may be large
TYPEWRITTEN = 0.25  # share of pages by a typewriter or a line printer
INVERTED = 0.03  # share of blocks in white on black

_Block = Callable[[Sheet, Column, float], float]


class PageKind(NamedTuple):
    """A kind of page: blocks at random in one or more columns."""

    weight: float  # how often it is drawn, relative to the others
    blocks: tuple[_Block, ...]  # what it stacks, as often as it is named
    titled: float = 1.0  # share of pages with a title
    first: tuple[_Block, ...] = ()  # blocks that always come before the others
    columns: tuple[int, ...] = (1,)  # to choose from
    most: tuple[int, int] = (99, 99)  # blocks per column, at least and at most
    strip: bool = False  # a narrow strip with large type, as receipts are


_ANY = (paragraph, heading, bullets, fields, checks, leaders, table, chart, address_block, paragraph)
LAYOUTS = {
    "letter": PageKind(3, (paragraph, paragraph, paragraph, bullets), 0.6, (opening,), most=(1, 6)),
    "form": PageKind(4, (fields, fields, fields, checks, heading, paragraph, table)),
    "table": PageKind(3, (table, table, heading, notes), 0.7),
    "article": PageKind(4, (paragraph, paragraph, paragraph, heading, bullets, table), 0.6, columns=(1, 2, 2, 2, 3)),
    "receipt": PageKind(
        2, (fields, heading, purchases, notes), 1.0, (address_block, fields, purchases), most=(1, 4), strip=True
    ),
    "slide": PageKind(0.7, (bullets, heading, heading, chart, fields), most=(5, 5)),
    "chart": PageKind(0.8, (chart, chart, notes, heading), most=(2, 5)),
    "contents": PageKind(1, (leaders, leaders, heading, fields, address_block), columns=(1, 1, 2)),
    "mixture": PageKind(3, _ANY, 0.0, columns=(1, 2, 2, 3)),  # brochures, newspapers, advertisements
}


def compose(page: Sheet, layout: PageKind) -> None:
    """Write a page of a kind."""
    rng = page.rng
    left, right = (page.width * rng.triangular(0.02, 0.16, 0.09) for _ in range(2))
    column = Column(left, page.width - right, page.height * rng.uniform(0.88, 0.97))
    y = page.height * rng.triangular(0.01, 0.15, 0.05)
    if layout.strip:
        width = min(page.width * 0.95, page.style.body.x_height * rng.uniform(38, 60))
        x0 = rng.uniform(4, page.width - width - 4)
        column = Column(x0, x0 + width, page.height * 0.97)
    if rng.random() < layout.titled:
        y = title(page, column, y)
    for block in layout.first:
        y = block(page, column, y)
    for part in column.split(rng.choice(layout.columns), gap=page.width * 0.033):
        top = y
        for _ in range(rng.randint(*layout.most)):
            if top + page.style.leading > part.bottom:
                break
            end = rng.choice(layout.blocks)(page, part, top)
            if rng.random() < INVERTED and end < part.bottom:
                page.invert(part.x0 - 5, top, part.x1 + 5, end)
            top = end + page.style.leading * rng.uniform(0, 1.2)


@dataclass(frozen=True)
class RenderedPage:
    """A page and its words."""

    image: NDArray[np.uint8]  # (H, W), white paper 255
    words: list[PlacedWord]  # (text, (x0, y0, x1, y1)) in pixels, every legible word, in no particular order
    entries: list[PlacedEntry] = field(default_factory=list)  # what can be asked for, if all of its words are legible


def render_page(
    generator: np.random.Generator,
    fonts: Sequence[Path],
    vocabulary: Vocabulary,
    size: tuple[int, int] = (1100, 850),
    layouts: Mapping[str, PageKind] = LAYOUTS,
) -> RenderedPage:
    """A random page; the same generator state, fonts, vocabulary and size give the same page.

    generator:  np.random.default_rng([seed, index]) makes page `index` of a seed, in any process
    fonts:      font files, from find_fonts
    vocabulary: the words to write
    size:       (height, width) in pixels
    layouts:    the kinds of pages, by name
    """
    size = check_size("render_page", size)
    if not fonts:
        raise ValueError("render_page: fonts must be at least one font file (find_fonts finds them), got none")
    rng = random.Random(int(generator.integers(1 << 62)))
    (layout,) = rng.choices(list(layouts.values()), [layout.weight for layout in layouts.values()])
    size_of_type = rng.uniform(*RECEIPT_TYPE) if layout.strip else None
    style = make_style(rng, families(tuple(fonts)), size=size_of_type, typewritten=rng.random() < TYPEWRITTEN)
    page = Sheet(size, rng, vocabulary, style)
    compose(page, layout)
    _add_numbers(page)
    for mark, chance in MARKS.items():
        if rng.random() < chance:
            mark(page)
    numbered = [(str(number), box) for number, (_, box) in enumerate(page.words)]  # some are lost in the scan
    image, left = scanned(generator, page.ink, numbered, rng)
    note: list[PlacedWord] = []
    if rng.random() < ARCHIVED:
        top = image.shape[0] - min(NOTE_HEIGHT, image.shape[0])
        image, note = _add_note(image, top, page)
        left = [word for word in left if word[1][3] <= top]
    words = [(page.words[int(number)][0], box) for number, box in left]
    entries = _entries_left(page.entries, [int(number) for number, _ in left])
    return RenderedPage(np.ascontiguousarray(image), words + note, entries)


def _entries_left(entries: Sequence[PlacedEntry], left: Sequence[int]) -> list[PlacedEntry]:
    """The entries of which all words are left, renumbered."""
    place = {number: index for index, number in enumerate(left)}
    found = []
    for kind, *parts in entries:
        if all(number in place for part in parts for number in part):
            label, value, head = (tuple(place[number] for number in part) for part in parts)
            found.append(PlacedEntry(kind, label, value, head))
    return found


def _add_numbers(page: Sheet) -> None:
    """The number of the page and an archive's number at the bottom, below everything else."""
    rng = page.rng
    if rng.random() < 0.4:
        y = page.height * rng.uniform(0.965, 0.98)
        number = fact(rng, "page_number")
        page.centre(number, 0, page.width * rng.choice((1, 1, 1.8)), y, page.style.body)
        if number.isdigit():
            page.remember("page", (), page.last(number))
    if rng.random() < 0.3:
        page.right(fact(rng, "number"), page.width * 0.97, page.height * 0.988, page.style.bold)


def _add_note(image: NDArray[np.uint8], top: int, page: Sheet) -> tuple[NDArray[np.uint8], list[PlacedWord]]:
    """An archive's address in grey along the bottom, added after the scan and so undegraded; and its words."""
    rng, height = page.rng, image.shape[0] - top
    strip = Sheet((height, image.shape[1]), rng, page.vocabulary, page.style)
    text = f"Source: https://www.{page.vocabulary.nonsense(rng)}.edu/docs/{fact(rng, 'code').lower().replace(' ', '')}"
    strip.centre(text, 0, strip.width, height * 0.6, Pen(page.style.body.face))
    ink = np.asarray(Image.fromarray(strip.ink).reduce(FINE)).astype(np.uint16)
    noted = image.copy()
    noted[top:] = (noted[top:] * (255 - ink) + rng.randint(110, 170) * ink) // 255
    return noted, [(word, (x0, y0 + top, x1, y1 + top)) for word, (x0, y0, x1, y1) in strip.words]
