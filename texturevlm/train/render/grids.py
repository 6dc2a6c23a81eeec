"""Tables and charts: text in rows and columns, and text along axes."""

import math
from collections.abc import Callable

from texturevlm.train.render.prose import Column, PageContext
from texturevlm.train.render.sheet import Pen
from texturevlm.train.render.vocabulary import amount, code, date, number, percentage, person


def table(page: PageContext, column: Column, y: float) -> float:
    """Headings over columns of names, numbers and dates; ruled all over, between rows, below the head, or not."""
    rng, style, sheet = page.rng, page.style, page.sheet
    width = column.x1 - column.x0
    count = rng.randint(2, max(2, min(8, int(width / (style.body.x_height * 11)))))
    shares = [rng.uniform(1.5, 3)] + [rng.uniform(0.7, 1.3) for _ in range(count - 1)]
    edges = [column.x0]
    for share in shares:
        edges.append(edges[-1] + width * share / sum(shares))
    kinds = [rng.choice((number, number, amount, percentage, date, code, person)) for _ in shares]
    rules = rng.choice(("all", "all", "rows", "head", "columns", "none"))
    head_pen = rng.choice((style.bold, style.body, style.italic))
    pen = rng.choice((style.body, style.body, style.small))
    step = pen.x_height * rng.uniform(2.4, 4.5)
    align = rng.choice(("left", "right", "centre"))
    thick = rng.choice((0.5, 1, 1, 1.5))
    top = y + step * 0.3
    y = top
    rows = rng.randint(2, 28)
    for row in range(rows):
        if y + step > column.bottom:
            break
        if row == 0 and rng.random() < 0.1:
            sheet.fill(column.x0, y, column.x1, y + step, rng.randint(15, 70))
        for i, kind in enumerate(kinds):
            if row and i and rng.random() < 0.1:
                continue
            text = _cell(page, kind if i else None, row)
            used = head_pen if row == 0 else pen
            _write_cell(page, text, edges[i], edges[i + 1], y + step * 0.7, used, align if i else "left")
        if row == 0 and rng.random() < 0.06:
            sheet.invert(column.x0, y, column.x1, y + step)
        y += step
        if rules in ("all", "rows") or (rules == "head" and row == 0):
            sheet.rule(column.x0, y, column.x1, y, thick=thick)
    if rules != "none":
        sheet.rule(column.x0, top, column.x1, top, thick=thick)
        sheet.rule(column.x0, y, column.x1, y, thick=thick)
    if rules in ("all", "columns"):
        for edge in edges if rules == "all" else edges[1:-1]:
            sheet.rule(edge, top, edge, y, thick=thick)
    return y + style.leading


def _cell(page: PageContext, kind: Callable[..., str] | None, row: int) -> str:
    if row == 0 or kind is None:
        return page.vocabulary.phrase(page.rng, longest=2 if row == 0 else 4)
    return kind(page.rng)


def _write_cell(page: PageContext, text: str, x0: float, x1: float, y: float, pen: Pen, align: str) -> None:
    room = x1 - x0 - 6
    text = pen.shortened(text, room)
    slack = room - pen.width(text)
    page.sheet.write(text, x0 + 3 + slack * {"left": 0.0, "centre": 0.5, "right": 1.0}[align], y, pen)


def chart(page: PageContext, column: Column, y: float) -> float:
    """Axes with numbers and names along them, bars or lines between, sometimes a legend."""
    rng, style, sheet = page.rng, page.style, page.sheet
    pen = rng.choice((style.body, style.small))
    height = min(rng.uniform(120, 420), column.bottom - y - 4 * style.leading)
    left = column.x0 + pen.width("000,000") + 6
    if height < 60 or column.x1 - left < 80:
        return y
    top, base = y + style.leading, y + style.leading + height
    sheet.rule(left, top, left, base)
    sheet.rule(left, base, column.x1, base)
    ticks = rng.randint(3, 8)
    unit = rng.choice((1, 5, 10, 20, 25, 100, 1000, 0.5))
    mark = rng.choice(("{:,g}", "{:,g}", "{:g}%", "${:,g}"))
    gridded = rng.random() < 0.4
    for tick in range(ticks + 1):
        level = base - height * tick / (ticks + 0.3)
        sheet.right(mark.format(tick * unit), left - 5, level + pen.x_height / 2, pen)
        sheet.rule(left - 3 if not gridded else left, level, column.x1 if gridded else left, level, thick=0.5)
    _bars(page, left, column.x1, base, height, pen)
    caption = page.vocabulary.phrase(rng, longest=6)
    if pen.width(caption) < column.x1 - left:
        sheet.centre(caption, left, column.x1, base + pen.x_height * 6.5, pen)
    return base + pen.x_height * 9


def _bars(page: PageContext, left: float, right: float, base: float, height: float, pen: Pen) -> None:
    """Bars or a line over the names along the lower axis, some with their value written above."""
    rng, sheet = page.rng, page.sheet
    count = rng.randint(3, 12)
    step = (right - left) / count
    as_bars, valued = rng.random() < 0.6, rng.random() < 0.5
    shade = rng.randint(60, 255)
    year, named = rng.randint(1950, 2010), rng.random() < 0.5
    before = None
    for i in range(count):
        middle = left + (i + 0.5) * step
        level = base - height * rng.uniform(0.05, 0.85)
        name = page.vocabulary.phrase(rng, longest=1) if named else str(year + i)
        if pen.width(name) < step - 4:
            sheet.centre(name, left + i * step, left + (i + 1) * step, base + pen.x_height * 2.6, pen)
        if as_bars:
            sheet.fill(middle - step * 0.3, level, middle + step * 0.3, base, shade)
        elif before is not None:
            _stroke(page, before, (middle, level))
        value = number(rng)
        if valued and as_bars and pen.width(value) < step - 2:
            sheet.centre(value, left + i * step, left + (i + 1) * step, level - 3, pen)
        before = (middle, level)


def _stroke(page: PageContext, start: tuple[float, float], end: tuple[float, float]) -> None:
    """A slanting line, drawn as short pieces."""
    steps = max(2, math.ceil(max(abs(end[0] - start[0]), abs(end[1] - start[1])) * 2))
    for i in range(steps):
        x = start[0] + (end[0] - start[0]) * i / steps
        y = start[1] + (end[1] - start[1]) * i / steps
        page.sheet.fill(x, y, x + 1.5, y + 1.5)
