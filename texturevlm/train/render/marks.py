"""Marks on real pages beside the words: logos, signatures, stamps, punch holes, edges of the scanner.

None of them is labelled: the network has to learn that not all ink is a word.
"""

import math

import numpy as np
from PIL import Image, ImageDraw

from texturevlm.train.render.prose import PageContext
from texturevlm.train.render.sheet import FINE, Pen
from texturevlm.train.render.vocabulary import date, digits


def scatter_marks(page: PageContext) -> None:
    """Each kind of mark with its own chance."""
    for mark, chance in MARKS:
        if page.rng.random() < chance:
            mark(page)


def signature(page: PageContext) -> None:
    """Illegible handwriting: loops along a line."""
    rng = page.rng
    for _ in range(rng.randint(1, 3)):
        height, letters = rng.uniform(10, 34), rng.randint(3, 14)
        slant, phase, pitch = rng.uniform(-0.2, 0.7), rng.uniform(0, 6), rng.uniform(4, 9)
        points = []
        for i in range(letters * 8):
            turn = i * math.pi / 4
            swing = math.sin(turn + phase) * (0.45 + 0.4 * math.sin(turn * 0.31 + phase))
            points.append((i * pitch / 8 + 5 * math.cos(turn) + slant * height * swing, height * (0.5 - 0.5 * swing)))
        _draw_path(page, points, thick=rng.choice((2, 3, 4)), shade=rng.randint(120, 255))


def ring(page: PageContext) -> None:
    """A pen's circle around something, or the edge of a round stamp."""
    wide, high = page.rng.uniform(20, 90), page.rng.uniform(15, 45)
    turns = [i * math.pi / 20 for i in range(42)]
    points = [(wide * (1 + math.cos(turn)), high * (1 + math.sin(turn) + 0.003 * i)) for i, turn in enumerate(turns)]
    _draw_path(page, points, thick=page.rng.choice((2, 3, 4)), shade=page.rng.randint(110, 255))


def _draw_path(page: PageContext, points: list[tuple[float, float]], *, thick: int, shade: int) -> None:
    """Lines through the points (pixels of the page from the patch's corner), somewhere on the sheet."""
    x0, y0 = min(x for x, _ in points), min(y for _, y in points)
    path = [((x - x0) * FINE + thick, (y - y0) * FINE + thick) for x, y in points]
    patch = Image.new("L", (int(max(x for x, _ in path)) + 2 * thick, int(max(y for _, y in path)) + 2 * thick))
    ImageDraw.Draw(patch).line(path, fill=shade, width=thick)
    _lay(page, np.array(patch))


def _lay(page: PageContext, patch: np.ndarray) -> None:
    """Print a patch of ink where there is room, or sometimes over the text."""
    place = free_place(page, patch.shape[1] / FINE, patch.shape[0] / FINE)
    if place is None or page.rng.random() < 0.15:
        ink = page.sheet.ink
        place = page.rng.uniform(0, ink.shape[1]) / FINE, page.rng.uniform(0, ink.shape[0]) / FINE
    _print(page, patch, place)


def _print(page: PageContext, patch: np.ndarray, place: tuple[float, float]) -> None:
    """Print a patch of ink with its corner at (x, y), cut at the edges of the sheet."""
    x, y = (round(edge * FINE) for edge in place)
    spot = page.sheet.ink[y : y + patch.shape[0], x : x + patch.shape[1]]
    np.maximum(spot, patch[: spot.shape[0], : spot.shape[1]], out=spot)


def logo(page: PageContext) -> None:
    """A few overlapping shapes where there is no word."""
    rng = page.rng
    side = rng.randint(40, 140)
    patch = Image.new("L", (side, side))
    pencil = ImageDraw.Draw(patch)
    for _ in range(rng.randint(2, 6)):
        xs, ys = sorted(rng.choices(range(side), k=2)), sorted(rng.choices(range(side), k=2))
        draw = rng.choice((pencil.ellipse, pencil.rectangle))
        draw((xs[0], ys[0], xs[1], ys[1]), fill=rng.choice((0, 255, 255, 120)), outline=255, width=2)
    place = free_place(page, side / FINE, side / FINE)
    if place is not None:
        _print(page, np.array(patch), place)


def stamp(page: PageContext) -> None:
    """A date or a number hit by hand, pale, in a frame or alone."""
    rng = page.rng
    text = rng.choice((date(rng).upper(), "RECEIVED", "COPY", digits(rng, "########")))
    pen = Pen(page.style.heading.face, rng.randint(120, 230))
    place = free_place(page, pen.width(text) + 16, pen.x_height * 4)
    if place is None:
        return
    x, y = place
    page.sheet.write(text, x + 8, y + pen.x_height * 2.8, pen)
    if rng.random() < 0.5:
        page.sheet.frame(x, y, x + pen.width(text) + 16, y + pen.x_height * 4)


def side_number(page: PageContext) -> None:
    """An archive's number along the edge, read from below."""
    text = digits(page.rng, page.rng.choice(("########", "##########", "### ######")))
    face = page.style.heading.face
    strip = np.zeros((round(face.size * 1.3), int(face.width(text)) + 8), np.uint8)
    across = 4.0
    for sign in text.replace(" ", "0"):
        glyph = face.glyph(sign)
        down = face.size + glyph.top
        spot = strip[down : down + glyph.ink.shape[0], int(across) + glyph.left :][:, : glyph.ink.shape[1]]
        np.maximum(spot, glyph.ink[: spot.shape[0], : spot.shape[1]], out=spot)
        across += glyph.advance
    turned = np.rot90(strip, page.rng.choice((1, 3)))
    place = free_place(page, turned.shape[1] / FINE, turned.shape[0] / FINE, edge=True)
    if place is not None:
        _print(page, turned, place)


def halftone(page: PageContext) -> None:
    """A photograph: patches of grey that change smoothly, in a frame of nothing."""
    rng = page.rng
    width, height = rng.randint(60, 320), rng.randint(60, 320)
    place = free_place(page, width, height)
    if place is None:
        return
    knots = [[rng.randint(0, 255) for _ in range(9)] for _ in range(rng.randint(4, 12))]
    coarse = Image.fromarray(np.array(knots, np.uint8))
    grey = np.array(coarse.resize((width * FINE, height * FINE), Image.Resampling.BICUBIC))
    _print(page, grey, place)


def screen(page: PageContext) -> None:
    """A tint of fine dots behind the text, as on printed forms."""
    ink, rng = page.sheet.ink, page.rng
    height, width = rng.randint(30, ink.shape[0] // 2), rng.randint(60, ink.shape[1])
    period = rng.randint(3, 6)
    down, across = rng.randint(0, ink.shape[0] - height), rng.randint(0, ink.shape[1] - width)
    spot = ink[down : down + height : period, across : across + width : period]
    np.maximum(spot, rng.randint(80, 255), out=spot, casting="unsafe")


def border(page: PageContext) -> None:
    """A frame around the whole page."""
    sheet, inset = page.sheet, page.rng.uniform(2, 14)
    sheet.frame(inset, inset, sheet.width - inset - 3, sheet.height - inset - 3, thick=page.rng.uniform(0.5, 3))


def punch_holes(page: PageContext) -> None:
    """Dark half-moons down one edge."""
    sheet, rng = page.sheet, page.rng
    radius = rng.randint(8, 16)
    across = rng.randint(8, 30)
    rows, columns = np.ogrid[-radius : radius + 1, -radius : radius + 1]
    moon = (rows**2 + columns**2 <= radius**2) & (rows**2 + (columns - 5) ** 2 > radius**2 * rng.uniform(0, 1))
    patch = (moon * rng.randint(100, 255)).astype(np.uint8)
    for share in rng.choice(((0.1, 0.5, 0.9), (0.3, 0.7))):
        _print(page, patch, (across / FINE, sheet.height * share))


def scanner_edges(page: PageContext) -> None:
    """Dark bands where the paper ended, as far in as the words allow."""
    sheet, rng = page.sheet, page.rng
    boxes = [box for _, box in sheet.words]
    room = (
        min((box[0] for box in boxes), default=sheet.width),
        min((box[1] for box in boxes), default=sheet.height),
        sheet.width - max((box[2] for box in boxes), default=0),
        sheet.height - max((box[3] for box in boxes), default=0),
    )
    shade = rng.randint(120, 255)
    left, top, right, bottom = (rng.uniform(0, min(25, max(0, gap - 4))) if rng.random() < 0.6 else 0 for gap in room)
    sheet.fill(0, 0, left, sheet.height, shade)
    sheet.fill(0, 0, sheet.width, top, shade)
    sheet.fill(sheet.width - right, 0, sheet.width, sheet.height, shade)
    sheet.fill(0, sheet.height - bottom, sheet.width, sheet.height, shade)


def free_place(page: PageContext, width: float, height: float, *, edge: bool = False) -> tuple[float, float] | None:
    """A corner (x, y) with room for width × height without words; None if a few tries find none."""
    sheet, rng = page.sheet, page.rng
    for _ in range(8):
        x = rng.uniform(4, max(4, sheet.width - width - 4))
        if edge:
            x = rng.choice((6, sheet.width - width - 6))
        y = rng.uniform(4, max(4, sheet.height - height - 4))
        if x + width > sheet.width or y + height > sheet.height:
            return None
        taken = any(box[0] < x + width and x < box[2] and box[1] < y + height and y < box[3] for _, box in sheet.words)
        if not taken:
            return x, y
    return None


MARKS = (
    (signature, 0.35),
    (ring, 0.08),
    (logo, 0.3),
    (stamp, 0.2),
    (side_number, 0.25),
    (punch_holes, 0.15),
    (scanner_edges, 0.2),
    (halftone, 0.1),
    (screen, 0.06),
    (border, 0.05),
)
