"""Blocks where text stands in rows: fields of a form, check boxes, dotted leaders, receipts, tables and charts."""

from texturevlm_lab.train.render.sheet import Column, Pen, Sheet, WordNumbers, drawn_path
from texturevlm_lab.train.render.vocabulary import fact, fill_form

_SUMS = ("Sub Total", "TOTAL", "GST 6%", "CASH", "CHANGE", "Rounding Adj", "Tax", "Discount:")


def fields(page: Sheet, column: Column, y: float) -> float:
    """Labels with what was filled in: right of the label or under it, on a line, in a box, or on nothing."""
    rng, style = page.rng, page.style
    ground = rng.choice(("line", "line", "dots", "box", "none"))
    below = ground == "box" and rng.random() < 0.6
    label_pen = rng.choice((style.body, style.body, style.bold, style.small))
    value_pen = rng.choice((style.filled, style.filled, style.body, style.bold))
    step = style.leading * (2.3 if below else rng.uniform(1.15, 2))
    aligned = rng.random() < 0.5
    colon = rng.choice((":", ":", "", " :", "."))
    for _ in range(rng.randint(2, 9)):
        cells = column.split(rng.choice((1, 1, 2, 3)), gap=0 if ground == "box" else 10)
        if (y := y + step) > column.bottom:
            return y
        for cell in cells:
            label = page.vocabulary.label(rng) + colon
            roll = rng.random()
            value = fact(rng) if roll < 0.56 else page.vocabulary.phrase(rng, longest=3) if roll < 0.8 else ""
            start, base = cell.x0 + 3, y - step * 0.25
            if label_pen.width(label) > cell.width - 6:
                continue
            if ground == "box":
                page.frame(cell.x0, y - step, cell.x1, y)
            if below:
                page.write(label, start, y - step + label_pen.x_height * 1.9, label_pen)
                called = page.last(label)
                x = start + rng.uniform(0, 20)
            else:
                x = page.write(label, start, base, label_pen) + rng.uniform(3, 12)
                called = page.last(label)
                if aligned:
                    x = max(x, cell.x0 + cell.width * 0.4)
                if ground in ("line", "dots") and x < cell.x1:
                    low = base + rng.choice((1, 1.5, 2))
                    page.rule(x - 2, low, cell.x1, low, dash=1.5 if ground == "dots" else 0)
            if x + value_pen.width(value) < cell.x1:
                page.write(value, x, base - rng.uniform(-1, 1.5), value_pen)
                page.remember("field", called, page.last(value))
    return y + style.leading


def checks(page: Sheet, column: Column, y: float) -> float:
    """Small boxes to tick, each with its label."""
    rng, style = page.rng, page.style
    side = style.body.x_height * rng.uniform(1.2, 1.8)
    for _ in range(rng.randint(1, 5)):
        if (y := y + style.leading * 1.4) > column.bottom:
            return y
        x = column.x0
        for _ in range(rng.randint(1, 5)):
            text = page.vocabulary.phrase(rng, longest=2)
            if x + side + 5 + style.body.width(text) > column.x1:
                break
            page.frame(x, y - side, x + side, y)
            if rng.random() < 0.4:
                page.write(rng.choice("Xxv/"), x + side * 0.2, y - 1, style.filled, label=False)
            x = page.write(text, x + side + 5, y, style.body) + rng.uniform(15, 60)
    return y + style.leading


def leaders(page: Sheet, column: Column, y: float) -> float:
    """Lines of a table of contents or a price list: words, a row of dots, a number at the right."""
    rng, pen, leading = page.rng, page.style.body, page.style.leading
    dots = rng.choice((".", ". ", " ", "-"))
    for _ in range(rng.randint(3, 14)):
        if (y := y + leading * 1.2) > column.bottom:
            return y
        end = fact(rng, rng.choice(("number", "amount")))
        text, x = page.vocabulary.phrase(rng, longest=5), column.x0 + rng.choice((0, 0, 15))
        last = column.x1 - pen.width(end)
        if x + pen.width(text) + 12 > last:
            continue
        x = page.write(text, x, y, pen)
        called = page.last(text)
        page.write(end, last, y, pen)
        page.remember("leader", called, page.last(end))
        count = int((last - x - 8) / max(pen.width(dots), 1))
        if dots.strip() and count > 2:
            page.write((dots * count).replace(" ", "  "), x + 4, y, pen, label=False)
    return y + leading


def purchases(page: Sheet, column: Column, y: float) -> float:
    """What a receipt lists: quantity, article, price, then sums and taxes at the right."""
    rng, pen, leading = page.rng, page.style.body, page.style.leading
    dash = rng.choice((0, 1, 4))
    for _ in range(rng.randint(1, 9)):
        if (y := y + leading) > column.bottom:
            return y
        article = page.vocabulary.phrase(rng).upper()
        if rng.random() < 0.5:
            article = f"{rng.randint(1, 9)} {article}"
        price = f"{rng.uniform(0.5, 300):.2f}"
        if pen.width(article) > column.width * 0.75:
            page.write(article, column.x0, y, pen)
            y += leading
            article = fill_form(rng, "############")
        called: WordNumbers = ()
        if pen.width(article) + pen.width(price) + 8 < column.width:
            page.write(article, column.x0, y, pen)
            called = page.last(article)
        coded = price + rng.choice(("", "", " SR", " T"))
        page.right(coded, column.x1, y, pen)
        page.remember("item", called, page.last(coded)[:1])
    y += leading * 0.6
    page.rule(column.x0, y, column.x1, y, dash=dash)
    for label in rng.sample(_SUMS, 5):
        if (y := y + leading * rng.choice((1, 1.3))) > column.bottom:
            return y
        used = page.style.bold if label == "TOTAL" else pen
        page.write(label, column.x0 + column.width * 0.3, y, used)
        called = page.last(label)
        value = rng.choice(("", "", "RM ", "$")) + f"{rng.uniform(0, 500):.2f}"
        page.right(value, column.x1, y, used)
        page.remember("total" if label == "TOTAL" else "sum", called, page.last(value))
    return y + leading


class TableCells:
    """Remembers the cells of a table as they are written, row by row: the first row has the heads, the first column the
    names."""

    def __init__(self, page: Sheet) -> None:
        self._page = page
        self._heads: list[WordNumbers] = []
        self._name: WordNumbers = ()

    def add(self, row: int, column: int, numbers: WordNumbers) -> None:
        if row == 0:
            self._heads.append(numbers)
        elif column == 0:
            self._name = numbers
        elif self._name and self._heads[column]:
            self._page.remember("cell", self._name, numbers, self._heads[column])


def table(page: Sheet, column: Column, y: float) -> float:
    """Headings over columns of names, numbers and dates; ruled all over, between rows, below the head, or not."""
    rng, style = page.rng, page.style
    count = rng.randint(2, max(2, min(8, int(column.width / (style.body.x_height * 11)))))
    shares = [rng.uniform(1.5, 3)] + [rng.uniform(0.7, 1.3) for _ in range(count - 1)]
    edges = [column.x0]
    for share in shares:
        edges.append(edges[-1] + column.width * share / sum(shares))
    kinds = [rng.choice(("number", "number", "amount", "percentage", "date", "code", "person")) for _ in shares]
    rules = rng.choice(("all", "all", "rows", "head", "columns", "none"))
    head_pen = rng.choice((style.bold, style.body, style.italic))
    body_pen = rng.choice((style.body, style.body, style.small))
    step = body_pen.x_height * rng.uniform(2.4, 4.5)
    align = rng.choice((0.0, 1.0, 0.5))  # share of the free room that is left of the text
    thick = rng.choice((0.5, 1, 1, 1.5))
    y = top = y + step * 0.3
    cells = TableCells(page)
    for row in range(rng.randint(2, 28)):
        if y + step > column.bottom:
            break
        if row == 0 and rng.random() < 0.1:
            page.fill(column.x0, y, column.x1, y + step, rng.randint(15, 70))
        pen = body_pen if row else head_pen
        for i, kind in enumerate(kinds):
            if row and i and rng.random() < 0.1:
                continue
            text = fact(rng, kind) if row and i else page.vocabulary.phrase(rng, longest=4 if row else 2)
            room = edges[i + 1] - edges[i] - 6
            text = pen.shortened(text, room)
            slack = room - pen.width(text)
            page.write(text, edges[i] + 3 + slack * (align if i else 0.0), y + step * 0.7, pen)
            cells.add(row, i, page.last(text))
        if row == 0 and rng.random() < 0.06:
            page.invert(column.x0, y, column.x1, y + step)
        y += step
        if rules in ("all", "rows") or (rules == "head" and row == 0):
            page.rule(column.x0, y, column.x1, y, thick=thick)
    if rules != "none":
        for edge in (top, y):
            page.rule(column.x0, edge, column.x1, edge, thick=thick)
    if rules in ("all", "columns"):
        for edge in edges if rules == "all" else edges[1:-1]:
            page.rule(edge, top, edge, y, thick=thick)
    return y + style.leading


def chart(page: Sheet, column: Column, y: float) -> float:
    """Axes with numbers and names along them, bars or lines between, sometimes a legend."""
    rng, style = page.rng, page.style
    pen = rng.choice((style.body, style.small))
    height = min(rng.uniform(120, 420), column.bottom - y - 4 * style.leading)
    left, right = column.x0 + pen.width("000,000") + 6, column.x1
    if height < 60 or right - left < 80:
        return y
    top, base = y + style.leading, y + style.leading + height
    page.rule(left, top, left, base)
    page.rule(left, base, right, base)
    ticks = rng.randint(3, 8)
    unit = rng.choice((1, 5, 10, 20, 25, 100, 1000, 0.5))
    mark = rng.choice(("{:,g}", "{:,g}", "{:g}%", "${:,g}"))
    gridded = rng.random() < 0.4
    for tick in range(ticks + 1):
        level = base - height * tick / (ticks + 0.3)
        page.right(mark.format(tick * unit), left - 5, level + pen.x_height / 2, pen)
        page.rule(left if gridded else left - 3, level, right if gridded else left, level, thick=0.5)
    _plot(page, Column(left, right, base), height, pen)
    caption = page.vocabulary.phrase(rng, longest=6)
    if pen.width(caption) < right - left:
        page.centre(caption, left, right, base + pen.x_height * 6.5, pen)
    return base + pen.x_height * 9


def _plot(page: Sheet, area: Column, height: float, pen: Pen) -> None:
    """Bars or a line over the names along the lower axis, some with their value written above."""
    rng, base = page.rng, area.bottom
    parts = area.split(rng.randint(3, 12), gap=0)
    step = area.width / len(parts)
    as_bars, valued = rng.random() < 0.6, rng.random() < 0.5
    shade = rng.randint(60, 255)
    year, named = rng.randint(1950, 2010), rng.random() < 0.5
    points = []
    for i, part in enumerate(parts):
        middle, level = (part.x0 + part.x1) / 2, base - height * rng.uniform(0.05, 0.85)
        points.append((middle, level))
        name = page.vocabulary.phrase(rng, longest=1) if named else str(year + i)
        if pen.width(name) < step - 4:
            page.centre(name, part.x0, part.x1, base + pen.x_height * 2.6, pen)
        if as_bars:
            page.fill(middle - step * 0.3, level, middle + step * 0.3, base, shade)
            value = fact(rng, "number")
            if valued and pen.width(value) < step - 2:
                page.centre(value, part.x0, part.x1, level - 3, pen)
    if not as_bars:
        page.stamp(drawn_path(points, thick=3), points[0][0], min(level for _, level in points))
