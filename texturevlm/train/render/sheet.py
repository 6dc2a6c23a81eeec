"""The sheet that a page is printed on: words with their boxes, rules, frames and fills, at twice the page's resolution.

All positions and lengths are in pixels of the finished page. Ink is 0 where the paper is blank and 255 where it is
black. Words that do not fit on the paper are not written.
"""

import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from texturevlm.allocate.footprints import Box
from texturevlm.train.render.faces import Face

FINE = 2  # pixels of the sheet per pixel of the page, along each axis

Grey = NDArray[np.uint8]
PlacedWord = tuple[str, Box]


@dataclass(frozen=True)
class Pen:
    """How words are written: face, darkness, letter spacing, and unevenness of a typewriter."""

    face: Face
    shade: int = 255
    tracking: float = 0.0
    uneven: float = 0.0
    capitals: bool = False  # upper case only

    @property
    def x_height(self) -> float:
        return self.face.x_height / FINE

    @property
    def space(self) -> float:
        return (self.face.space + self.tracking) / FINE

    def width(self, text: str) -> float:
        return (self.face.width(self.spelled(text)) + self.tracking * len(text)) / FINE

    def spelled(self, text: str) -> str:
        return text.upper() if self.capitals else text

    def shortened(self, text: str, width: float, *, least: int = 0) -> str:
        """As many of a text's first words as fit into `width`, at least `least` of them."""
        words = text.split()
        while len(words) > least and self.width(" ".join(words)) > width:
            words.pop()
        return " ".join(words)


class Sheet:
    """Blank paper of (height, width) to be written on."""

    def __init__(self, size: tuple[int, int], rng: random.Random) -> None:
        self.height, self.width = size
        self.rng = rng
        self.ink = np.zeros((size[0] * FINE, size[1] * FINE), np.uint8)
        self.words: list[PlacedWord] = []

    def write(self, text: str, x: float, y: float, pen: Pen, *, label: bool = True) -> float:
        """One line from x on, with its baseline at y; returns where it ends. Each word is recorded with its box."""
        for count, word in enumerate(pen.spelled(text).split(" ")):
            if count:
                x += pen.space
            if word:
                self._write_word(word, x, y, pen, label)
                x += pen.width(word)
        return x

    def _write_word(self, word: str, x: float, y: float, pen: Pen, label: bool) -> None:
        place, line = x * FINE, round(y * FINE)
        glyphs = [pen.face.glyph(sign) for sign in word]
        placed = []
        for glyph in glyphs:
            hop = round(self.rng.gauss(0, pen.uneven)) if pen.uneven else 0
            placed.append((glyph.ink, round(place) + glyph.left, line + glyph.top + hop))
            place += glyph.advance + pen.tracking
        left = min(at for _, at, _ in placed)
        top = min(min(at for _, _, at in placed), line - pen.face.x_height)
        right = max(at + ink.shape[1] for ink, at, _ in placed)
        bottom = max(max(at + ink.shape[0] for ink, _, at in placed), line)
        if left < 0 or top < 0 or right > self.ink.shape[1] or bottom > self.ink.shape[0]:
            return
        for ink, across, down in placed:
            self._stamp(ink, across, down, pen)
        if label:
            self.words.append((word, (left / FINE, top / FINE, right / FINE, bottom / FINE)))

    def _stamp(self, ink: np.ndarray, across: int, down: int, pen: Pen) -> None:
        spot = self.ink[down : down + ink.shape[0], across : across + ink.shape[1]]
        shade = pen.shade
        if pen.uneven:
            shade = int(shade * self.rng.uniform(0.55, 1))
        if shade != 255:
            ink = (ink.astype(np.uint16) * shade >> 8).astype(np.uint8)
        np.maximum(spot, ink, out=spot)

    def centre(self, text: str, x0: float, x1: float, y: float, pen: Pen) -> None:
        """One line in the middle between x0 and x1."""
        self.write(text, (x0 + x1 - pen.width(text)) / 2, y, pen)

    def right(self, text: str, x1: float, y: float, pen: Pen) -> None:
        """One line that ends at x1."""
        self.write(text, x1 - pen.width(text), y, pen)

    def fill(self, x0: float, y0: float, x1: float, y1: float, shade: int = 255) -> None:
        """A filled rectangle."""
        spot = self._within(x0, y0, x1, y1)
        np.maximum(spot, shade, out=spot, casting="unsafe")

    def invert(self, x0: float, y0: float, x1: float, y1: float) -> None:
        """White on black within a rectangle."""
        spot = self._within(x0, y0, x1, y1)
        np.subtract(255, spot, out=spot)

    def _within(self, *box: float) -> Grey:
        """The ink in a rectangle, xyxy, as a view."""
        left, top, right, bottom = (max(0, round(edge * FINE)) for edge in box)
        return self.ink[top:bottom, left:right]

    def rule(self, x0: float, y0: float, x1: float, y1: float, *, thick: float = 1.0, dash: float = 0.0) -> None:
        """A line along one axis; with `dash` it is broken into pieces of that length."""
        if not dash:
            self.fill(x0, y0, max(x1, x0 + thick), max(y1, y0 + thick))
            return
        while x0 < x1:
            self.fill(x0, y0, min(x1, x0 + dash), y0 + thick)
            x0 += dash * 1.8

    def frame(self, x0: float, y0: float, x1: float, y1: float, *, thick: float = 1.0) -> None:
        """The outline of a rectangle."""
        for edges in ((x0, y0, x1, y0), (x0, y1, x1, y1), (x0, y0, x0, y1), (x1, y0, x1, y1 + thick)):
            self.rule(*edges, thick=thick)
