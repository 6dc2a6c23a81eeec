"""The typography of one page: which pens its headings, text, labels and filled-in values are written with."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from texturevlm.train.render.faces import Face, face
from texturevlm.train.render.fonts import Family
from texturevlm.train.render.sheet import FINE, Pen

# Font sizes of running text in pixels of the page: real pages at half size have letters 5 to 9 pixels high.
SMALLEST, USUAL, LARGEST = 9.0, 14.0, 24.0
# How much wider the letters of a page are than drawn: narrow and wide type, more of it than there are files.
STRETCHES = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.85, 0.92, 1.1, 1.2)


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
    dice: random.Random, families: Sequence[Family], *, size: float | None = None, typewritten: bool = False
) -> Style:
    """A typography at random; `typewritten` wants letters of one width, hit unevenly, all of one size."""
    fixed = [family for family in families if family.fixed_width] or list(families)
    main = dice.choice(fixed if typewritten else families)
    second = main if typewritten or dice.random() < 0.6 else dice.choice(families)
    if size is None:
        size = dice.triangular(SMALLEST, LARGEST, USUAL)
    stretch = dice.choice(STRETCHES)
    tracking = dice.choice((0, 0, 0, dice.uniform(-0.6, 2.5)))
    shade = dice.choice((255, 255, 255, dice.randint(150, 254)))
    uneven = dice.uniform(0.2, 0.7) if typewritten and dice.random() < 0.7 else 0.0
    heavy = dice.random() < 0.12  # a page all in bold
    slanted = dice.random() < 0.04
    capitals = typewritten and dice.random() < 0.12

    def pen(family: Family, scale: float, *, bold: bool = False, italic: bool = False) -> Pen:
        drawn = _face(family.file(bold=bold, italic=italic), size * scale, stretch)
        return Pen(drawn, shade, tracking, uneven, capitals=capitals)

    body = pen(main, 1, bold=heavy, italic=slanted)
    grown = 1.0 if typewritten else dice.uniform(1.05, 1.5)
    return Style(
        body=body,
        bold=body if typewritten and dice.random() < 0.7 else pen(main, 1, bold=True),
        italic=pen(main, 1, italic=True),
        small=body if typewritten else pen(main, dice.uniform(0.7, 0.95)),
        heading=pen(second, grown, bold=dice.random() < 0.7, italic=dice.random() < 0.1),
        title=pen(second, 1.0 if typewritten else grown * dice.uniform(1, 1.8), bold=dice.random() < 0.7),
        filled=replace(pen(dice.choice(fixed), dice.uniform(0.9, 1.15)), uneven=dice.choice((0.0, 0.4))),
        leading=size * dice.uniform(1.1, 1.45),
    )


def _face(path: Path, size: float, stretch: float) -> Face:
    """The face nearest to a size; far sizes are rarer, so they are kept in coarser steps and the cache stays small."""
    fine = size * FINE
    step = 1 if fine < 24 else 2 if fine < 48 else 4
    return face(path, max(12, round(fine / step) * step), stretch)
