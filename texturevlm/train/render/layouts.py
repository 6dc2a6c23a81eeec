"""The kinds of pages: each stacks its own kinds of blocks from top to bottom."""

from collections.abc import Callable, Sequence

from texturevlm.train.render.fields import checks, fields, leaders, purchases
from texturevlm.train.render.grids import chart, table
from texturevlm.train.render.prose import Column, PageContext, address_block, bullets, heading, opening, paragraph
from texturevlm.train.render.vocabulary import company, number

_INVERTED = 0.03  # the share of blocks in white on black

_Block = Callable[[PageContext, Column, float], float]


def stack(page: PageContext, column: Column, y: float, blocks: Sequence[_Block], *, most: int = 99) -> float:
    """Blocks at random, one below the other, until the column is full."""
    for _ in range(most):
        if y + page.style.leading > column.bottom:
            break
        end = page.rng.choice(blocks)(page, column, y)
        if page.rng.random() < _INVERTED and end < column.bottom:
            page.sheet.invert(column.x0 - 5, y, column.x1 + 5, end)
        y = end + page.style.leading * page.rng.uniform(0, 1.2)
    return y


def margins(page: PageContext) -> tuple[Column, float]:
    """The column that a page leaves within its margins, and where it starts."""
    sheet, rng = page.sheet, page.rng
    left, right = (sheet.width * rng.triangular(0.02, 0.16, 0.09) for _ in range(2))
    bottom = sheet.height * rng.uniform(0.88, 0.97)
    return Column(left, sheet.width - right, bottom), sheet.height * rng.triangular(0.01, 0.15, 0.05)


def title(page: PageContext, column: Column, y: float) -> float:
    """The name of the page or the firm at the top, now and then white on black."""
    rng, sheet, pen = page.rng, page.sheet, page.style.title
    text = company(rng) if rng.random() < 0.4 else page.vocabulary.phrase(rng, longest=4)
    text = pen.shortened(text, column.x1 - column.x0 - 8, least=1)
    y += pen.x_height * 2.6
    if rng.choice((True, True, False)):
        sheet.centre(text, column.x0, column.x1, y, pen)
    else:
        sheet.write(text, column.x0 + 4, y, pen)
    if rng.random() < 0.12:
        sheet.invert(column.x0, y - pen.x_height * 2.4, column.x1, y + pen.x_height)
    return y + pen.x_height * 2


def letter(page: PageContext) -> None:
    """A letterhead, to whom, paragraphs, a name below."""
    column, y = margins(page)
    if page.rng.random() < 0.6:
        y = title(page, column, y)
    y = opening(page, column, y)
    stack(page, column, y, (paragraph, paragraph, paragraph, bullets), most=page.rng.randint(1, 6))


def form(page: PageContext) -> None:
    """A printed form with typed answers."""
    column, y = margins(page)
    stack(page, column, title(page, column, y), (fields, fields, fields, checks, heading, paragraph, table))


def table_page(page: PageContext) -> None:
    """Mostly numbers in columns."""
    column, y = margins(page)
    if page.rng.random() < 0.7:
        y = title(page, column, y)
    stack(page, column, y, (table, table, heading, notes))


def notes(page: PageContext, column: Column, y: float) -> float:
    """One or two sentences below a table."""
    return paragraph(page, column, y, sentences=page.rng.randint(1, 2))


def article(page: PageContext) -> None:
    """Headings and paragraphs in one, two or three columns."""
    column, y = margins(page)
    if page.rng.random() < 0.6:
        y = title(page, column, y)
    for part in column.split(page.rng.choice((1, 2, 2, 2, 3)), gap=page.sheet.width * 0.035):
        stack(page, part, y, (paragraph, paragraph, paragraph, heading, bullets, table))


def receipt(page: PageContext) -> None:
    """A narrow strip: the shop, what was bought, the sums."""
    sheet, rng = page.sheet, page.rng
    width = min(sheet.width * 0.95, page.style.body.x_height * rng.uniform(38, 60))
    x0 = rng.uniform(4, sheet.width - width - 4)
    column = Column(x0, x0 + width, sheet.height * 0.97)
    y = title(page, column, sheet.height * rng.uniform(0.01, 0.2))
    y = address_block(page, column, y)
    y = stack(page, column, y, (fields, purchases), most=2)
    y = purchases(page, column, y)
    stack(page, column, y, (fields, heading, purchases, notes), most=rng.randint(1, 4))


def slide(page: PageContext) -> None:
    """Few large words."""
    column, y = margins(page)
    stack(page, column, title(page, column, y + 30), (bullets, heading, heading, chart, fields), most=5)


def charts(page: PageContext) -> None:
    """A chart or two, little text."""
    column, y = margins(page)
    y = title(page, column, y)
    stack(page, column, y, (chart, chart, notes, heading), most=page.rng.randint(2, 5))


def contents(page: PageContext) -> None:
    """Names and numbers joined by dots, in one or two columns."""
    column, y = margins(page)
    y = title(page, column, y)
    for part in column.split(page.rng.choice((1, 1, 2)), gap=30):
        stack(page, part, y, (leaders, leaders, heading, fields, address_block))


def mixture(page: PageContext) -> None:
    """Anything beside anything: brochures, newspapers, advertisements."""
    column, y = margins(page)
    for part in column.split(page.rng.choice((1, 2, 2, 3)), gap=page.sheet.width * 0.03):
        blocks = (paragraph, heading, bullets, fields, checks, leaders, table, chart, address_block, paragraph)
        stack(page, part, y, blocks)


def foot(page: PageContext) -> None:
    """The number of the page and an archive's number at the bottom, below everything else."""
    sheet, rng = page.sheet, page.rng
    if rng.random() < 0.4:
        text = rng.choice(("{}", "- {} -", "Page {}", "-{}-")).format(rng.randint(1, 300))
        y = sheet.height * rng.uniform(0.965, 0.98)
        sheet.centre(text, 0, sheet.width * rng.choice((1, 1, 1.8)), y, page.style.body)
    if rng.random() < 0.3:
        sheet.right(number(rng), sheet.width * 0.97, sheet.height * 0.988, page.style.bold)


LAYOUTS: dict[str, tuple[Callable[[PageContext], None], float]] = {
    "letter": (letter, 3),
    "form": (form, 4),
    "table_page": (table_page, 3),
    "article": (article, 4),
    "receipt": (receipt, 2),
    "slide": (slide, 0.7),
    "charts": (charts, 0.8),
    "contents": (contents, 1),
    "mixture": (mixture, 3),
}
