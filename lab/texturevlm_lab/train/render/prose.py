"""Blocks of running text: titles, headings, paragraphs, lists and addresses, one below the other in a column.

Every block is a function (page, column, y) → y: it starts below y and returns where the next one may start.
"""

from collections.abc import Iterator, Sequence

from texturevlm_lab.train.render.sheet import Column, Pen, Sheet
from texturevlm_lab.train.render.vocabulary import fact


def wrapped(words: Sequence[str], pen: Pen, width: float) -> Iterator[list[str]]:
    """Words in lines that are no wider than `width`; a single word that is wider is left out."""
    line: list[str] = []
    for word in words:
        if pen.width(word) > width:
            continue
        if line and pen.width(" ".join([*line, word])) > width:
            yield line
            line = []
        line.append(word)
    if line:
        yield line


def title(page: Sheet, column: Column, y: float) -> float:
    """The name of the page or the firm at the top, now and then white on black."""
    rng, pen = page.rng, page.style.title
    text = fact(rng, "company") if rng.random() < 0.4 else page.vocabulary.phrase(rng)
    text = pen.shortened(text, column.width - 8, least=1)
    y += pen.x_height * 2.6
    page.write(text, column.start(pen.width(text), centred=rng.random() < 0.67), y, pen)
    page.remember("title", (), page.last(text))
    if rng.random() < 0.12:
        page.invert(column.x0, y - pen.x_height * 2.4, column.x1, y + pen.x_height)
    return y + pen.x_height * 2


def heading(page: Sheet, column: Column, y: float) -> float:
    """A line or two in larger letters, left or centred, sometimes numbered, sometimes underlined."""
    rng = page.rng
    pen = rng.choice((page.style.heading, page.style.heading, page.style.bold))
    text = page.vocabulary.phrase(rng, longest=6)
    if rng.random() < 0.25:
        text = f"{fact(rng, 'section')} {text}"
    centred = rng.random() < 0.4
    step = pen.x_height * 2.6
    y += step * 0.4
    for line in wrapped(text.split(), pen, column.width):
        if (y := y + step) > column.bottom:
            return y
        text = " ".join(line)
        x = column.start(pen.width(text), centred=centred)
        page.write(text, x, y - step * 0.25, pen)
        if rng.random() < 0.15:
            page.rule(x, y - step * 0.08, x + pen.width(text), y - step * 0.08)
    return y + step * rng.uniform(0.1, 0.6)


def paragraph(page: Sheet, column: Column, y: float, *, sentences: int | None = None) -> float:
    """A few sentences, justified or ragged, with words in bold or italics among them."""
    rng, style = page.rng, page.style
    words = [word for _ in range(sentences or rng.randint(1, 6)) for word in page.vocabulary.sentence(rng)]
    pen = rng.choice((style.body,) * 8 + (style.italic, style.bold))
    justified = rng.random() < 0.4
    indent = rng.choice((0, 0, 2 * style.leading))
    emphasis = rng.choice((pen, pen, style.bold, style.italic))
    underlined = rng.choice((0, 0, 0, 0.05))
    lines = list(wrapped(words, pen, column.width - indent))
    for number, line in enumerate(lines):
        if (y := y + style.leading) > column.bottom:
            return y
        x, base = column.x0 + (indent if number == 0 else 0), y - style.leading * 0.25
        space = pen.space
        if justified and number < len(lines) - 1 and len(line) > 1:
            slack = column.x1 - x - sum(pen.width(word) for word in line)
            space = min(slack / (len(line) - 1), 4 * pen.space)
        for word in line:
            used = emphasis if emphasis is not pen and rng.random() < 0.08 else pen
            end = page.write(word, x, base, used)
            if rng.random() < underlined:
                page.rule(x, base + 1.5, end, base + 1.5)
            x = end + space
    return y + style.leading * rng.uniform(0, 1)


def notes(page: Sheet, column: Column, y: float) -> float:
    """One or two sentences below a table."""
    return paragraph(page, column, y, sentences=page.rng.randint(1, 2))


def bullets(page: Sheet, column: Column, y: float) -> float:
    """A list, each item with a dot, a dash, a number or a letter before it."""
    rng, pen, leading = page.rng, page.style.body, page.style.leading
    marks = rng.choice(("-", "*", "o", "1.", "(1)", "a)", "A."))
    hang = pen.width("(99) ")
    for item in range(rng.randint(2, 8)):
        mark = marks.replace("1", str(item + 1)).replace("a", "abcdefgh"[item]).replace("A", "ABCDEFGH"[item])
        for number, line in enumerate(wrapped(page.vocabulary.sentence(rng), pen, column.width - hang)):
            if (y := y + leading) > column.bottom:
                return y
            if number == 0:
                page.write(mark, column.x0, y - leading * 0.25, pen)
            page.write(" ".join(line), column.x0 + hang, y - leading * 0.25, pen)
        y += leading * 0.3
    return y + leading * 0.5


def address_block(page: Sheet, column: Column, y: float) -> float:
    """Who and where, left or centred: above a letter or on a card."""
    rng, pen, leading = page.rng, page.style.body, page.style.leading
    centred = rng.random() < 0.3
    lines = [fact(rng, kind) for kind in ("person", "company", "street", "town", "telephone")]
    for line in lines[rng.randint(0, 1) : rng.randint(3, 5)]:
        if pen.width(line) > column.width:
            continue
        if (y := y + leading) > column.bottom:
            return y
        page.write(line, column.start(pen.width(line), centred=centred), y - leading * 0.25, pen)
    return y + leading


def opening(page: Sheet, column: Column, y: float) -> float:
    """How a letter or a memorandum begins: the date, to whom, about what."""
    rng, pen, leading = page.rng, page.style.body, page.style.leading
    if rng.random() < 0.5:
        y += leading
        date = fact(rng, "date")
        page.write(date, column.x0 + column.width * rng.choice((0, 0.6)), y, pen)
        page.remember("date", (), page.last(date))
        y = address_block(page, column, y + leading)
        page.write(f"Dear {fact(rng, 'person')}:", column.x0, y + leading, pen)
        return y + 2.5 * leading
    tab = pen.width("SUBJECT:  ")
    casing = rng.choice((str.upper, str.title))
    for label in ("to:", "from:", "date:", rng.choice(("subject:", "re:"))):
        y += leading * rng.choice((1, 1.5))
        value = {"date:": fact(rng, "date"), "to:": fact(rng, "person"), "from:": fact(rng, "person")}.get(label)
        page.write(casing(label), column.x0, y, pen)
        called = page.last(label)
        value = value or page.vocabulary.phrase(rng, longest=6)
        page.write(value, column.x0 + tab, y, pen)
        page.remember({"re:": "subject"}.get(label, label.rstrip(":")), called, page.last(value))
    if rng.random() < 0.5:
        page.rule(column.x0, y + leading / 2, column.x1, y + leading / 2)
    return y + leading
