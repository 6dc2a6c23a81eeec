"""Marks on real pages beside the words: logos, signatures, stamps, punch holes, edges of the scanner.

Apart from stamps none of them is labelled: the network has to learn that not all ink is a word.
"""

import math
from collections.abc import Callable

import numpy as np
from PIL import Image, ImageDraw

from texturevlm_lab.train.render.sheet import FINE, Grey, Pen, Sheet, drawn_path
from texturevlm_lab.train.render.vocabulary import fact, fill_form


def signature(page: Sheet) -> None:
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
        patch = drawn_path(points, thick=rng.choice((2, 3, 4)), shade=rng.randint(120, 255))
        _stamp_free(page, patch, over_text=0.15)


def ring(page: Sheet) -> None:
    """A pen's circle around something, or the edge of a round stamp."""
    wide, high = page.rng.uniform(20, 90), page.rng.uniform(15, 45)
    turns = [i * math.pi / 20 for i in range(42)]
    points = [(wide * (1 + math.cos(turn)), high * (1 + math.sin(turn) + 0.003 * i)) for i, turn in enumerate(turns)]
    patch = drawn_path(points, thick=page.rng.choice((2, 3, 4)), shade=page.rng.randint(110, 255))
    _stamp_free(page, patch, over_text=0.15)


def logo(page: Sheet) -> None:
    """A few overlapping shapes where there is no word."""
    rng = page.rng
    side = rng.randint(40, 140)
    patch = Image.new("L", (side, side))
    pencil = ImageDraw.Draw(patch)
    for _ in range(rng.randint(2, 6)):
        xs, ys = sorted(rng.choices(range(side), k=2)), sorted(rng.choices(range(side), k=2))
        draw = rng.choice((pencil.ellipse, pencil.rectangle))
        draw((xs[0], ys[0], xs[1], ys[1]), fill=rng.choice((0, 255, 255, 120)), outline=255, width=2)
    _stamp_free(page, np.array(patch))


def dated_stamp(page: Sheet) -> None:
    """A date or a number hit by hand, pale, in a frame or alone."""
    rng = page.rng
    text = rng.choice((fact(rng, "date").upper(), "RECEIVED", "COPY", fill_form(rng, "########")))
    pen = Pen(page.style.heading.face, rng.randint(120, 230))
    width, height = pen.width(text) + 16, pen.x_height * 4
    place = _free_place(page, width, height)
    if place is not None:
        x, y = place
        page.write(text, x + 8, y + pen.x_height * 2.8, pen)
        if rng.random() < 0.5:
            page.frame(x, y, x + width, y + height)


def side_number(page: Sheet) -> None:
    """An archive's number along the edge, read from below."""
    text = fill_form(page.rng, page.rng.choice(("########", "##########", "### ######")))
    pen = Pen(page.style.heading.face)
    height = round(pen.face.size / FINE)
    strip = Sheet((round(height * 1.3), int(pen.width(text)) + 8), page.rng, page.vocabulary, page.style)
    strip.write(text, 4, height, pen)
    _stamp_free(page, np.rot90(strip.ink, page.rng.choice((1, 3))), edge=True)


def halftone(page: Sheet) -> None:
    """A photograph: patches of grey that change smoothly, in a frame of nothing."""
    rng = page.rng
    size = (rng.randint(60, 320) * FINE, rng.randint(60, 320) * FINE)
    knots = [[rng.randint(0, 255) for _ in range(9)] for _ in range(rng.randint(4, 12))]
    coarse = Image.fromarray(np.array(knots, np.uint8))
    _stamp_free(page, np.array(coarse.resize(size, Image.Resampling.BICUBIC)))


def screen(page: Sheet) -> None:
    """A tint of fine dots behind the text, as on printed forms."""
    ink, rng = page.ink, page.rng
    height, width = rng.randint(30, ink.shape[0] // 2), rng.randint(60, ink.shape[1])
    period = rng.randint(3, 6)
    down, across = rng.randint(0, ink.shape[0] - height), rng.randint(0, ink.shape[1] - width)
    spot = ink[down : down + height : period, across : across + width : period]
    np.maximum(spot, rng.randint(80, 255), out=spot, casting="unsafe")


def border(page: Sheet) -> None:
    """A frame around the whole page."""
    inset = page.rng.uniform(2, 14)
    page.frame(inset, inset, page.width - inset - 3, page.height - inset - 3, thick=page.rng.uniform(0.5, 3))


def punch_holes(page: Sheet) -> None:
    """Dark half-moons down one edge."""
    rng = page.rng
    radius, across = rng.randint(8, 16), rng.randint(8, 30)
    rows, columns = np.ogrid[-radius : radius + 1, -radius : radius + 1]
    moon = (rows**2 + columns**2 <= radius**2) & (rows**2 + (columns - 5) ** 2 > radius**2 * rng.uniform(0, 1))
    patch = (moon * rng.randint(100, 255)).astype(np.uint8)
    for share in rng.choice(((0.1, 0.5, 0.9), (0.3, 0.7))):
        page.stamp(patch, across / FINE, page.height * share)


def scanner_edges(page: Sheet) -> None:
    """Dark bands where the paper ended, as far in as the words allow."""
    rng, width, height = page.rng, page.width, page.height
    boxes = [box for _, box in page.words] or [(width, height, 0, 0)]
    x0, y0, x1, y1 = zip(*boxes)
    shade = rng.randint(120, 255)
    left, top, right, bottom = (
        rng.uniform(0, min(25, max(0, gap - 4))) if rng.random() < 0.6 else 0
        for gap in (min(x0), min(y0), width - max(x1), height - max(y1))
    )
    page.fill(0, 0, left, height, shade)
    page.fill(0, 0, width, top, shade)
    page.fill(width - right, 0, width, height, shade)
    page.fill(0, height - bottom, width, height, shade)


def _stamp_free(page: Sheet, patch: Grey, *, over_text: float = 0.0, edge: bool = False) -> None:
    """Print a patch where there are no words, if there is such a place; with the chance `over_text` anywhere."""
    place = _free_place(page, patch.shape[1] / FINE, patch.shape[0] / FINE, edge=edge)
    if over_text and (place is None or page.rng.random() < over_text):
        place = page.rng.uniform(0, page.width), page.rng.uniform(0, page.height)
    if place is not None:
        page.stamp(patch, *place)


def _free_place(page: Sheet, width: float, height: float, *, edge: bool = False) -> tuple[float, float] | None:
    """A corner (x, y) with room for width × height without words; None if a few tries find none."""
    rng = page.rng
    for _ in range(8):
        x = rng.uniform(4, max(4, page.width - width - 4))
        if edge:
            x = rng.choice((6, page.width - width - 6))
        y = rng.uniform(4, max(4, page.height - height - 4))
        if x + width > page.width or y + height > page.height:
            return None
        if not any(x0 < x + width and x < x1 and y0 < y + height and y < y1 for _, (x0, y0, x1, y1) in page.words):
            return x, y
    return None


# The chance of each kind of mark to be on a page.
MARKS: dict[Callable[[Sheet], None], float] = {
    signature: 0.35,
    ring: 0.08,
    logo: 0.3,
    dated_stamp: 0.2,
    side_number: 0.25,
    punch_holes: 0.15,
    scanner_edges: 0.2,
    halftone: 0.1,
    screen: 0.06,
    border: 0.05,
}
