"""The words of a page and their boxes, read by RapidOCR once for any number of questions.

RapidOCR finds lines and reads each of them. Its word boxes are rough: it splits words ("m uch"), joins them
("DATE:July"), and miscounts where a line came out empty. So the line's text decides what its words are, and the boxes
of its characters decide where they are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
from PIL import Image

from texturevlm.channels import load_rapidocr
from texturevlm.check import check_count, check_size
from texturevlm.image import to_tensor
from texturevlm.text import is_ideograph

MOST_PIXELS = 3_100_000  # larger images are shrunk to it before they are read; a 200-dpi page has 3.7 million
MOST_PIXELS_ALONG = 8000  # pixels
SHORTEST_SIDE = 32  # pixels, which the detector needs: a smaller side is padded
# Heights per width: a taller strip is padded, since the detector enlarges it to a width of 736 pixels. RapidOCR pads
# wide strips itself.
TALLEST = 16
_THREADS = 2
WIDE_GAP = 0.8  # of the line's height: pieces that far apart are two words, even without a space
BREAKS = ":;,)]"  # a letter right after one of these begins a new word
WordBox = tuple[float, float, float, float]
Corners = Sequence[Sequence[float]]  # four
Piece = tuple[str, float, Corners]  # text, confidence, corners


@dataclass(frozen=True)
class Word:
    """text; box (x0, y0, x1, y1) in level-0 pixels; line, its number in reading order; confidence, 0 to 1."""

    text: str
    box: WordBox
    line: int
    confidence: float


@dataclass(frozen=True)
class Page:
    """The words on an image of `size` (height, width), line by line in reading order."""

    words: tuple[Word, ...]
    size: tuple[int, int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", tuple(self.words))
        object.__setattr__(self, "size", check_size("Page", self.size))
        for word in self.words:
            x0, y0, x1, y1 = word.box
            if not (math.isfinite(x1 - x0 + y1 - y0) and x0 <= x1 and y0 <= y1):
                raise ValueError(f"Page: the box of {word.text!r} must be x0, y0, x1, y1, finite, got {word.box}")

    def scaled(self, size: tuple[int, int]) -> Page:
        """The same words on the image at another size."""
        down, across = (wanted / own for wanted, own in zip(size, self.size))
        edges = [word.box for word in self.words]
        boxes = [(x0 * across, y0 * down, x1 * across, y1 * down) for x0, y0, x1, y1 in edges]
        return Page(tuple(replace(word, box=box) for word, box in zip(self.words, boxes)), size)

    def to_json(self) -> str:
        """One object: size and words as [text, [x0, y0, x1, y1], line, confidence]; read back by `from_json`."""
        words = [
            [word.text, [round(edge, 1) for edge in word.box], word.line, round(word.confidence, 3)]
            for word in self.words
        ]
        return json.dumps({"size": self.size, "words": words}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Page:
        """The inverse of `to_json`; anything else is a ValueError."""
        try:
            record = json.loads(text)
            words = tuple(_word(*row) for row in record["words"])
            return cls(words, record["size"])
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"Page.from_json: text must be what Page.to_json writes: {error}") from None


def _word(text: str, box: Sequence[float], line: int, confidence: float) -> Word:
    x0, y0, x1, y1 = (float(edge) for edge in box)
    if not isinstance(text, str) or not math.isfinite(confidence):
        raise ValueError(f"a word must be text, box, line and confidence, got {text!r}, {confidence!r}")
    return Word(text, (x0, y0, x1, y1), check_count("Page.from_json", "line", line, 0), float(confidence))


def read_page(image: Any, *, most_pixels: int = MOST_PIXELS) -> Page:
    """Read the words of one image: a path, a PIL image, an array or a tensor (extra `ocr`; runs on the CPU).

    An image of more than `most_pixels`, or with a side of more than MOST_PIXELS_ALONG, is shrunk first: fewer pixels
    are read faster and less well. Boxes are in pixels of the original image.
    """
    check_count("read_page", "most_pixels", most_pixels, 1)
    pixels = to_tensor(image)
    if pixels.shape[0] != 1 or pixels.shape[1] not in (1, 3):
        raise ValueError(f"read_page: image must be one image, grey or colour, got {tuple(pixels.shape)}")
    height, width = pixels.shape[-2:]
    engine = _engine()
    values = (pixels[0].detach().float().clamp(0, 1) * 255).round().byte().cpu()
    small = values.expand(3, -1, -1).permute(1, 2, 0).numpy()
    shrink = min(1.0, math.sqrt(most_pixels / (height * width)), MOST_PIXELS_ALONG / max(height, width))
    if shrink < 1.0:
        size = (max(1, round(width * shrink)), max(1, round(height * shrink)))
        small = np.asarray(Image.fromarray(small).resize(size, Image.Resampling.BOX))
    below = max(0, SHORTEST_SIDE - small.shape[0])
    beside = max(0, SHORTEST_SIDE - small.shape[1], small.shape[0] // TALLEST - small.shape[1])
    padded = np.pad(small, ((0, below), (0, beside), (0, 0)), mode="edge")
    found = engine(np.ascontiguousarray(padded[..., ::-1]), return_word_box=True, use_cls=False)
    if found.boxes is None or found.txts is None:
        return Page((), (height, width))
    lines = zip(found.boxes, found.txts, found.scores, strict=True)
    pieces = [line for line in (found.word_results or ()) if all(len(piece) == 3 for piece in line)]
    scale = (width / small.shape[1], height / small.shape[0])
    return Page(tuple(words_of_lines(lines, pieces, scale=scale, size=(height, width))), (height, width))


@lru_cache(maxsize=1)
def _engine() -> Any:
    runtime = "EngineConfig.onnxruntime"
    limits = {f"{runtime}.intra_op_num_threads": _THREADS, f"{runtime}.inter_op_num_threads": 1}
    return load_rapidocr("read_page", **{"Global.max_side_len": MOST_PIXELS_ALONG, **limits})


def words_of_lines(
    lines: Iterable[tuple[Corners, str, float]],
    pieces: Sequence[Sequence[Piece]],
    *,
    scale: tuple[float, float] = (1.0, 1.0),
    size: tuple[int, int],
) -> Iterable[Word]:
    """Words from an engine's lines (corners, text, confidence) and its pieces of lines, in the same order or fewer.

    An engine drops the pieces of a line that it could not locate, so a line takes the next pieces if they spell it; a
    line without pieces is split in proportion to its characters.
    """
    upcoming, number = 0, 0
    height, width = size
    for corners, text, confidence in lines:
        own: Sequence[Piece] = [(text, confidence, corners)]
        if upcoming < len(pieces) and _joined(*(piece[0] for piece in pieces[upcoming])) == _joined(text):
            own, upcoming = pieces[upcoming], upcoming + 1
        count = 0
        for word, box, sure in split_line(text, own, corners):
            x0, x1 = (min(max(x * scale[0], 0.0), float(width)) for x in (box[0], box[2]))
            y0, y1 = (min(max(y * scale[1], 0.0), float(height)) for y in (box[1], box[3]))
            if x1 > x0 and y1 > y0:
                yield Word(word, (x0, y0, x1, y1), number, float(sure))
                count += 1
        number += count > 0


def _joined(*texts: str) -> str:
    """Join texts and leave out all spaces."""
    return "".join("".join(texts).split())


def split_line(text: str, pieces: Sequence[Piece], corners: Corners) -> Iterable[tuple[str, WordBox, float]]:
    """The words of one line, each with its box and confidence: split at spaces, at wide gaps and after punctuation."""
    across, down = np.ptp(np.asarray(corners, dtype=float), axis=0)
    along = 1 if down > 1.5 * across else 0  # the recogniser rotates such a line: its letters run downwards
    boxes, sure = _characters(pieces, along)
    letters = _joined(text)
    spaced = set(accumulate(map(len, text.split())))
    begin = 0
    for end in range(1, len(letters) + 1):
        gap = boxes[end, along] - boxes[end - 1, along + 2] if end < len(letters) else 0.0
        if end in spaced or abs(gap) > WIDE_GAP * (across if along else down) or _breaks(letters, end):
            span = boxes[begin:end]
            low, high = span[:, :2].min(0), span[:, 2:].max(0)
            yield letters[begin:end], (low[0], low[1], high[0], high[1]), float(sure[begin:end].mean())
            begin = end


def _characters(pieces: Sequence[Piece], along: int) -> tuple[np.ndarray, np.ndarray]:
    """The box (N, 4) and the confidence (N,) of every character but spaces: each piece is split evenly."""
    boxes, sure = [np.zeros((0, 4))], [np.zeros(0)]
    for text, confidence, corners in pieces:
        frame = np.asarray(corners, dtype=float)
        low, high = frame.min(0), frame.max(0)
        places = np.array([index for index, letter in enumerate(text) if not letter.isspace()], dtype=int)
        step = (high[along] - low[along]) / max(len(text), 1)
        box = np.tile([*low, *high], (len(places), 1))
        box[:, along], box[:, along + 2] = low[along] + places * step, low[along] + (places + 1) * step
        boxes.append(box)
        sure.append(np.full(len(places), float(confidence)))
    return np.concatenate(boxes), np.concatenate(sure)


def _breaks(letters: str, end: int) -> bool:
    """Between letters[end - 1] and letters[end]: after punctuation, or around a character that is a word by itself."""
    if end >= len(letters):
        return False
    before, after = letters[end - 1], letters[end]
    glued = letters[max(0, end - 3) : end + 2]  # as in "otherInvestment": three small letters, a capital, a small one
    return (
        is_ideograph(before)
        or is_ideograph(after)
        or (before in BREAKS and after.isalpha() and end >= 2 and letters[end - 2].isalnum())
        or (after in "([" and before.isalpha() and end >= 3)
        or (len(glued) == 5 and glued[:3].isalpha() and glued[:3].islower() and after.isupper() and glued[4].islower())
    )
