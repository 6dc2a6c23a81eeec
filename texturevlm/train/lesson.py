"""A lesson: a page with known words, at a random scale on a canvas, and what each spot of it should say.

Everything follows from the generator, so that page number n of a run is the same whenever it is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from texturevlm.scout.letters import letter_codes
from texturevlm.scout.spotter import SPOT
from texturevlm.text.strings import KINDS, kinds, plain

CANVAS = (1104, 848)  # pixels
SCALES = (0.7, 1.35)
SPOTS_A_WORD = 3
MOST_WORDS = 400  # of a page
CORE = 0.2  # of a word's height at its top and bottom is not asked for its word
SMALLEST = 5.0  # pixels: what is lower cannot be read
APART = 1.5  # heights: words with a wider gap between them are not of one line

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Written:
    """A page with its words: image (H, W) uint8, and of each word its text and its box in pixels."""

    image: np.ndarray
    words: Sequence[tuple[str, Box]]


class Lesson(NamedTuple):
    """A page on the canvas, and what is asked of the spotter.

    image: (H, W) uint8
    spots: (N, 2) rows and columns of the spots that are asked
    asked: (N,) which of `letters` stands there
    letters: (M, LONGEST) int8
    kinds, height: (N, len(KINDS)) and (N,), of those spots
    text:  (h, w) uint8, whether there is text
    """

    image: Tensor
    spots: Tensor
    asked: Tensor
    letters: Tensor
    kinds: Tensor
    height: Tensor
    text: Tensor


def lesson(page: Written, generator: np.random.Generator) -> Lesson:
    """A page at a random scale and place on the canvas."""
    scale = float(np.exp(generator.uniform(*np.log(SCALES))))
    high, wide = page.image.shape
    inner = (max(16, round(high * scale)), max(16, round(wide * scale)))
    resized = Image.fromarray(page.image).resize(inner[::-1], Image.Resampling.BILINEAR, reducing_gap=None)
    top, left = (int(generator.integers(min(0, room), max(0, room) + 1)) for room in _room(inner))
    image = _placed(np.asarray(resized), top, left)
    kept = kinds_of(page.words)
    order = generator.permutation(len(page.words))[:MOST_WORDS]
    text = np.zeros((CANVAS[0] // SPOT, CANVAS[1] // SPOT), np.uint8)
    letters: list[str] = []
    rows, which, kind, height = [], [], [], []
    ratios, shifts = 2 * (inner[1] / wide, inner[0] / high), 2 * (left, top)
    boxes = [tuple(v * r + s for v, r, s in zip(box, ratios, shifts)) for _, box in page.words]
    for x0, y0, x1, y1 in boxes:  # every word is text, also one of which nothing is asked
        seen = max(x0, 0.0), max(y0, 0.0), min(x1, CANVAS[1]), min(y1, CANVAS[0])
        if seen[0] < seen[2] and seen[1] < seen[3] and y1 - y0 >= SMALLEST:
            text[_within(seen[1], seen[3]), _within(seen[0], seen[2])] = 1
    for index in order:
        word, (x0, y0, x1, y1) = page.words[index][0], boxes[index]
        whole = x0 >= 0 and y0 >= 0 and x1 <= CANVAS[1] and y1 <= CANVAS[0]
        if not whole or y1 - y0 < SMALLEST or not plain(word):
            continue
        edge = CORE * (y1 - y0)
        down, across = _within(y0 + edge, y1 - edge), _within(x0, x1)
        for _ in range(SPOTS_A_WORD):
            rows.append((generator.integers(down.start, down.stop), generator.integers(across.start, across.stop)))
            which.append(len(letters))
            kind.append(kept[index])
            height.append(np.log(y1 - y0))
        letters.append(word)
    return Lesson(
        torch.from_numpy(image),
        torch.tensor(np.array(rows, np.int64).reshape(-1, 2)),
        torch.tensor(which, dtype=torch.int64),
        letter_codes(letters).to(torch.int8),
        torch.tensor(np.array(kind, np.float32).reshape(-1, len(KINDS))),
        torch.tensor(height, dtype=torch.float32),
        torch.from_numpy(text),
    )


def kinds_of(words: Sequence[tuple[str, Box]]) -> np.ndarray:
    """(N, len(KINDS)): words that follow one another on a line are looked at together, since a date may be several."""
    found = np.zeros((len(words), len(KINDS)), np.float32)
    start = 0
    for index in range(1, len(words) + 1):
        if index == len(words) or not _follows(words[index - 1][1], words[index][1]):
            found[start:index] = kinds([word for word, _ in words[start:index]])
            start = index
    return found


def _follows(first: Box, second: Box) -> bool:
    height = first[3] - first[1]
    shared = min(first[3], second[3]) - max(first[1], second[1])
    return shared > 0.5 * height and -0.5 * height < second[0] - first[2] < APART * height


def _room(inner: tuple[int, int]) -> tuple[int, int]:
    return CANVAS[0] - inner[0], CANVAS[1] - inner[1]


def _placed(image: np.ndarray, top: int, left: int) -> np.ndarray:
    """On the canvas, what is beyond it cut off; around it the colour that most of its border has."""
    border = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
    canvas = np.full(CANVAS, np.median(border), np.uint8)
    y, x = max(0, top), max(0, left)
    part = image[y - top : y - top + CANVAS[0] - y, x - left : x - left + CANVAS[1] - x]
    canvas[y : y + part.shape[0], x : x + part.shape[1]] = part
    return canvas


def _within(low: float, high: float) -> slice:
    """The spots whose middles lie between; the nearest if there is none."""
    first, last = int(np.ceil(low / SPOT - 0.5)), int(np.floor(high / SPOT - 0.5))
    if last < first:
        first = last = int((low + high) / 2 / SPOT)
    return slice(max(0, first), max(0, first, last) + 1)


def together(lessons: Sequence[Lesson]) -> Lesson:
    """Several pages as one: images (B, 1, H, W), spots (N, 3) with the page first, words numbered through."""
    spots, asked, first = [], [], 0
    for page, one in enumerate(lessons):
        spots.append(functional.pad(one.spots, (1, 0), value=page))
        asked.append(one.asked + first)
        first += len(one.letters)
    return Lesson(
        torch.stack([one.image for one in lessons])[:, None],
        torch.cat(spots),
        torch.cat(asked),
        torch.cat([one.letters for one in lessons]),
        torch.cat([one.kinds for one in lessons]),
        torch.cat([one.height for one in lessons]),
        torch.stack([one.text for one in lessons]),
    )
