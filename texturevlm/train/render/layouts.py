"""The kinds of pages: each stacks its own kinds of blocks from top to bottom."""

from collections.abc import Callable, Sequence

from texturevlm.train.render.fields import checks, fields, leaders, purchases
from texturevlm.train.render.grids import chart, table
from texturevlm.train.render.prose import Column, Job, address, bullets, heading, opening, paragraph
from texturevlm.train.render.vocabulary import company, number

INVERTED = 0.03  # the share of blocks in white on black

Block = Callable[[Job, Column, float], float]


def stack(job: Job, column: Column, y: float, blocks: Sequence[Block], *, most: int = 99) -> float:
    """Blocks at random, one below the other, until the column is full."""
    for _ in range(most):
        if y + job.style.leading > column.bottom:
            break
        end = job.rng.choice(blocks)(job, column, y)
        if job.rng.random() < INVERTED and end < column.bottom:
            job.sheet.invert(column.x0 - 5, y, column.x1 + 5, end)
        y = end + job.style.leading * job.rng.uniform(0, 1.2)
    return y


def margins(job: Job) -> tuple[Column, float]:
    """The column that a page leaves within its margins, and where it starts."""
    sheet, rng = job.sheet, job.rng
    left, right = (sheet.width * rng.triangular(0.02, 0.16, 0.09) for _ in range(2))
    bottom = sheet.height * rng.uniform(0.88, 0.97)
    return Column(left, sheet.width - right, bottom), sheet.height * rng.triangular(0.01, 0.15, 0.05)


def title(job: Job, column: Column, y: float) -> float:
    """The name of the page or the firm at the top, now and then white on black."""
    rng, sheet, pen = job.rng, job.sheet, job.style.title
    text = company(rng) if rng.random() < 0.4 else job.vocabulary.phrase(rng, longest=4)
    words = text.split()
    while len(words) > 1 and pen.width(" ".join(words)) > column.x1 - column.x0 - 8:
        words.pop()
    y += pen.x_height * 2.6
    place = rng.choice((sheet.centre, sheet.centre, None))
    if place is None:
        sheet.write(" ".join(words), column.x0 + 4, y, pen)
    else:
        place(" ".join(words), column.x0, column.x1, y, pen)
    if rng.random() < 0.12:
        sheet.invert(column.x0, y - pen.x_height * 2.4, column.x1, y + pen.x_height)
    return y + pen.x_height * 2


def letter(job: Job) -> None:
    """A letterhead, to whom, paragraphs, a name below."""
    column, y = margins(job)
    if job.rng.random() < 0.6:
        y = title(job, column, y)
    y = opening(job, column, y)
    stack(job, column, y, (paragraph, paragraph, paragraph, bullets), most=job.rng.randint(1, 6))


def form(job: Job) -> None:
    """A printed form with typed answers."""
    column, y = margins(job)
    stack(job, column, title(job, column, y), (fields, fields, fields, checks, heading, paragraph, table))


def tables(job: Job) -> None:
    """Mostly numbers in columns."""
    column, y = margins(job)
    if job.rng.random() < 0.7:
        y = title(job, column, y)
    stack(job, column, y, (table, table, heading, notes))


def notes(job: Job, column: Column, y: float) -> float:
    """One or two sentences below a table."""
    return paragraph(job, column, y, sentences=job.rng.randint(1, 2))


def report(job: Job) -> None:
    """Headings and paragraphs in one, two or three columns."""
    column, y = margins(job)
    if job.rng.random() < 0.6:
        y = title(job, column, y)
    for part in column.split(job.rng.choice((1, 2, 2, 2, 3)), gap=job.sheet.width * 0.035):
        stack(job, part, y, (paragraph, paragraph, paragraph, heading, bullets, table))


def receipt(job: Job) -> None:
    """A narrow strip: the shop, what was bought, the sums."""
    sheet, rng = job.sheet, job.rng
    width = min(sheet.width * 0.95, job.style.body.x_height * rng.uniform(38, 60))
    x0 = rng.uniform(4, sheet.width - width - 4)
    column = Column(x0, x0 + width, sheet.height * 0.97)
    y = title(job, column, sheet.height * rng.uniform(0.01, 0.2))
    y = address(job, column, y)
    y = stack(job, column, y, (fields, purchases), most=2)
    y = purchases(job, column, y)
    stack(job, column, y, (fields, heading, purchases, notes), most=rng.randint(1, 4))


def slide(job: Job) -> None:
    """Few large words."""
    column, y = margins(job)
    stack(job, column, title(job, column, y + 30), (bullets, heading, heading, chart, fields), most=5)


def charts(job: Job) -> None:
    """A chart or two, little text."""
    column, y = margins(job)
    y = title(job, column, y)
    stack(job, column, y, (chart, chart, notes, heading), most=job.rng.randint(2, 5))


def contents(job: Job) -> None:
    """Names and numbers joined by dots, in one or two columns."""
    column, y = margins(job)
    y = title(job, column, y)
    for part in column.split(job.rng.choice((1, 1, 2)), gap=30):
        stack(job, part, y, (leaders, leaders, heading, fields, address))


def mixture(job: Job) -> None:
    """Anything beside anything: brochures, newspapers, advertisements."""
    column, y = margins(job)
    for part in column.split(job.rng.choice((1, 2, 2, 3)), gap=job.sheet.width * 0.03):
        stack(job, part, y, (paragraph, heading, bullets, fields, checks, leaders, table, chart, address, paragraph))


def foot(job: Job) -> None:
    """The number of the page and an archive's number at the bottom, below everything else."""
    sheet, rng = job.sheet, job.rng
    if rng.random() < 0.4:
        text = rng.choice(("{}", "- {} -", "Page {}", "-{}-")).format(rng.randint(1, 300))
        y = sheet.height * rng.uniform(0.965, 0.98)
        sheet.centre(text, 0, sheet.width * rng.choice((1, 1, 1.8)), y, job.style.body)
    if rng.random() < 0.3:
        sheet.right(number(rng), sheet.width * 0.97, sheet.height * 0.988, job.style.bold)


LAYOUTS: dict[str, tuple[Callable[[Job], None], float]] = {
    "letter": (letter, 3),
    "form": (form, 4),
    "tables": (tables, 3),
    "report": (report, 4),
    "receipt": (receipt, 2),
    "slide": (slide, 0.7),
    "charts": (charts, 0.8),
    "contents": (contents, 1),
    "mixture": (mixture, 3),
}
