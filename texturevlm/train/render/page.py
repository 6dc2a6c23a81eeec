"""One rendered page: a layout stacks its kinds of blocks from top to bottom, marks are added, and it is scanned."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from texturevlm.check import check_size
from texturevlm.train.render.fonts import families
from texturevlm.train.render.marks import scatter_marks
from texturevlm.train.render.prose import address_block, bullets, heading, notes, opening, paragraph, title
from texturevlm.train.render.scan import scanned
from texturevlm.train.render.sheet import Column, PlacedWord, Sheet
from texturevlm.train.render.style import FINE, Pen, make_style
from texturevlm.train.render.tables import chart, checks, fields, leaders, purchases, table
from texturevlm.train.render.vocabulary import Vocabulary, code, number

ARCHIVED = 0.35  # share of pages with an archive's address along the bottom
NOTE_HEIGHT = 28  # pixels
RECEIPT_TYPE = (10.0, 26.0)  # a receipt fills its picture, so its type may be large
TYPEWRITTEN = 0.25  # share of pages by a typewriter or a line printer
INVERTED = 0.03  # share of blocks in white on black

_Block = Callable[[Sheet, Column, float], float]


@dataclass(frozen=True)
class RenderedPage:
    """A page and its words.

    image: (H, W) uint8, white paper 255
    words: (text, (x0, y0, x1, y1)) in pixels, every legible word, in no particular order
    """

    image: NDArray[np.uint8]
    words: list[PlacedWord]


def render_page(
    generator: np.random.Generator,
    fonts: Sequence[Path],
    vocabulary: Vocabulary,
    size: tuple[int, int] = (1100, 850),
) -> RenderedPage:
    """A random page; the same generator state, fonts, vocabulary and size give the same page.

    generator:  np.random.default_rng([seed, index]) makes page `index` of a seed, in any process
    fonts:      font files, from find_fonts
    vocabulary: the words to write
    size:       (height, width) in pixels
    """
    size = check_size("render_page", size)
    if not fonts:
        raise ValueError("render_page: fonts must be at least one font file (find_fonts finds them), got none")
    rng = random.Random(int(generator.integers(1 << 62)))
    (compose,) = rng.choices(list(LAYOUTS), list(LAYOUTS.values()))
    size_of_type = rng.uniform(*RECEIPT_TYPE) if compose is receipt else None
    style = make_style(rng, families(tuple(fonts)), size=size_of_type, typewritten=rng.random() < TYPEWRITTEN)
    page = Sheet(size, rng, vocabulary, style)
    compose(page)
    _add_numbers(page)
    scatter_marks(page)
    image, words = scanned(generator, page.ink, page.words, rng)
    if rng.random() < ARCHIVED:
        image, words = _add_note(image, words, page)
    return RenderedPage(np.ascontiguousarray(image), words)


def _stack(page: Sheet, column: Column, y: float, blocks: Sequence[_Block], *, most: int = 99) -> float:
    """Blocks at random, one below the other, until the column is full."""
    for _ in range(most):
        if y + page.style.leading > column.bottom:
            break
        end = page.rng.choice(blocks)(page, column, y)
        if page.rng.random() < INVERTED and end < column.bottom:
            page.invert(column.x0 - 5, y, column.x1 + 5, end)
        y = end + page.style.leading * page.rng.uniform(0, 1.2)
    return y


def _begin(page: Sheet, *, titled: float = 0.0) -> tuple[Column, float]:
    """The column within the margins, and where it starts; `titled`: the share of pages with a title above it."""
    rng = page.rng
    left, right = (page.width * rng.triangular(0.02, 0.16, 0.09) for _ in range(2))
    column = Column(left, page.width - right, page.height * rng.uniform(0.88, 0.97))
    y = page.height * rng.triangular(0.01, 0.15, 0.05)
    if titled == 1 or (titled and rng.random() < titled):
        y = title(page, column, y)
    return column, y


def letter(page: Sheet) -> None:
    """A letterhead, to whom, paragraphs, a name below."""
    column, y = _begin(page, titled=0.6)
    y = opening(page, column, y)
    _stack(page, column, y, (paragraph, paragraph, paragraph, bullets), most=page.rng.randint(1, 6))


def form(page: Sheet) -> None:
    """A printed form with typed answers."""
    column, y = _begin(page, titled=1)
    _stack(page, column, y, (fields, fields, fields, checks, heading, paragraph, table))


def table_page(page: Sheet) -> None:
    """Mostly numbers in columns."""
    column, y = _begin(page, titled=0.7)
    _stack(page, column, y, (table, table, heading, notes))


def article(page: Sheet) -> None:
    """Headings and paragraphs in one, two or three columns."""
    column, y = _begin(page, titled=0.6)
    for part in column.split(page.rng.choice((1, 2, 2, 2, 3)), gap=page.width * 0.035):
        _stack(page, part, y, (paragraph, paragraph, paragraph, heading, bullets, table))


def receipt(page: Sheet) -> None:
    """A narrow strip: the shop, what was bought, the sums."""
    rng = page.rng
    width = min(page.width * 0.95, page.style.body.x_height * rng.uniform(38, 60))
    x0 = rng.uniform(4, page.width - width - 4)
    column = Column(x0, x0 + width, page.height * 0.97)
    y = title(page, column, page.height * rng.uniform(0.01, 0.2))
    y = address_block(page, column, y)
    y = _stack(page, column, y, (fields, purchases), most=2)
    y = purchases(page, column, y)
    _stack(page, column, y, (fields, heading, purchases, notes), most=rng.randint(1, 4))


def slide(page: Sheet) -> None:
    """Few large words."""
    column, y = _begin(page)
    _stack(page, column, title(page, column, y + 30), (bullets, heading, heading, chart, fields), most=5)


def chart_page(page: Sheet) -> None:
    """A chart or two, little text."""
    column, y = _begin(page, titled=1)
    _stack(page, column, y, (chart, chart, notes, heading), most=page.rng.randint(2, 5))


def contents(page: Sheet) -> None:
    """Names and numbers joined by dots, in one or two columns."""
    column, y = _begin(page, titled=1)
    for part in column.split(page.rng.choice((1, 1, 2)), gap=30):
        _stack(page, part, y, (leaders, leaders, heading, fields, address_block))


def mixture(page: Sheet) -> None:
    """Anything beside anything: brochures, newspapers, advertisements."""
    column, y = _begin(page)
    blocks = (paragraph, heading, bullets, fields, checks, leaders, table, chart, address_block, paragraph)
    for part in column.split(page.rng.choice((1, 2, 2, 3)), gap=page.width * 0.03):
        _stack(page, part, y, blocks)


# How often each kind of page is drawn, relative to the others.
LAYOUTS: dict[Callable[[Sheet], None], float] = {
    letter: 3,
    form: 4,
    table_page: 3,
    article: 4,
    receipt: 2,
    slide: 0.7,
    chart_page: 0.8,
    contents: 1,
    mixture: 3,
}


def _add_numbers(page: Sheet) -> None:
    """The number of the page and an archive's number at the bottom, below everything else."""
    rng = page.rng
    if rng.random() < 0.4:
        text = rng.choice(("{}", "- {} -", "Page {}", "-{}-")).format(rng.randint(1, 300))
        y = page.height * rng.uniform(0.965, 0.98)
        page.centre(text, 0, page.width * rng.choice((1, 1, 1.8)), y, page.style.body)
    if rng.random() < 0.3:
        page.right(number(rng), page.width * 0.97, page.height * 0.988, page.style.bold)


def _add_note(
    image: NDArray[np.uint8], words: list[PlacedWord], page: Sheet
) -> tuple[NDArray[np.uint8], list[PlacedWord]]:
    """An archive's address in grey along the bottom, added after the scan and so undegraded."""
    rng = page.rng
    height = min(NOTE_HEIGHT, image.shape[0])
    strip = Sheet((height, image.shape[1]), rng, page.vocabulary, page.style)
    text = f"Source: https://www.{page.vocabulary.nonsense(rng)}.edu/docs/{code(rng).lower().replace(' ', '')}"
    strip.centre(text, 0, strip.width, height * 0.6, Pen(page.style.body.face))
    ink = np.asarray(Image.fromarray(strip.ink).reduce(FINE)).astype(np.uint16)
    top = image.shape[0] - height
    clear = [word for word in words if word[1][3] <= top]
    noted = image.copy()
    noted[top:] = (noted[top:] * (255 - ink) + rng.randint(110, 170) * ink) // 255
    return noted, clear + [(word, (x0, y0 + top, x1, y1 + top)) for word, (x0, y0, x1, y1) in strip.words]
