"""Blocks of running text: headings, paragraphs, lists and addresses, one below the other in a column.

Every block is a function (page, column, y) → y: it starts below y and returns where the next one may start.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from texturevlm.train.render.sheet import Pen, Sheet
from texturevlm.train.render.style import Style
from texturevlm.train.render.vocabulary import Vocabulary, company, date, digits, person, phone


class Column(NamedTuple):
    """The area of text: from x0 to x1, down to `bottom`."""

    x0: float
    x1: float
    bottom: float

    def split(self, count: int, gap: float) -> list["Column"]:
        """Columns side by side."""
        width = (self.x1 - self.x0 - gap * (count - 1)) / count
        return [
            Column(self.x0 + i * (width + gap), self.x0 + i * (width + gap) + width, self.bottom) for i in range(count)
        ]


@dataclass(frozen=True)
class PageContext:
    """What every block needs: the sheet, random numbers, the vocabulary and the typography."""

    sheet: Sheet
    rng: random.Random
    vocabulary: Vocabulary
    style: Style


def wrapped(words: Sequence[str], pen: Pen, width: float) -> Iterator[list[str]]:
    """Words in lines that are no wider than `width`; a single word that is wider is left out."""
    line: list[str] = []
    used = 0.0
    for word in words:
        alone = pen.width(word)
        if alone > width:
            continue
        more = alone + (pen.space if line else 0)
        if line and used + more > width:
            yield line
            line, used, more = [], 0.0, alone
        line.append(word)
        used += more
    if line:
        yield line


def heading(page: PageContext, column: Column, y: float) -> float:
    """A line or two in larger letters, left or centred, sometimes numbered, sometimes underlined."""
    rng, sheet = page.rng, page.sheet
    pen = rng.choice((page.style.heading, page.style.heading, page.style.bold))
    text = page.vocabulary.phrase(rng, longest=6)
    if rng.random() < 0.25:
        text = rng.choice(("{}. ", "{}.1 ", "({}) ", "Table {}. ", "Figure {}: ")).format(rng.randint(1, 9)) + text
    centred = rng.random() < 0.4
    step = pen.x_height * 2.6
    y += step * 0.4
    for line in wrapped(text.split(), pen, column.x1 - column.x0):
        y += step
        if y > column.bottom:
            return y
        text = " ".join(line)
        x = (column.x0 + column.x1 - pen.width(text)) / 2 if centred else column.x0
        sheet.write(text, x, y - step * 0.25, pen)
        if rng.random() < 0.15:
            sheet.rule(x, y - step * 0.08, x + pen.width(text), y - step * 0.08)
    return y + step * rng.uniform(0.1, 0.6)


def paragraph(page: PageContext, column: Column, y: float, *, sentences: int | None = None) -> float:
    """A few sentences, justified or ragged, with words in bold or italics among them."""
    rng, style = page.rng, page.style
    count = sentences or rng.randint(1, 6)
    words = [word for _ in range(count) for word in page.vocabulary.sentence(rng)]
    pen = rng.choice((style.body,) * 8 + (style.italic, style.bold))
    justified = rng.random() < 0.4
    indent = rng.choice((0, 0, 2 * style.leading))
    emphasis = rng.choice((pen, pen, style.bold, style.italic))
    underlined = rng.choice((0, 0, 0, 0.05))
    lines = list(wrapped(words, pen, column.x1 - column.x0 - indent))
    for number, line in enumerate(lines):
        y += style.leading
        if y > column.bottom:
            return y
        x = column.x0 + (indent if number == 0 else 0)
        space = pen.space
        if justified and number < len(lines) - 1 and len(line) > 1:
            slack = column.x1 - x - sum(pen.width(word) for word in line)
            space = min(slack / (len(line) - 1), 4 * pen.space)
        for word in line:
            used = emphasis if emphasis is not pen and rng.random() < 0.08 else pen
            base = y - style.leading * 0.25
            end = page.sheet.write(word, x, base, used)
            if rng.random() < underlined:
                page.sheet.rule(x, base + 1.5, end, base + 1.5)
            x = end + space
    return y + style.leading * rng.uniform(0, 1)


def bullets(page: PageContext, column: Column, y: float) -> float:
    """A list, each item with a dot, a dash, a number or a letter before it."""
    rng, style = page.rng, page.style
    marks = rng.choice(("-", "*", "o", "1.", "(1)", "a)", "A."))
    hang = style.body.width("(99) ")
    for item in range(rng.randint(2, 8)):
        mark = marks.replace("1", str(item + 1)).replace("a", "abcdefgh"[item]).replace("A", "ABCDEFGH"[item])
        words = page.vocabulary.sentence(rng)
        for number, line in enumerate(wrapped(words, style.body, column.x1 - column.x0 - hang)):
            y += style.leading
            if y > column.bottom:
                return y
            if number == 0:
                page.sheet.write(mark, column.x0, y - style.leading * 0.25, style.body)
            page.sheet.write(" ".join(line), column.x0 + hang, y - style.leading * 0.25, style.body)
        y += style.leading * 0.3
    return y + style.leading * 0.5


def address_lines(page: PageContext) -> list[str]:
    """Who and where: the lines above a letter or on a card."""
    rng, vocabulary = page.rng, page.vocabulary
    street, town = (vocabulary.phrase(rng, longest=count).title() for count in (2, 1))
    lines = [
        person(rng),
        company(rng),
        f"{rng.randint(1, 9999)} {street} {rng.choice(('Street', 'Avenue', 'Rd.'))}",
        f"{town}, {rng.choice(('NY', 'N.C.', 'Texas', 'Va.'))} {digits(rng, '#####')}",
        f"{rng.choice(('Tel:', 'Phone', 'TEL :', 'Fax:'))} {phone(rng)}",
    ]
    return lines[rng.randint(0, 1) : rng.randint(3, 5)]


def address_block(page: PageContext, column: Column, y: float) -> float:
    """An address, left or centred."""
    centred = page.rng.random() < 0.3
    for line in address_lines(page):
        if page.style.body.width(line) > column.x1 - column.x0:
            continue
        y += page.style.leading
        if y > column.bottom:
            return y
        if centred:
            page.sheet.centre(line, column.x0, column.x1, y - page.style.leading * 0.25, page.style.body)
        else:
            page.sheet.write(line, column.x0, y - page.style.leading * 0.25, page.style.body)
    return y + page.style.leading


def opening(page: PageContext, column: Column, y: float) -> float:
    """How a letter or a memorandum begins: the date, to whom, about what."""
    rng, style, sheet = page.rng, page.style, page.sheet
    if rng.random() < 0.5:
        y += style.leading
        sheet.write(date(rng), column.x0 + (column.x1 - column.x0) * rng.choice((0, 0.6)), y, style.body)
        y = address_block(page, column, y + style.leading)
        sheet.write(f"Dear {person(rng)}:", column.x0, y + style.leading, style.body)
        return y + 2.5 * style.leading
    tab = style.body.width("SUBJECT:  ")
    casing = rng.choice((str.upper, str.title))
    for label in ("to:", "from:", "date:", rng.choice(("subject:", "re:"))):
        y += style.leading * rng.choice((1, 1.5))
        value = {"date:": date(rng), "to:": person(rng), "from:": person(rng)}.get(label)
        sheet.write(casing(label), column.x0, y, style.body)
        sheet.write(value or page.vocabulary.phrase(rng, longest=6), column.x0 + tab, y, style.body)
    if rng.random() < 0.5:
        sheet.rule(column.x0, y + style.leading / 2, column.x1, y + style.leading / 2)
    return y + style.leading
