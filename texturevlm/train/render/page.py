"""One rendered page: layout, typography, words, marks, and the degradation by scanning."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from texturevlm.check import check_size
from texturevlm.train.render.degrade import degrade
from texturevlm.train.render.fonts import check_fonts, families
from texturevlm.train.render.layouts import LAYOUTS, foot, receipt
from texturevlm.train.render.marks import scatter_marks
from texturevlm.train.render.prose import PageContext
from texturevlm.train.render.sheet import FINE, Pen, PlacedWord, Sheet
from texturevlm.train.render.style import make_style
from texturevlm.train.render.vocabulary import Vocabulary, code

ARCHIVED = 0.35  # share of pages with an archive's address along the bottom
NOTE_HEIGHT = 28  # pixels
RECEIPT_TYPE = (10.0, 26.0)  # a receipt fills its picture, so its type may be large
TYPEWRITTEN = 0.25  # share of pages by a typewriter or a line printer


@dataclass(frozen=True)
class RenderedPage:
    """A page and its words.

    image: (H, W) uint8, white paper 255
    words: (text, (x0, y0, x1, y1)) in pixels, every legible word, in no particular order
    """

    image: NDArray[np.uint8]
    words: list[PlacedWord]


def render_page(
    generator: np.random.Generator,
    fonts: Sequence[Path],
    vocabulary: Vocabulary,
    size: tuple[int, int] = (1100, 850),
) -> RenderedPage:
    """A random page; the same generator state, fonts, vocabulary and size give the same page.

    generator:  np.random.default_rng([seed, index]) makes page `index` of a seed, in any process
    fonts:      font files, from find_fonts
    vocabulary: the words to write
    size:       (height, width) in pixels
    """
    height, width = check_size("render_page", size)
    known = families(check_fonts("render_page", fonts))
    rng = random.Random(int(generator.integers(1 << 62)))
    sheet = Sheet((height, width), rng)
    kinds = list(LAYOUTS.values())
    compose = rng.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]
    size_of_type = rng.uniform(*RECEIPT_TYPE) if compose is receipt else None
    style = make_style(rng, known, size=size_of_type, typewritten=rng.random() < TYPEWRITTEN)
    page = PageContext(sheet, rng, vocabulary, style)
    compose(page)
    foot(page)
    scatter_marks(page)
    image, words = degrade(generator, sheet.ink, sheet.words, rng)
    if rng.random() < ARCHIVED:
        image, words = add_note(image, words, page)
    return RenderedPage(np.ascontiguousarray(image), words)


def add_note(
    image: NDArray[np.uint8], words: list[PlacedWord], page: PageContext
) -> tuple[NDArray[np.uint8], list[PlacedWord]]:
    """An archive's address in grey along the bottom, added after the scan and so undegraded."""
    rng, style = page.rng, page.style
    height = min(NOTE_HEIGHT, image.shape[0])
    strip = Sheet((height, image.shape[1]), rng)
    pen = Pen(style.body.face)
    text = f"Source: https://www.{page.vocabulary.nonsense(rng)}.edu/docs/{code(rng).lower().replace(' ', '')}"
    strip.centre(text, 0, strip.width, height * 0.6, pen)
    ink = np.asarray(Image.fromarray(strip.ink).reduce(FINE)).astype(np.uint16)
    top = image.shape[0] - height
    clear = [word for word in words if word[1][3] <= top]
    noted = image.copy()
    noted[top:] = (noted[top:] * (255 - ink) + rng.randint(110, 170) * ink) // 255
    return noted, clear + [(word, (x0, y0 + top, x1, y1 + top)) for word, (x0, y0, x1, y1) in strip.words]
