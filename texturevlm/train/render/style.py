"""The typography of one page: the pens of its headings, text, labels and filled-in values."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from texturevlm.train.render.fonts import Face, FontFamily, cached_face

FINE = 2  # pixels of the sheet per pixel of the page, along each axis
# Font sizes of running text in pixels of the page: real pages at half size have letters 5 to 9 pixels high.
_SMALLEST, _USUAL, _LARGEST = 9.0, 14.0, 24.0
# Widths of letters relative to the font file: narrow and wide type beyond what the files offer.
_STRETCHES = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.85, 0.92, 1.1, 1.2)


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
