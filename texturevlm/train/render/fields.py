"""Blocks of short pieces that belong together: fields of a form, check boxes, dotted leaders, lines of a receipt."""

from texturevlm.train.render.prose import Column, PageContext
from texturevlm.train.render.vocabulary import amount, digits, number


def fields(page: PageContext, column: Column, y: float) -> float:
    """Labels with what was filled in: right of the label or under it, on a line, in a box, or on nothing."""
    rng, style, sheet = page.rng, page.style, page.sheet
    ground = rng.choice(("line", "line", "dots", "box", "none"))
    below = ground == "box" and rng.random() < 0.6
    label_pen = rng.choice((style.body, style.body, style.bold, style.small))
    value_pen = rng.choice((style.filled, style.filled, style.body, style.bold))
    step = style.leading * (2.3 if below else rng.uniform(1.15, 2))
    aligned = rng.random() < 0.5
    colon = rng.choice((":", ":", "", " :", "."))
    for _ in range(rng.randint(2, 9)):
        cells = column.split(rng.choice((1, 1, 2, 3)), gap=0 if ground == "box" else 10)
        y += step
        if y > column.bottom:
            return y
        for cell in cells:
            label = page.vocabulary.phrase(rng, longest=3) + colon
            value = page.vocabulary.value(rng) if rng.random() < 0.8 else ""
            start, base = cell.x0 + 3, y - step * 0.25
            if label_pen.width(label) > cell.x1 - cell.x0 - 6:
                continue
            if ground == "box":
                sheet.frame(cell.x0, y - step, cell.x1, y)
            if below:
                sheet.write(label, start, y - step + label_pen.x_height * 1.9, label_pen)
                x = start + rng.uniform(0, 20)
            else:
                x = sheet.write(label, start, base, label_pen) + rng.uniform(3, 12)
                if aligned and cell.x0 + (cell.x1 - cell.x0) * 0.4 > x:
                    x = cell.x0 + (cell.x1 - cell.x0) * 0.4
                if ground in ("line", "dots") and x < cell.x1:
                    low = base + rng.choice((1, 1.5, 2))
                    sheet.rule(x - 2, low, cell.x1, low, dash=1.5 if ground == "dots" else 0)
            if x + value_pen.width(value) < cell.x1:
                lift = rng.uniform(-1, 1.5)
                sheet.write(value, x, base - lift, value_pen)
    return y + style.leading


def checks(page: PageContext, column: Column, y: float) -> float:
    """Small boxes to tick, each with its label."""
    rng, style, sheet = page.rng, page.style, page.sheet
    side = style.body.x_height * rng.uniform(1.2, 1.8)
    for _ in range(rng.randint(1, 5)):
        y += style.leading * 1.4
        if y > column.bottom:
            return y
        x = column.x0
        for _ in range(rng.randint(1, 5)):
            text = page.vocabulary.phrase(rng, longest=2)
            if x + side + 5 + style.body.width(text) > column.x1:
                break
            sheet.frame(x, y - side, x + side, y)
            if rng.random() < 0.4:
                sheet.write(rng.choice("Xxv/"), x + side * 0.2, y - 1, style.filled, label=False)
            x = sheet.write(text, x + side + 5, y, style.body) + rng.uniform(15, 60)
    return y + style.leading


def leaders(page: PageContext, column: Column, y: float) -> float:
    """Lines of a table of contents or a price list: words, a row of dots, a number at the right."""
    rng, style, sheet = page.rng, page.style, page.sheet
    dots = rng.choice((".", ". ", " ", "-"))
    for _ in range(rng.randint(3, 14)):
        y += style.leading * 1.2
        if y > column.bottom:
            return y
        end = rng.choice((number, amount))(rng)
        text, x = page.vocabulary.phrase(rng, longest=5), column.x0 + rng.choice((0, 0, 15))
        last = column.x1 - style.body.width(end)
        if x + style.body.width(text) + 12 > last:
            continue
        x = sheet.write(text, x, y, style.body)
        sheet.write(end, last, y, style.body)
        count = int((last - x - 8) / max(style.body.width(dots), 1))
        if dots.strip() and count > 2:
            sheet.write((dots * count).replace(" ", "  "), x + 4, y, style.body, label=False)
    return y + style.leading


def purchases(page: PageContext, column: Column, y: float) -> float:
    """What a receipt lists: quantity, article, price, then sums and taxes at the right."""
    rng, style, sheet = page.rng, page.style, page.sheet
    dash = rng.choice((0, 1, 4))
    for _ in range(rng.randint(1, 9)):
        y += style.leading
        if y > column.bottom:
            return y
        article = page.vocabulary.phrase(rng, longest=4).upper()
        if rng.random() < 0.5:
            article = f"{rng.randint(1, 9)} {article}"
        price = f"{rng.uniform(0.5, 300):.2f}"
        if style.body.width(article) > (column.x1 - column.x0) * 0.75:
            sheet.write(article, column.x0, y, style.body)
            y += style.leading
            article = digits(rng, "############")
        if style.body.width(article) + style.body.width(price) + 8 < column.x1 - column.x0:
            sheet.write(article, column.x0, y, style.body)
        sheet.right(price + rng.choice(("", "", " SR", " T")), column.x1, y, style.body)
    y += style.leading * 0.6
    sheet.rule(column.x0, y, column.x1, y, dash=dash)
    for label in rng.sample(("Sub Total", "TOTAL", "GST 6%", "CASH", "CHANGE", "Rounding Adj", "Tax", "Discount:"), 5):
        y += style.leading * rng.choice((1, 1.3))
        if y > column.bottom:
            return y
        pen = style.bold if label == "TOTAL" else style.body
        sheet.write(label, column.x0 + (column.x1 - column.x0) * 0.3, y, pen)
        sheet.right(rng.choice(("", "", "RM ", "$"))[:3] + f"{rng.uniform(0, 500):.2f}", column.x1, y, pen)
    return y + style.leading
