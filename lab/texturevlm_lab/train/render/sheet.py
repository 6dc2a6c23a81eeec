"""The sheet that a page is printed on, at twice the page's resolution, and the pens that write on it.

All positions and lengths are in pixels of the finished page. Ink is 0 where the paper is blank and 255 where it is
black. Words are recorded with their boxes; those that do not fit on the paper are not written.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from texturevlm.allocate.footprints import Box
from texturevlm_lab.train.render.fonts import Face, FontFamily, cached_face
from texturevlm_lab.train.render.vocabulary import Vocabulary

FINE = 2  # pixels of the sheet per pixel of the page, along each axis
# Font sizes of running text in pixels of the page: real pages at half size have letters 5 to 9 pixels high.
_SMALLEST, _USUAL, _LARGEST = 9.0, 14.0, 24.0
# Widths of letters relative to the font file: narrow and wide type beyond what the files offer.
_STRETCHES = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.85, 0.92, 1.1, 1.2)

Grey = NDArray[np.uint8]
PlacedWord = tuple[str, Box]
WordNumbers = tuple[int, ...]


class PlacedEntry(NamedTuple):
    """Something that can be asked for: a kind, and the numbers of the words of its label, its value and its column."""

    kind: str
    label: WordNumbers
    value: WordNumbers
    head: WordNumbers = ()


@dataclass(frozen=True)
class Pen:
    """How words are written: face, darkness, letter spacing, unevenness of a typewriter, upper case only.

    Lengths are in pixels of the page, except for tracking and uneven, which are in pixels of the sheet.
    """

    face: Face
    shade: int = 255
    tracking: float = 0.0
    uneven: float = 0.0
    capitals: bool = False

    @property
    def x_height(self) -> float:
        return self.face.x_height / FINE

    @property
    def space(self) -> float:
        return (self.face.space + self.tracking) / FINE

    def width(self, text: str) -> float:
        return (self.face.width(self.spelled(text)) + self.tracking * len(text)) / FINE

    def spelled(self, text: str) -> str:
        return text.upper() if self.capitals else text

    def shortened(self, text: str, width: float, *, least: int = 0) -> str:
        """As many of a text's first words as fit into `width`, at least `least` of them."""
        words = text.split()
        while len(words) > least and self.width(" ".join(words)) > width:
            words.pop()
        return " ".join(words)


@dataclass(frozen=True)
class Style:
    """The pens of a page and the distance between its lines, in pixels."""

    body: Pen
    bold: Pen
    italic: Pen
    small: Pen
    heading: Pen
    title: Pen
    filled: Pen  # what is typed into a printed form
    leading: float


def make_style(
    rng: random.Random, families: Sequence[FontFamily], *, size: float | None = None, typewritten: bool = False
) -> Style:
    """A random typography; `typewritten`: letters of one width and size, hit unevenly."""
    fixed = [family for family in families if family.fixed_width] or list(families)
    main = rng.choice(fixed if typewritten else families)
    second = main if typewritten or rng.random() < 0.6 else rng.choice(families)
    size = rng.triangular(_SMALLEST, _LARGEST, _USUAL) if size is None else size
    stretch = rng.choice(_STRETCHES)
    tracking = rng.choice((0, 0, 0, rng.uniform(-0.6, 2.5)))
    shade = rng.choice((255, 255, 255, rng.randint(150, 254)))
    uneven = rng.uniform(0.2, 0.7) if typewritten and rng.random() < 0.7 else 0.0
    heavy = rng.random() < 0.12  # a page all in bold
    slanted = rng.random() < 0.04
    capitals = typewritten and rng.random() < 0.12

    def pen(family: FontFamily, scale: float, *, bold: bool = False, italic: bool = False) -> Pen:
        fine = size * scale * FINE
        step = 1 if fine < 24 else 2 if fine < 48 else 4  # large sizes in coarser steps, to keep the cache small
        face = cached_face(family.file(bold=bold, italic=italic), max(12, round(fine / step) * step), stretch)
        return Pen(face, shade, tracking, uneven, capitals)

    body = pen(main, 1, bold=heavy, italic=slanted)
    grown = 1.0 if typewritten else rng.uniform(1.05, 1.5)
    return Style(
        body=body,
        bold=body if typewritten and rng.random() < 0.7 else pen(main, 1, bold=True),
        italic=pen(main, 1, italic=True),
        small=body if typewritten else pen(main, rng.uniform(0.7, 0.95)),
        heading=pen(second, grown, bold=rng.random() < 0.7, italic=rng.random() < 0.1),
        title=pen(second, 1.0 if typewritten else grown * rng.uniform(1, 1.8), bold=rng.random() < 0.7),
        filled=replace(pen(rng.choice(fixed), rng.uniform(0.9, 1.15)), uneven=rng.choice((0.0, 0.4))),
        leading=size * rng.uniform(1.1, 1.45),
    )


class Column(NamedTuple):
    """An area of text: from x0 to x1, down to `bottom`."""

    x0: float
    x1: float
    bottom: float

    @property
    def width(self) -> float:
        return self.x1 - self.x0

    def start(self, width: float, *, centred: bool) -> float:
        """Where a text of a width begins."""
        return self.x0 + (self.width - width) / 2 if centred else self.x0

    def split(self, count: int, gap: float) -> list["Column"]:
        """Cut a column into so many, side by side."""
        width = (self.width - gap * (count - 1)) / count
        starts = [self.x0 + i * (width + gap) for i in range(count)]
        return [Column(start, start + width, self.bottom) for start in starts]


class Sheet:
    """Blank paper of (height, width), with what decides what is written on it: random numbers, words, typography."""

    def __init__(self, size: tuple[int, int], rng: random.Random, vocabulary: Vocabulary, style: Style) -> None:
        self.height, self.width = size
        self.rng, self.vocabulary, self.style = rng, vocabulary, style
        self.ink = np.zeros((size[0] * FINE, size[1] * FINE), np.uint8)
        self.words: list[PlacedWord] = []
        self.entries: list[PlacedEntry] = []

    def write(self, text: str, x: float, y: float, pen: Pen, *, label: bool = True) -> float:
        """One line from x on, with its baseline at y; returns where it ends. Each word is recorded with its box."""
        for count, word in enumerate(pen.spelled(text).split(" ")):
            if count:
                x += pen.space
            if word:
                self._write_word(word, x, y, pen, label)
                x += pen.width(word)
        return x

    def _write_word(self, word: str, x: float, y: float, pen: Pen, label: bool) -> None:
        place, line = x * FINE, round(y * FINE)
        placed = []
        for glyph in [pen.face[sign] for sign in word]:
            hop = round(self.rng.gauss(0, pen.uneven)) if pen.uneven else 0
            placed.append((glyph.ink, round(place) + glyph.left, line + glyph.top + hop))
            place += glyph.advance + pen.tracking
        left = min(at for _, at, _ in placed)
        top = min(line - pen.face.x_height, *(at for _, _, at in placed))
        right = max(at + ink.shape[1] for ink, at, _ in placed)
        bottom = max(line, *(at + ink.shape[0] for ink, _, at in placed))
        if left < 0 or top < 0 or right > self.ink.shape[1] or bottom > self.ink.shape[0]:
            return
        for ink, across, down in placed:
            shade = int(pen.shade * self.rng.uniform(0.55, 1)) if pen.uneven else pen.shade
            if shade != 255:
                ink = (ink.astype(np.uint16) * shade >> 8).astype(np.uint8)
            spot = self.ink[down : down + ink.shape[0], across : across + ink.shape[1]]
            np.maximum(spot, ink, out=spot)
        if label:
            self.words.append((word, (left / FINE, top / FINE, right / FINE, bottom / FINE)))

    def centre(self, text: str, x0: float, x1: float, y: float, pen: Pen) -> None:
        """One line in the middle between x0 and x1."""
        self.write(text, (x0 + x1 - pen.width(text)) / 2, y, pen)

    def right(self, text: str, x1: float, y: float, pen: Pen) -> None:
        """One line that ends at x1."""
        self.write(text, x1 - pen.width(text), y, pen)

    def last(self, text: str) -> WordNumbers:
        """The numbers of the words of a text that was just written; none if a word of it did not fit on the paper."""
        wanted = text.casefold().split()
        first = len(self.words) - len(wanted)
        written = [word.casefold() for word, _ in self.words[max(0, first) :]]
        return tuple(range(first, len(self.words))) if wanted and written == wanted else ()

    def remember(self, kind: str, label: WordNumbers, value: WordNumbers, head: WordNumbers = ()) -> None:
        """Record an entry, if its value was written."""
        if value:
            self.entries.append(PlacedEntry(kind, label, value, head))

    def fill(self, x0: float, y0: float, x1: float, y1: float, shade: int = 255) -> None:
        """Lay ink over a rectangle."""
        spot = self._within(x0, y0, x1, y1)
        np.maximum(spot, shade, out=spot, casting="unsafe")

    def invert(self, x0: float, y0: float, x1: float, y1: float) -> None:
        """White on black within a rectangle."""
        spot = self._within(x0, y0, x1, y1)
        np.subtract(255, spot, out=spot)

    def _within(self, *box: float) -> Grey:
        """The ink in a rectangle, xyxy, as a view."""
        left, top, right, bottom = (max(0, round(edge * FINE)) for edge in box)
        return self.ink[top:bottom, left:right]

    def rule(self, x0: float, y0: float, x1: float, y1: float, *, thick: float = 1.0, dash: float = 0.0) -> None:
        """A line along one axis; with `dash` it is broken into pieces of that length."""
        if not dash:
            self.fill(x0, y0, max(x1, x0 + thick), max(y1, y0 + thick))
            return
        while x0 < x1:
            self.fill(x0, y0, min(x1, x0 + dash), y0 + thick)
            x0 += dash * 1.8

    def frame(self, x0: float, y0: float, x1: float, y1: float, *, thick: float = 1.0) -> None:
        """The outline of a rectangle."""
        for edges in ((x0, y0, x1, y0), (x0, y1, x1, y1), (x0, y0, x0, y1), (x1, y0, x1, y1 + thick)):
            self.rule(*edges, thick=thick)

    def stamp(self, patch: Grey, x: float, y: float) -> None:
        """Print a patch of ink, in pixels of the sheet, with its corner at (x, y); cut at the edges of the sheet."""
        across, down = round(x * FINE), round(y * FINE)
        spot = self.ink[down : down + patch.shape[0], across : across + patch.shape[1]]
        np.maximum(spot, patch[: spot.shape[0], : spot.shape[1]], out=spot)


def drawn_path(points: Sequence[tuple[float, float]], *, thick: int, shade: int = 255) -> Grey:
    """A patch with lines through the points, which are in pixels of the page; around them is a border of `thick`."""
    x0, y0 = (min(part) for part in zip(*points))
    path = [((x - x0) * FINE + thick, (y - y0) * FINE + thick) for x, y in points]
    width, height = (int(max(part)) + 2 * thick for part in zip(*path))
    patch = Image.new("L", (width, height))
    ImageDraw.Draw(patch).line(path, fill=shade, width=thick)
    return np.array(patch)
