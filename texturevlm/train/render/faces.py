"""A face is one font file at one size and width, with a cache of drawn glyphs.

Copying a cached glyph takes about a microsecond, drawing a word anew seventy, and a page holds hundreds of words. Each
process has its own cache of faces.
"""

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFont

KEPT_FACES = 768


class Glyph(NamedTuple):
    """The ink of one letter (0 none, 255 full), cropped; its offset from the pen; the advance of the pen."""

    ink: NDArray[np.uint8]
    left: int
    top: int
    advance: float


class Face:
    """One font file at one size, letters `stretch` times as wide as drawn; lengths in pixels of the sheet."""

    def __init__(self, path: Path, size: int, stretch: float = 1.0) -> None:
        self.size = size
        self.stretch = stretch
        self._font = ImageFont.truetype(path, size, layout_engine=ImageFont.Layout.BASIC)
        self._glyphs: dict[str, Glyph] = {}
        self.space = max(self._font.getlength(" "), 0.18 * size) * stretch
        self._advances = {" ": self.space}
        self.x_height = -self.glyph("x").top

    def glyph(self, sign: str) -> Glyph:
        """The glyph of one character."""
        known = self._glyphs.get(sign)
        if known is None:
            known = self._glyphs[sign] = self._draw(sign)
            self._advances[sign] = known.advance
        return known

    def width(self, text: str) -> float:
        """The advance of a text."""
        advances = self._advances
        try:
            return sum([advances[sign] for sign in text])
        except KeyError:
            for sign in text:
                self.glyph(sign)
            return self.width(text)

    def _draw(self, sign: str) -> Glyph:
        mask, (left, top) = self._font.getmask2(sign, mode="L", anchor="ls")
        ink = np.frombuffer(bytes(mask), np.uint8).reshape(mask.size[::-1])
        rows, columns = np.flatnonzero(ink.any(axis=1)), np.flatnonzero(ink.any(axis=0))
        advance = self._font.getlength(sign) * self.stretch
        if not len(rows):
            return Glyph(np.zeros((1, 1), np.uint8), 0, 0, advance)
        tight = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].copy()
        if self.stretch != 1:
            width = max(1, round(tight.shape[1] * self.stretch))
            tight = np.array(Image.fromarray(tight).resize((width, tight.shape[0]), Image.Resampling.BILINEAR))
        return Glyph(tight, round((left + int(columns[0])) * self.stretch), top + int(rows[0]), advance)


@lru_cache(maxsize=KEPT_FACES)
def cached_face(path: Path, size: int, stretch: float = 1.0) -> Face:
    """The face of a file at a size and width, cached per process."""
    return Face(path, size, stretch)
