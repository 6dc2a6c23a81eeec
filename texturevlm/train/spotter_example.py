"""Training examples of the spotter: a page with known words, at a random scale on a canvas, with a target per spot.

Everything follows from the generator, so that page number n of a run is the same whenever it is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional

from texturevlm.allocate.footprints import Box
from texturevlm.scout.letters import letter_codes
from texturevlm.scout.spotter import SPOT
from texturevlm.text.strings import KINDS, kinds, plain

CANVAS = (1104, 848)  # pixels
SCALES = (0.7, 1.35)
SPOTS_PER_WORD = 3
MOST_WORDS = 400  # per page
_MARGIN = 0.2  # share of a word's height, at its top and bottom, where no spot is drawn
SMALLEST = 5.0  # pixels: lower text is illegible
_WORD_GAP = 1.5  # heights: words with a wider gap between them are not on one line

Words = Sequence[tuple[str, Box]]  # text and box in pixels


class SpotterExample(NamedTuple):
    """A page on the canvas and its targets; several, after `collate`, with a batch dimension where noted.

    image:   (H, W) uint8; collated (B, 1, H, W)
    spots:   (N, 2), row and column of the spots with targets; collated (N, 3), page first
    word:    (N,), index into `letters` of the word at each spot
    letters: (M, LONGEST) int8
    kinds:   (N, len(KINDS)), of the word at each spot
    height:  (N,), logarithm of the word's height
    text:    (h, w) uint8, whether there is text; collated (B, h, w)
    """

    image: Tensor
    spots: Tensor
    word: Tensor
    letters: Tensor
    kinds: Tensor
    height: Tensor
    text: Tensor


def spotter_example(page: NDArray[np.uint8], words: Words, generator: np.random.Generator) -> SpotterExample:
    """A page (H, W) with its words, at a random scale and place on the canvas."""
    scale = float(np.exp(generator.uniform(*np.log(SCALES))))
    high, wide = page.shape
    inner = (max(16, round(high * scale)), max(16, round(wide * scale)))
    resized = Image.fromarray(page).resize(inner[::-1], Image.Resampling.BILINEAR, reducing_gap=None)
    room = [CANVAS[axis] - inner[axis] for axis in (0, 1)]
    top, left = (int(generator.integers(min(0, free), max(0, free) + 1)) for free in room)
    ratios, shifts = 2 * (inner[1] / wide, inner[0] / high), 2 * (left, top)
    boxes = [tuple(v * r + s for v, r, s in zip(box, ratios, shifts)) for _, box in words]
    word_kinds = kinds_by_line(words)
    letters: list[str] = []
    spots, word, kind, height = [], [], [], []
    for index in generator.permutation(len(words))[:MOST_WORDS]:
        text, (x0, y0, x1, y1) = words[index][0], boxes[index]
        whole = x0 >= 0 and y0 >= 0 and x1 <= CANVAS[1] and y1 <= CANVAS[0]
        if not whole or y1 - y0 < SMALLEST or not plain(text):
            continue
        edge = _MARGIN * (y1 - y0)
        down, across = _spots_within(y0 + edge, y1 - edge), _spots_within(x0, x1)
        for _ in range(SPOTS_PER_WORD):
            spots.append((generator.integers(down.start, down.stop), generator.integers(across.start, across.stop)))
            word.append(len(letters))
            kind.append(word_kinds[index])
            height.append(np.log(y1 - y0))
        letters.append(text)
    return SpotterExample(
        torch.from_numpy(_on_canvas(np.asarray(resized), top, left)),
        torch.tensor(np.array(spots, np.int64).reshape(-1, 2)),
        torch.tensor(word, dtype=torch.int64),
        letter_codes(letters).to(torch.int8),
        torch.tensor(np.array(kind, np.float32).reshape(-1, len(KINDS))),
        torch.tensor(height, dtype=torch.float32),
        torch.from_numpy(_text_map(boxes)),
    )


def _text_map(boxes: Sequence[tuple[float, ...]]) -> NDArray[np.uint8]:
    """(h, w): 1 at the spots in some word's box. Every word is text, also one without targets."""
    text = np.zeros((CANVAS[0] // SPOT, CANVAS[1] // SPOT), np.uint8)
    for x0, y0, x1, y1 in boxes:
        left, top, right, bottom = max(x0, 0.0), max(y0, 0.0), min(x1, CANVAS[1]), min(y1, CANVAS[0])
        if left < right and top < bottom and y1 - y0 >= SMALLEST:
            text[_spots_within(top, bottom), _spots_within(left, right)] = 1
    return text


def kinds_by_line(words: Words) -> NDArray[np.float32]:
    """(N, len(KINDS)): neighbouring words of a line are classified together, since a date may be several words."""
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
    return shared > 0.5 * height and -0.5 * height < second[0] - first[2] < _WORD_GAP * height


def _on_canvas(image: NDArray[np.uint8], top: int, left: int) -> NDArray[np.uint8]:
    """The image cropped to the canvas, surrounded by the median colour of its border."""
    border = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
    canvas = np.full(CANVAS, np.median(border), np.uint8)
    y, x = max(0, top), max(0, left)
    part = image[y - top : y - top + CANVAS[0] - y, x - left : x - left + CANVAS[1] - x]
    canvas[y : y + part.shape[0], x : x + part.shape[1]] = part
    return canvas


def _spots_within(low: float, high: float) -> slice:
    """The spots whose centres lie between; the nearest one if there is none."""
    first, last = int(np.ceil(low / SPOT - 0.5)), int(np.floor(high / SPOT - 0.5))
    if last < first:
        first = last = int((low + high) / 2 / SPOT)
    return slice(max(0, first), max(0, first, last) + 1)


def collate(examples: Sequence[SpotterExample]) -> SpotterExample:
    """Several pages as one batch; words are numbered through."""
    first = np.cumsum([0, *(len(one.letters) for one in examples)])
    return SpotterExample(
        torch.stack([one.image for one in examples])[:, None],
        torch.cat([functional.pad(one.spots, (1, 0), value=page) for page, one in enumerate(examples)]),
        torch.cat([one.word + int(start) for one, start in zip(examples, first)]),
        torch.cat([one.letters for one in examples]),
        torch.cat([one.kinds for one in examples]),
        torch.cat([one.height for one in examples]),
        torch.stack([one.text for one in examples]),
    )
