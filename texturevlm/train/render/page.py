"""One rendered page: a kind of layout, a typography, the words, the marks around them, and the scan of it all."""

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
from texturevlm.train.render.prose import Job
from texturevlm.train.render.sheet import FINE, Pen, Sheet, Word
from texturevlm.train.render.style import make_style
from texturevlm.train.render.vocabulary import Vocabulary, code

ARCHIVED = 0.35  # the share of pages that an archive wrote its address on
NOTE_HEIGHT = 28  # pixels
RECEIPT_TYPE = (10.0, 26.0)  # a receipt fills its picture, so its type may be large
TYPEWRITTEN = 0.25  # the share of pages that a typewriter or a line printer wrote


@dataclass(frozen=True)
class RenderedPage:
    """A page and what is written on it.

    image: (H, W) uint8, white paper 255
    words: (text, (x0, y0, x1, y1)) in pixels, every word that a reader could read, in no particular order
    """

    image: NDArray[np.uint8]
    words: list[Word]


def render_page(
    generator: np.random.Generator,
    fonts: Sequence[Path],
    vocabulary: Vocabulary,
    size: tuple[int, int] = (1100, 850),
) -> RenderedPage:
    """A page at random; the same generator state, fonts, vocabulary and size give the same page.

    generator:  np.random.default_rng([seed, index]) makes page `index` of an endless book, in any process
    fonts:      font files, from find_fonts
    vocabulary: what to write
    size:       (height, width) in pixels
    """
    height, width = check_size("render_page", size)
    known = families(check_fonts("render_page", fonts))
    dice = random.Random(int(generator.integers(1 << 62)))
    sheet = Sheet((height, width), dice)
    kinds = list(LAYOUTS.values())
    compose = dice.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]
    size_of_type = dice.uniform(*RECEIPT_TYPE) if compose is receipt else None
    style = make_style(dice, known, size=size_of_type, typewritten=dice.random() < TYPEWRITTEN)
    job = Job(sheet, dice, vocabulary, style)
    compose(job)
    foot(job)
    scatter_marks(job)
    image, words = degrade(generator, sheet.ink, sheet.words, dice)
    if dice.random() < ARCHIVED:
        image, words = add_note(image, words, job)
    return RenderedPage(np.ascontiguousarray(image), words)


def add_note(image: NDArray[np.uint8], words: list[Word], job: Job) -> tuple[NDArray[np.uint8], list[Word]]:
    """The archive's address in grey along the bottom, added to the scan and so as clean as it was written."""
    dice, style = job.dice, job.style
    height = min(NOTE_HEIGHT, image.shape[0])
    strip = Sheet((height, image.shape[1]), dice)
    pen = Pen(style.body.face)
    text = f"Source: https://www.{job.vocabulary.nonsense(dice)}.edu/docs/{code(dice).lower().replace(' ', '')}"
    strip.centre(text, 0, strip.width, height * 0.6, pen)
    ink = np.asarray(Image.fromarray(strip.ink).reduce(FINE)).astype(np.uint16)
    top = image.shape[0] - height
    clear = [word for word in words if word[1][3] <= top]
    noted = image.copy()
    noted[top:] = (noted[top:] * (255 - ink) + dice.randint(110, 170) * ink) // 255
    return noted, clear + [(word, (x0, y0 + top, x1, y1 + top)) for word, (x0, y0, x1, y1) in strip.words]
