"""Renders a dense, invented business invoice: A4 at 150 dpi, 1240 x 1754 pixels, set in sizes from 44 px down to 9 px.

Usage: python examples/render_invoice.py [OUT.png]

The output is the same on every run (of the same Pillow). The company, its customer, their addresses and all their
numbers are made up. The text is set in the DejaVu fonts that come with matplotlib.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from pathlib import Path

import matplotlib
from PIL import Image, ImageDraw, ImageFont

Box = tuple[int, int, int, int]  # x0, y0, x1, y1 in pixels, x1 and y1 exclusive
Color = tuple[int, int, int]

# --- Page geometry and colours -------------------------------------------------------------------------------------

PAGE_SIZE = (1240, 1754)
LEFT, RIGHT = 96, 1160
TOTAL_BOX: Box = (952, 1204, 1160, 1250)  # the framed cell that holds the total
PALETTE_COLORS = 256
SEED = 7  # of the specks of missing ink in the stamp

WHITE: Color = (255, 255, 255)
INK: Color = (24, 26, 30)
DARK: Color = (44, 50, 58)
GREY: Color = (98, 103, 110)
RULE: Color = (150, 155, 162)
HAIRLINE: Color = (212, 215, 219)
SHADE: Color = (238, 240, 242)
STAMP: Color = (74, 84, 122)
PENCIL: Color = (112, 112, 120)

SANS, BOLD, OBLIQUE = "DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique"
SERIF, SERIF_BOLD = "DejaVuSerif", "DejaVuSerif-Bold"
MONO, MONO_BOLD = "DejaVuSansMono", "DejaVuSansMono-Bold"

# --- Content -------------------------------------------------------------------------------------------------------

COMPANY = "Orrinwold Laboratory Supply"
INVOICE_NUMBER = "INV-25-004817"
CUSTOMER_NUMBER = "C-208 417"
ORDER_NUMBER = "PO 4500-0093187"
INVOICE_DATE = date(2025, 3, 17)
DUE_DATE = INVOICE_DATE + timedelta(days=30)
EARLY_DATE = INVOICE_DATE + timedelta(days=10)
RECEIVED_DATE = date(2025, 3, 20)

DISCOUNT_RATE = Decimal("0.04")
EARLY_RATE = Decimal("0.02")
VAT_RATE = Decimal("0.19")
FREIGHT = Decimal("68.50")

SENDER_LINES = [
    "14 Kestrel Wharf · 00417 Ellersmouth",
    "Tel. +00 555 0142-0 · Fax +00 555 0142-99",
    "orders@orrinwold.example · www.orrinwold.example",
]
RECIPIENT_LINES = [
    "Tessaly Water Analytics Cooperative",
    "Accounts Payable, Building C",
    "Attn. Purchasing Group 3",
    "208 Old Sluice Road",
    "00932 Marrowfield",
]


@dataclass(frozen=True)
class Item:
    code: str
    description: str
    note: str
    quantity: int
    unit: str
    price: Decimal
    hazard: str  # a UN number, shown as a dark tag behind the note, or nothing

    @classmethod
    def parse(cls, row: str) -> Item:
        code, description, note, quantity, unit, price, *hazard = (cell.strip() for cell in row.split("|"))
        return cls(code, description, note, int(quantity), unit, Decimal(price), "".join(hazard))

    @property
    def amount(self) -> Decimal:
        return self.quantity * self.price


@dataclass(frozen=True)
class Delivery:
    heading: str
    items: list[Item]

    @classmethod
    def parse(cls, heading: str, rows: str) -> Delivery:
        return cls(heading, [Item.parse(row) for row in rows.strip().splitlines()])


DELIVERIES = [
    Delivery.parse(
        "Delivery note DN-25-11306 of 6 March 2025, carrier ref. 7740 3182 06, 4 parcels",
        """
GLS-1040-25 | Volumetric flask 25 ml, class A, NS 10/19   | Lot 24-1187   | 24 | pcs  |   11.85
GLS-1040-50 | Volumetric flask 50 ml, class A, NS 12/21   | Lot 24-1190   | 24 | pcs  |   12.40
GLS-1102-10 | Bulb pipette 10 ml, class AS, blue grad.    | Lot 24-0952   | 30 | pcs  |    6.75
GLS-1315-01 | Burette 50 ml, PTFE key, amber glass        | Ser. B-60213  |  4 | pcs  |   87.90
FLT-2200-47 | Membrane filter 0.45 µm, 47 mm, gridded     | Lot M45-3309  | 12 | box  |   64.20
FLT-2210-25 | Syringe filter PES 0.22 µm, 25 mm, sterile  | Lot S22-0418  |  8 | box  |  119.00
FLT-2291-09 | Filter holder, 3-branch manifold, steel     | Ser. 0077-C   |  1 | pcs  |  742.50
PIP-3001-02 | Pipette tips 2–200 µl, racked, 10 × 96      | Lot 25-0031   | 36 | rack |    9.15
PIP-3001-10 | Pipette tips 100–1000 µl, racked, 8 × 96    | Lot 25-0034   | 36 | rack |    9.60
PIP-3120-08 | 8-channel pipette 10–100 µl, calibrated     | Cert. K-8841  |  2 | pcs  |  438.00
CON-4015-15 | Centrifuge tube 15 ml, conical, sterile     | 500 per case  |  6 | case |   73.25
CON-4050-50 | Centrifuge tube 50 ml, self-standing        | 450 per case  |  6 | case |   81.80
        """,
    ),
    Delivery.parse(
        "Delivery note DN-25-11371 of 12 March 2025, carrier ref. 7740 3199 41, 3 parcels and 1 pallet",
        """
CHM-5007-04 | Buffer solution pH 4.01, traceable, 500 ml  | Exp. 09/2026  | 10 | btl  |   14.30
CHM-5007-07 | Buffer solution pH 7.00, traceable, 500 ml  | Exp. 09/2026  | 10 | btl  |   14.30
CHM-5120-01 | Ethanol 96 %, denatured, 5 l canister       | Exp. 02/2027  |  8 | can  |   38.65 | UN 1170
CHM-5144-02 | Nitric acid 65 %, trace grade, 1 l          | Exp. 11/2026  |  6 | btl  |   52.10 | UN 2031
CHM-5302-09 | Multi-element standard, 23 elements, 100 ml | Cert. R-1160  |  3 | btl  |  187.00
SEN-6101-00 | pH combination electrode, gel, 3 m cable    | Ser. 51882–85 |  4 | pcs  |  156.75
SEN-6230-00 | Optical oxygen probe, titanium sleeve       | Ser. 20914    |  1 | pcs  | 1284.00
SEN-6405-12 | Conductivity cell K = 1.0, platinised       | Ser. 33070–71 |  2 | pcs  |  211.40
SAF-7008-M  | Nitrile gloves 0.12 mm, size M, 100 pcs     | Lot N-90127   | 40 | box  |    7.95
SRV-9001-01 | Calibration service on site, incl. travel   | Order C-2217  |  3 | hrs  |   96.00
        """,
    ),
]

ITEMS = [item for delivery in DELIVERIES for item in delivery.items]
CHECKED_POSITIONS = {4, 7, 10, 18, 19}  # ticked off by the reader, in the margin

TERMS = [
    (
        "1. Scope.",
        "These terms apply to every offer, delivery and service of the Seller, including all future dealings with the "
        "Buyer, even where they are not agreed expressly again. Terms of the Buyer that depart from them bind the "
        "Seller only after the Seller has accepted them in writing for the individual order.",
    ),
    (
        "2. Offers and prices.",
        "Offers are subject to change until the order is confirmed. Prices are net, ex warehouse Ellersmouth, and "
        "exclude packaging, freight, insurance and value added tax, which are charged at the rate in force on the day "
        "of delivery.",
    ),
    (
        "3. Delivery.",
        "Dates of delivery are approximate unless confirmed as binding. Partial deliveries are permitted to a "
        "reasonable extent and may be invoiced separately. The Seller is not answerable for delay caused by strike, "
        "shortage of raw material, official measures or other events outside its reasonable control.",
    ),
    (
        "4. Passing of risk.",
        "The risk of accidental loss passes to the Buyer when the goods are handed to the first carrier, even where "
        "the Seller bears the cost of carriage. At the Buyer's request and expense the consignment is insured against "
        "theft, breakage, fire and water.",
    ),
    (
        "5. Inspection and complaints.",
        "The Buyer shall inspect the goods without delay on arrival and give written notice of visible defects within "
        "eight days, quoting the number of the delivery note and of the lot. Hidden defects shall be notified within "
        "five days of discovery. Goods not complained of in time are deemed accepted.",
    ),
    (
        "6. Warranty.",
        "In the event of a justified complaint the Seller shall, at its choice, repair or replace the goods. If this "
        "fails twice, the Buyer may reduce the price or withdraw from the contract. Claims lapse twelve months after "
        "delivery; for sterile goods and reagents the printed expiry date prevails where it is earlier.",
    ),
    (
        "7. Payment and default.",
        "Invoices fall due on the date stated on their face. From the day after the due date interest runs at eight "
        "percentage points above the base rate; for each reminder after the first, a reminder fee of EUR 12.50 is "
        "charged. Set-off is allowed only with claims that are undisputed or finally adjudged.",
    ),
    (
        "8. Retention of title.",
        "The goods remain the property of the Seller until all claims arising from the business relationship are paid "
        "in full. The Buyer may resell or process them in the ordinary course of business and hereby assigns to the "
        "Seller, by way of security, the claims that arise from such resale up to the invoice amount.",
    ),
    (
        "9. Hazardous goods.",
        "Substances marked with a UN number are supplied to trained professional users only. The Buyer confirms that "
        "it holds the permits required for storage and use and that the current safety data sheets have been made "
        "available to its staff before the containers are opened.",
    ),
    (
        "10. Returns.",
        "Returns require the prior consent of the Seller and a return number. Refrigerated, sterile or opened goods "
        "cannot be taken back. For other goods a handling charge of fifteen per cent of the net value, but no less "
        "than EUR 25.00, is deducted from the credit note.",
    ),
    (
        "11. Liability.",
        "The Seller is liable without limit for intent, gross negligence and injury to life, body or health. For "
        "slight negligence it is liable only for breach of an essential duty and only up to the foreseeable damage "
        "typical of the contract; liability for lost profit and for loss of samples or data is excluded.",
    ),
    (
        "12. Calibration certificates.",
        "Certificates state the condition of the instrument at the time of measurement. They may be reproduced in "
        "full only; extracts require the written approval of the issuing laboratory. A new certificate is issued after "
        "every adjustment or repair.",
    ),
    (
        "13. Data protection.",
        "The Seller stores the data needed to perform the contract for the statutory retention period of ten years "
        "and passes them to carriers and credit insurers only so far as this is necessary for performance. "
        "Requests for information or erasure are answered within one month.",
    ),
    (
        "14. Place of jurisdiction.",
        "The place of performance and the exclusive venue for all disputes is Ellersmouth. The United Nations "
        "Convention on Contracts for the International Sale of Goods does not apply. Should one of these terms be or "
        "become invalid, the validity of the remaining terms is not affected.",
    ),
]
FINE_PRINT_PHRASE = "a reminder fee of EUR 12.50"

FOOTER_COLUMNS = [
    [COMPANY + " Ltd.", "Registered office: 14 Kestrel Wharf", "00417 Ellersmouth"],
    ["Commercial register Ellersmouth", "No. R 000 417-B", "Share capital EUR 250,000"],
    ["VAT ID XX 000 000 417", "Tax no. 00/417/00000", "EORI XX0000004170"],
    ["Quality system certificate Q-00093", "Warehouse hours Mon–Fri 7:30–16:00", "Emergency line +00 555 0142-11"],
]

# --- Amounts and formats -------------------------------------------------------------------------------------------


def cents(value: Decimal) -> Decimal:
    return value.quantize(Decimal("0.01"), ROUND_HALF_UP)


def money(value: Decimal) -> str:
    return f"{value:,.2f}".replace("-", "−")


def percent(rate: Decimal) -> str:
    return f"{(100 * rate).normalize():f} %"


def long_date(day: date) -> str:
    return f"{day.day} {day:%B %Y}"


@dataclass(frozen=True)
class Amounts:
    subtotal: Decimal
    discount: Decimal
    net: Decimal
    vat: Decimal
    total: Decimal
    early: Decimal  # what is left to pay when paid early

    @classmethod
    def of(cls, items: Iterable[Item]) -> Amounts:
        subtotal = sum((item.amount for item in items), Decimal(0))
        discount = cents(subtotal * DISCOUNT_RATE)
        net = subtotal - discount + FREIGHT
        vat = cents(net * VAT_RATE)
        total = net + vat
        return cls(subtotal, discount, net, vat, total, early=total - cents(total * EARLY_RATE))


# --- Drawing -------------------------------------------------------------------------------------------------------


@cache
def font(name: str, size: int) -> ImageFont.FreeTypeFont:
    path = Path(matplotlib.get_data_path(), "fonts", "ttf", f"{name}.ttf")
    return ImageFont.truetype(str(path), size, layout_engine=ImageFont.Layout.BASIC)


def union(boxes: Iterable[Box]) -> Box:
    x0, y0, x1, y1 = zip(*boxes)
    return min(x0), min(y0), max(x1), max(y1)


class Sheet:
    """The page under construction, and the boxes of the fields that a reader would look for."""

    def __init__(self) -> None:
        self.image = Image.new("RGB", PAGE_SIZE, WHITE)
        self.draw = ImageDraw.Draw(self.image)
        self.fields: dict[str, Box] = {}

    def text(
        self, x: float, y: float, text: str, name: str = SANS, size: int = 14, fill: Color = INK, align: str = "l"
    ) -> Box:
        """Writes one line on the baseline y, with x at its left ("l"), middle ("m") or right ("r") end."""
        face = font(name, size)
        self.draw.text((x, y), text, fill, face, anchor=align + "s")
        x0, y0, x1, y1 = self.draw.textbbox((x, y), text, face, anchor=align + "s")
        return round(x0), round(y0), round(x1), round(y1)

    def lines(
        self,
        x: float,
        y: float,
        lines: Iterable[str],
        leading: int,
        name: str = SANS,
        size: int = 14,
        fill: Color = INK,
        align: str = "l",
    ) -> None:
        for i, line in enumerate(lines):
            self.text(x, y + i * leading, line, name, size, fill, align)

    def rule(self, y: int, x0: int = LEFT, x1: int = RIGHT, fill: Color = RULE, width: int = 1) -> None:
        self.draw.rectangle((x0, y, x1 - 1, y + width - 1), fill)

    def fill(self, box: Box, color: Color) -> None:
        x0, y0, x1, y1 = box
        self.draw.rectangle((x0, y0, x1 - 1, y1 - 1), color)

    def ink_mask(self, mask: Image.Image, color: Color, center: tuple[int, int], angle: float) -> None:
        """Prints a greyscale mask in one ink, turned counterclockwise by the angle in degrees."""
        turned = mask.rotate(angle, Image.Resampling.BICUBIC, expand=True)
        corner = center[0] - turned.width // 2, center[1] - turned.height // 2
        self.image.paste(color, corner, turned)


def draw_letterhead(sheet: Sheet) -> None:
    scale, size = 4, 92
    logo = Image.new("RGB", (scale * size, scale * size), DARK)
    draw = ImageDraw.Draw(logo)
    mid = scale * size / 2
    for radius, color in [(34, WHITE), (28, DARK), (20, WHITE), (14, DARK)]:
        r = scale * radius
        draw.ellipse((mid - r, mid - r, mid + r, mid + r), color)
    draw.polygon([(mid, mid), (scale * size, scale * 30), (scale * size, scale * 62)], DARK)
    draw.ellipse((mid - 24, mid - 24, mid + 24, mid + 24), WHITE)
    sheet.image.paste(logo.resize((size, size), Image.Resampling.LANCZOS), (LEFT, 56))

    sheet.text(LEFT + 114, 100, "ORRINWOLD", SERIF_BOLD, 44, DARK)
    sheet.text(LEFT + 117, 130, "Laboratory Supply", SERIF, 21, GREY)
    sheet.text(LEFT + 117, 148, "Glassware · Filtration · Sensors · Calibration", SANS, 11, GREY)
    sheet.text(RIGHT, 82, COMPANY + " Ltd.", BOLD, 14, align="r")
    sheet.lines(RIGHT, 104, SENDER_LINES, 20, size=13, fill=GREY, align="r")
    sheet.rule(164, fill=DARK, width=3)


def draw_addresses(sheet: Sheet) -> None:
    sheet.text(LEFT, 198, f"{COMPANY} Ltd. · 14 Kestrel Wharf · 00417 Ellersmouth", SANS, 10, GREY)
    sheet.rule(203, x1=LEFT + 357)
    sheet.text(LEFT, 234, RECIPIENT_LINES[0], BOLD, 16)
    sheet.lines(LEFT, 258, RECIPIENT_LINES[1:], 23, size=16)


def draw_details(sheet: Sheet) -> None:
    rows = [
        ("invoice_number", "Invoice number", INVOICE_NUMBER, MONO_BOLD),
        ("invoice_date", "Invoice date", long_date(INVOICE_DATE), SANS),
        ("due_date", "Due date", long_date(DUE_DATE), BOLD),
        ("customer_number", "Customer number", CUSTOMER_NUMBER, MONO),
        ("order", "Your order", ORDER_NUMBER, MONO),
        ("contract", "Framework contract", "FC-2024/61", MONO),
        ("vat_id", "Your VAT ID", "XX 000 000 932", MONO),
    ]
    x0, top, pitch = 762, 184, 25
    sheet.fill((x0, top, RIGHT, top + len(rows) * pitch), SHADE)
    for i, (field, label, value, name) in enumerate(rows):
        baseline = top + i * pitch + 18
        sheet.text(x0 + 12, baseline, label, SANS, 13, GREY)
        sheet.fields[field] = sheet.text(RIGHT - 12, baseline, value, name, 14, align="r")
        if i:
            sheet.rule(top + i * pitch, x0, RIGHT, WHITE)


def draw_heading(sheet: Sheet) -> None:
    sheet.text(LEFT, 402, "Invoice", SERIF_BOLD, 34, DARK)
    sheet.text(RIGHT, 402, "All amounts in euro (EUR)", OBLIQUE, 12, GREY, "r")
    intro = (
        f"For the goods and services delivered under your order {ORDER_NUMBER} of 24 February 2025 "
        "we charge you, on the terms set out below:"
    )
    sheet.text(LEFT, 432, intro, SANS, 13)


TABLE_TOP, TABLE_HEAD, ROW = 448, 28, 24
# Heading, alignment and x of the anchor of each column.
COLUMNS = [
    ("Pos.", "r", LEFT + 44),
    ("Article", "l", LEFT + 64),
    ("Description", "l", LEFT + 184),
    ("Batch / reference", "l", LEFT + 536),
    ("Qty", "r", LEFT + 764),
    ("Unit", "l", LEFT + 784),
    ("Unit price", "r", LEFT + 936),
    ("Amount", "r", RIGHT - 12),
]


def draw_table(sheet: Sheet) -> None:
    sheet.fill((LEFT, TABLE_TOP, RIGHT, TABLE_TOP + TABLE_HEAD), DARK)
    for heading, align, x in COLUMNS:
        sheet.text(x, TABLE_TOP + 19, heading, BOLD, 13, WHITE, align)
    y = TABLE_TOP + TABLE_HEAD
    position = 0
    for delivery in DELIVERIES:
        sheet.fill((LEFT, y, RIGHT, y + ROW), SHADE)
        sheet.text(LEFT + 10, y + 16, delivery.heading, OBLIQUE, 12, GREY)
        y += ROW
        for item in delivery.items:
            position += 1
            draw_item(sheet, y, position, item)
            y += ROW
            sheet.rule(y - 1, fill=HAIRLINE)
    sheet.rule(y - 1, fill=DARK, width=2)


def draw_item(sheet: Sheet, y: int, position: int, item: Item) -> None:
    cells = [
        (str(position), SANS, 13, GREY),
        (item.code, MONO, 13, INK),
        (item.description, SANS, 13, INK),
        (item.note, SANS, 11, GREY),
        (str(item.quantity), SANS, 13, INK),
        (item.unit, SANS, 13, INK),
        (money(item.price), SANS, 13, INK),
        (money(item.amount), SANS, 13, INK),
    ]
    for (_, align, x), (text, name, size, fill) in zip(COLUMNS, cells):
        sheet.text(x, y + 17, text, name, size, fill, align)
    if item.hazard:
        x0 = LEFT + 634
        sheet.fill((x0, y + 4, x0 + 66, y + ROW - 4), DARK)
        sheet.text(x0 + 33, y + 16, item.hazard, BOLD, 11, WHITE, "m")
    if position in CHECKED_POSITIONS:
        sheet.text(LEFT - 26, y + 18, "✓", SANS, 17, PENCIL)


def draw_totals(sheet: Sheet, amounts: Amounts) -> None:
    rows = [
        (f"Subtotal, {len(ITEMS)} items", amounts.subtotal),
        (f"Trade discount {percent(DISCOUNT_RATE)}", -amounts.discount),
        ("Freight and packaging", FREIGHT),
        ("Net amount", amounts.net),
        (f"VAT {percent(VAT_RATE)}", amounts.vat),
    ]
    label_x = 730
    for i, (label, value) in enumerate(rows):
        baseline = 1078 + 25 * i
        name = BOLD if label == "Net amount" else SANS
        sheet.text(label_x + 14, baseline, label, name, 14)
        sheet.text(RIGHT - 12, baseline, money(value), name, 14, align="r")
        sheet.rule(baseline + 7, label_x, fill=HAIRLINE)

    x0, y0, x1, y1 = TOTAL_BOX
    sheet.fill((label_x, y0, x0, y1), DARK)
    sheet.text(label_x + 14, y0 + 30, "TOTAL DUE  EUR", BOLD, 18, WHITE)
    sheet.draw.rectangle((x0, y0, x1 - 1, y1 - 1), WHITE, DARK, 3)
    sheet.text(x1 - 12, y0 + 32, money(amounts.total), BOLD, 25, align="r")
    sheet.fields["total"] = TOTAL_BOX


def draw_payment(sheet: Sheet, amounts: Amounts) -> None:
    sheet.text(LEFT, 1078, "Terms of payment", BOLD, 14)
    terms = [
        f"Payable in full by {long_date(DUE_DATE)} (30 days net).",
        f"{percent(EARLY_RATE)} discount if paid by {long_date(EARLY_DATE)}: pay EUR {money(amounts.early)}.",
        "Please quote the invoice number with your payment.",
    ]
    sheet.lines(LEFT, 1100, terms, 20, size=13)
    sheet.text(LEFT, 1174, "Bank details", BOLD, 14)
    bank = [
        ("Account", f"{COMPANY} Ltd., Ellersmouth Mutual Bank"),
        ("IBAN", "XX00 0000 4170 0000 0142 00"),
        ("BIC", "XXXXXX00XXX"),
        ("Reference", f"{INVOICE_NUMBER} / {CUSTOMER_NUMBER}"),
    ]
    for i, (label, value) in enumerate(bank):
        sheet.text(LEFT, 1195 + 18 * i, label, SANS, 12, GREY)
        sheet.text(LEFT + 84, 1195 + 18 * i, value, MONO, 12)


def draw_fine_print(sheet: Sheet) -> None:
    """Sets the terms in two justified columns."""
    top, size, leading, clause_gap, column_gap = 1313, 10, 12, 3, 36
    width = (RIGHT - LEFT - column_gap) // 2
    half = len(TERMS) // 2
    sheet.rule(1274)
    sheet.text(LEFT, 1295, "General terms of sale, delivery and payment (edition 07/2024)", BOLD, 11)
    words: list[tuple[str, Box]] = []
    for left, clauses in [(LEFT, TERMS[:half]), (RIGHT - width, TERMS[half:])]:
        y = top
        for heading, body in clauses:
            for line in break_lines(heading, body, size, width):
                words += draw_line(sheet, left, y, line, size, width)
                y += leading
            y += clause_gap
    sheet.fields["fine_print"] = find_phrase(words, FINE_PRINT_PHRASE)


@dataclass(frozen=True)
class Line:
    words: list[tuple[str, str]]  # each word and its font
    last: bool  # of its paragraph, and so not justified


def draw_line(sheet: Sheet, left: int, y: int, line: Line, size: int, width: int) -> list[tuple[str, Box]]:
    """Writes one line, justified unless it ends its paragraph, and returns its words with their boxes."""
    advances = [font(name, size).getlength(word) for word, name in line.words]
    if line.last:
        space = font(SERIF, size).getlength(" ")
    else:
        space = (width - sum(advances)) / (len(line.words) - 1)
    x = float(left)
    boxes = []
    for (word, name), advance in zip(line.words, advances):
        boxes.append((word, sheet.text(round(x), y, word, name, size)))
        x += advance + space
    return boxes


def break_lines(heading: str, body: str, size: int, width: int) -> list[Line]:
    """Fills lines greedily with the words of a clause, whose heading is set in bold."""
    words = [(word, SERIF_BOLD) for word in heading.split()] + [(word, SERIF) for word in body.split()]
    space = font(SERIF, size).getlength(" ")
    rows: list[list[tuple[str, str]]] = [[]]
    x = 0.0
    for word, name in words:
        advance = font(name, size).getlength(word)
        if x + advance > width:
            rows.append([])
            x = 0.0
        rows[-1].append((word, name))
        x += advance + space
    return [Line(row, last=row is rows[-1]) for row in rows]


def find_phrase(words: list[tuple[str, Box]], phrase: str) -> Box:
    """The box of the first place where the words of the phrase follow each other on one line."""
    wanted = phrase.split()
    for i in range(len(words) - len(wanted) + 1):
        texts, boxes = zip(*words[i : i + len(wanted)])
        if [text.strip(",.;") for text in texts] == wanted and boxes[0][0] < boxes[-1][0]:
            return union(boxes)
    raise ValueError(f"the phrase {phrase!r} does not stand on one line")


def draw_footer(sheet: Sheet) -> None:
    sheet.rule(1660, fill=DARK, width=2)
    pitch = (RIGHT - LEFT) / (len(FOOTER_COLUMNS) - 0.2)
    for i, column in enumerate(FOOTER_COLUMNS):
        sheet.lines(round(LEFT + i * pitch), 1679, column, 14, size=10, fill=GREY)
    sheet.text(LEFT, 1733, f"{INVOICE_NUMBER} · {long_date(INVOICE_DATE)}", MONO, 10, GREY)
    sheet.text(RIGHT, 1733, "Page 1 of 1", SANS, 11, GREY, "r")


def draw_stamp(sheet: Sheet) -> None:
    """The stamp of the customer's post room, a little askew and with specks of missing ink."""
    width, height = 232, 112
    mask = Image.new("L", (width, height), 0)
    draw = ImageDraw.Draw(mask)
    draw.rounded_rectangle((1, 1, width - 2, height - 2), 9, outline=225, width=4)
    draw.rounded_rectangle((8, 8, width - 9, height - 9), 5, outline=200, width=1)
    draw.text((width / 2, 41), "RECEIVED", 225, font(BOLD, 28), anchor="ms")
    stamped = f"{RECEIVED_DATE.day} {RECEIVED_DATE:%b %Y}".upper()
    draw.text((width / 2, 69), stamped, 225, font(MONO_BOLD, 20), anchor="ms")
    draw.text((width / 2, 91), "Accounts payable · No. 0352", 225, font(SANS, 11), anchor="ms")
    rng = random.Random(SEED)
    for _ in range(260):
        draw.point((rng.randrange(width), rng.randrange(height)), 0)
    sheet.ink_mask(mask, STAMP, center=(608, 262), angle=6.5)


def draw_margins(sheet: Sheet) -> None:
    """Fold and punch marks, the form number up the left edge and a pencilled note up the right one."""
    for y, length in [(620, 22), (877, 32), (1240, 22)]:
        sheet.rule(y, 24, 24 + length)
    for text, name, size, color, center in [
        ("Form OL-FIN 117 · rev. 07/2024", SANS, 9, GREY, (38, 1520)),
        ("quantities checked, cost centre 4410", OBLIQUE, 13, PENCIL, (1196, 760)),
    ]:
        mask = Image.new("L", (round(font(name, size).getlength(text)) + 2, 2 * size), 0)
        ImageDraw.Draw(mask).text((1, 1.4 * size), text, 255, font(name, size), anchor="ls")
        sheet.ink_mask(mask, color, center, 90)


def render() -> tuple[Image.Image, dict[str, Box]]:
    """The page, and the pixel boxes of its main fields: "total", "due_date", "invoice_number", "fine_print", ..."""
    amounts = Amounts.of(ITEMS)
    sheet = Sheet()
    draw_letterhead(sheet)
    draw_addresses(sheet)
    draw_details(sheet)
    draw_heading(sheet)
    draw_table(sheet)
    draw_totals(sheet, amounts)
    draw_payment(sheet, amounts)
    draw_fine_print(sheet)
    draw_footer(sheet)
    draw_stamp(sheet)
    draw_margins(sheet)
    return sheet.image, sheet.fields


def main() -> None:
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("invoice.png")
    image, fields = render()
    palette_image = image.quantize(PALETTE_COLORS, dither=Image.Dither.NONE)
    palette_image.save(out, optimize=True, dpi=(150, 150))
    print(f"wrote {out}, {image.width}x{image.height}")
    for name, (x0, y0, x1, y1) in fields.items():
        print(f"{name:16} box ({x0}, {y0}, {x1}, {y1})  centre ({(x0 + x1) // 2}, {(y0 + y1) // 2})")


if __name__ == "__main__":
    main()
