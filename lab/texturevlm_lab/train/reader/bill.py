"""A bill: who sent it, to whom, its numbers and dates, what it charges, and the sums.

Labels that share a word ("Due date", "Total due") and dates of several meanings stand on one page, so that a reader has
to tell them apart.
"""

import random

from texturevlm_lab.train.render.sheet import Column, Pen, Sheet
from texturevlm_lab.train.render.tables import TableCells
from texturevlm_lab.train.render.vocabulary import fact, fill_form

_NUMBERS = ("Invoice number", "Invoice no.", "Invoice No", "Invoice #", "Bill number", "Bill no.", "Number", "No.")
_DATES = ("Date", "Invoice date", "Bill date", "Date of issue", "Issued", "Issue date")
_DUE = ("Due date", "Due", "Payment due", "Pay by", "Payable by", "Due on", "Date due")
_OTHERS = {
    "date": ("Delivery date", "Order date", "Shipped", "Date of supply", "Received", "Service date", "Printed"),
    "code": ("Customer number", "Order number", "Contract no.", "Account", "Our reference", "Your reference", "VAT ID"),
    "person": ("Contact", "Sales person", "Clerk", "Prepared by", "Attention"),
    "number": ("Page", "Items", "Terms (days)", "Copies"),
}
_FORMS = ("~~-####", "######", "####/##", "~####", "##-#####", "~~~ ## ###", "20##-###", "#.###.###")
_HEADS = ("Description", "Item", "Article", "Service", "Product"), ("Qty", "Quantity", "Hours", "Units"), (
    "Price", "Unit price", "Rate", "Each"), ("Amount", "Total", "Sum", "Line total")  # fmt: skip
_TOTALS = ("Total", "TOTAL", "Total due", "TOTAL DUE", "Amount due", "Grand total", "Balance due", "Total amount")
_TAXES = ("VAT", "Tax", "Sales tax", "GST", "VAT")
_CURRENCIES = ("", "", "", "$", "EUR ", "USD ", "RM ", "GBP ", "CHF ")


def bill(page: Sheet, column: Column, y: float) -> float:
    """All of it; returns where more may follow."""
    rng, leading = page.rng, page.style.leading
    pen = rng.choice((page.style.title, page.style.heading, page.style.bold))
    sender = pen.shortened(fact(rng, "company"), column.width * 0.9, least=1)
    y += pen.x_height * 3
    page.write(sender, rng.choice((column.x0, column.start(pen.width(sender), centred=True))), y, pen)
    page.remember("from", (), page.last(sender))
    y += leading * rng.uniform(0.6, 2.5)
    if rng.random() < 0.6:
        line = f"{sender}, {fact(rng, 'street')}, {fact(rng, 'town')}"
        page.write(page.style.small.shortened(line, column.width), column.x0, y + leading, page.style.small)
        y += leading * 2
    left, right = column.split(2, gap=column.width * 0.06)
    if rng.random() < 0.25:
        left, right = right, left
    y = max(_recipient(page, left, y), _details(page, right, y))
    y = _items(page, column, y + leading * rng.uniform(0.5, 2))
    return _sums(page, column, y + leading * 0.4)


def _recipient(page: Sheet, column: Column, y: float) -> float:
    rng, style = page.rng, page.style
    if rng.random() < 0.45:
        y += style.leading
        label = rng.choice(("Bill to", "Billed to", "To", "Customer", "Invoice to", "Sold to", "Client", "BILL TO:"))
        page.write(label, column.x0, y, rng.choice((style.small, style.bold, style.body)))
    lines = [fact(rng, kind) for kind in ("company", "person", "street", "town", "town")]
    lines = lines[rng.choice((0, 0, 0, 1)) : rng.randint(3, 5)]
    if rng.random() < 0.4:
        del lines[1]
    for number, line in enumerate(lines):
        pen = rng.choice((style.bold, style.body)) if number == 0 else style.body
        text = pen.shortened(line, column.width, least=1)
        y += style.leading * rng.uniform(1, 1.1)
        page.write(text, column.x0, y, pen)
        if number == 0:
            page.remember("to", (), page.last(text))
    return y + style.leading


def _details(page: Sheet, column: Column, y: float) -> float:
    """Labels and values, one pair per line; the values in a column of their own or at the right edge."""
    rng, style = page.rng, page.style
    kinds = [
        ("number", _NUMBERS),
        ("date", _DATES),
        ("due", _DUE),
        *rng.sample([*_OTHERS.items()] * 2, rng.choice((0, 1, 2, 3, 4, 6))),
    ]
    rng.shuffle(kinds)
    label_pen, value_pen = rng.choice((style.body, style.small)), rng.choice((style.body, style.bold, style.filled))
    colon, at_edge, tab = rng.choice((":", "", "", " :")), rng.random() < 0.6, column.width * rng.uniform(0.4, 0.55)
    step, top = style.leading * rng.uniform(1, 1.5), y
    if rng.random() < 0.35:
        page.fill(column.x0 - 6, y, column.x1 + 6, y + step * (len(kinds) + 0.8), rng.randint(10, 45))
    elif rng.random() < 0.3:
        page.frame(column.x0 - 6, y, column.x1 + 6, y + step * (len(kinds) + 0.8))
    form = rng.choice((None, "##.##.20##", "##/##/20##", "20##-##-##"))  # all dates of a page look alike
    for kind, labels in kinds:
        y += step
        label, own = rng.choice(labels), kind if labels in (_NUMBERS, _DATES, _DUE) else "field"
        value = _value(rng, kind if own == "field" or kind != "number" else "form", form)
        room = column.width - label_pen.width(label + colon) - 8
        value = value_pen.shortened(value, room)
        page.write(label + colon, column.x0, y, label_pen)
        called = page.last(label + colon)
        if at_edge:
            page.right(value, column.x1, y, value_pen)
        else:
            page.write(value, max(column.x0 + tab, column.x0 + column.width - room), y, value_pen)
        numbers = page.last(value)
        page.remember(own, called, numbers)
        if own != "field" and rng.random() < 0.5:
            page.remember("field", called, numbers)
    return max(y, top) + style.leading


def _value(rng: random.Random, kind: str, form: str | None) -> str:
    if kind in ("date", "due"):
        return fact(rng, "date") if form is None else fill_form(rng, form)
    return fill_form(rng, rng.choice(_FORMS)) if kind == "form" else fact(rng, kind)


def _items(page: Sheet, column: Column, y: float) -> float:
    rng, style = page.rng, page.style
    shares = (rng.uniform(0.4, 0.6), *(rng.uniform(0.1, 0.2) for _ in range(3)))
    edges = [column.x0]
    for share in shares:
        edges.append(edges[-1] + column.width * share / sum(shares))
    step = style.leading * rng.uniform(1, 1.6)
    cells = TableCells(page)
    dark, currency = rng.random() < 0.2, rng.choice(_CURRENCIES)
    most = max(3, int((column.bottom - y) / step) - 8)  # below it there is room for the sums
    for row in range(min(most, rng.randint(*rng.choice(((2, 9), (2, 9), (8, 24)))))):
        y += step
        price = rng.uniform(1, 900)
        count = rng.randint(1, 40)
        texts = [page.vocabulary.phrase(rng, longest=5), str(count), f"{price:.2f}", f"{currency}{price * count:,.2f}"]
        if row == 0:
            texts = [rng.choice(names) for names in _HEADS]
        pen = style.body if row else rng.choice((style.bold, style.body))
        for place, text in enumerate(texts):
            text = pen.shortened(text, edges[place + 1] - edges[place] - 4)
            if place:
                page.right(text, edges[place + 1], y, pen)
            else:
                page.write(text, edges[0], y, pen)
            cells.add(row, place, page.last(text))
        if row == 0 and dark:
            page.invert(column.x0 - 4, y - step * 0.75, column.x1 + 4, y + step * 0.3)
        elif row == 0 or rng.random() < 0.1:
            page.rule(column.x0, y + step * 0.25, column.x1, y + step * 0.25)
    return y + step * 0.5


def _sums(page: Sheet, column: Column, y: float) -> float:
    """Subtotal, discount, tax and the total, at the right."""
    rng, style = page.rng, page.style
    start = column.x0 + column.width * rng.uniform(0.35, 0.6)
    rate = rng.choice(("", f" {rng.choice((5, 6, 7, 8, 10, 19, 20, 21, 25))} %", f" ({rng.uniform(4, 25):.1f}%)"))
    rows = [("sum", rng.choice(("Subtotal", "Sub-total", "Net amount", "Net")))]
    if rng.random() < 0.5:
        rows.append(("sum", rng.choice(("Discount", "Discount 3 %", "Less deposit", "Freight", "Shipping", "Paid"))))
    rows += [("vat", rng.choice(_TAXES) + rate), ("total", rng.choice(_TOTALS))]
    currency, step = rng.choice(_CURRENCIES), style.leading * rng.uniform(1, 1.5)
    for kind, label in rows:
        pen: Pen = style.body if kind != "total" else rng.choice((style.bold, style.heading, style.body))
        y += max(step, pen.x_height * 3)
        if kind == "total" and rng.random() < 0.4:
            page.rule(start, y - pen.x_height * 2.2, column.x1, y - pen.x_height * 2.2)
        page.write(label, start, y, pen)
        called = page.last(label)
        amount = f"{rng.uniform(1, 30000):,.2f}"
        if kind == "total" and rng.random() < 0.25:  # the currency stands between label and amount
            page.right(f"{currency.strip()} {amount}", column.x1, y, pen)
        else:
            amount = currency + amount
            page.right(amount, column.x1, y, pen)
        numbers = page.last(amount)
        page.remember(kind, called, numbers)
        if kind == "vat":
            page.remember("sum", called, numbers)
        if kind == "total" and rng.random() < 0.2:
            page.invert(start - 6, y - pen.x_height * 2.1, column.x1 + 6, y + pen.x_height)
    return y + style.leading
