"""The words of a page and their boxes, read by RapidOCR once for any number of questions.

RapidOCR finds lines and reads each of them. Its word boxes are rough: it splits words ("m uch"), joins them
("DATE:July"), and miscounts where a line came out empty. So the line's text decides what its words are, and the boxes
of its characters decide where they are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from texturevlm.channels.pretrained import load_rapidocr
from texturevlm.check import check_count, check_size
from texturevlm.image import to_tensor
from texturevlm.text.strings import is_ideograph

MOST_PIXELS = 3_100_000  # larger images are shrunk to it before they are read; a 200-dpi page has 3.7 million
MOST_PIXELS_ALONG = 8000  # pixels
SHORTEST_SIDE = 32  # pixels, which the detector needs: a smaller side is padded
_THREADS = 2
WIDE_GAP = 0.8  # of the line's height: pieces that far apart are two words, even without a space
BREAKS = ":;,)]"  # a letter right after one of these begins a new word
WordBox = tuple[float, float, float, float]
Piece = tuple[str, float, Sequence[Sequence[float]]]  # text, confidence, four corners


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


def read_page(image: Any, *, threads: int = _THREADS, most_pixels: int = MOST_PIXELS) -> Page:
    """Read the words of one image: a path, a PIL image, an array or a tensor (extra `ocr`; runs on the CPU).

    An image of more than `most_pixels`, or with a side of more than MOST_PIXELS_ALONG, is shrunk first: fewer pixels
    are read faster and less well. Boxes are in pixels of the original image.
    """
    check_count("read_page", "most_pixels", most_pixels, 1)
    pixels = to_tensor(image)
    if pixels.shape[0] != 1 or pixels.shape[1] not in (1, 3):
        raise ValueError(f"read_page: image must be one image, grey or colour, got {tuple(pixels.shape)}")
    height, width = pixels.shape[-2:]
    engine = _engine(check_count("read_page", "threads", threads, 1))
    array = (pixels[0].detach().float().clamp(0, 1) * 255).round().byte().expand(3, -1, -1).cpu().permute(1, 2, 0)
    small = _within_limits(array.numpy(), most_pixels)
    scale = (width / small.shape[1], height / small.shape[0])
    tall, wide = (max(0, SHORTEST_SIDE - side) for side in small.shape[:2])
    padded = np.pad(small, ((0, tall), (0, wide), (0, 0)), mode="edge")
    found = engine(np.ascontiguousarray(padded[..., ::-1]), return_word_box=True, use_cls=False)
    return Page(tuple(_words_of(found, scale, (height, width))), (height, width))


@lru_cache(maxsize=2)
def _engine(threads: int) -> Any:
    runtime = "EngineConfig.onnxruntime"
    limits = {f"{runtime}.intra_op_num_threads": threads, f"{runtime}.inter_op_num_threads": 1}
    return load_rapidocr("read_page", **{"Global.max_side_len": MOST_PIXELS_ALONG, **limits})


def _within_limits(array: np.ndarray, most_pixels: int) -> np.ndarray:
    """(H, W, 3) bytes, shrunk to `most_pixels` and MOST_PIXELS_ALONG where it is larger."""
    height, width = array.shape[:2]
    scale = min(1.0, math.sqrt(most_pixels / (height * width)), MOST_PIXELS_ALONG / max(height, width))
    if scale == 1.0:
        return array
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return np.asarray(Image.fromarray(array).resize(size, Image.Resampling.BOX))


def _words_of(found: Any, scale: tuple[float, float], size: tuple[int, int]) -> Iterable[Word]:
    if found.boxes is None or found.txts is None:
        return
    pieces = [line for line in (found.word_results or ()) if all(len(piece) == 3 for piece in line)]
    lines = zip(found.boxes, found.txts, found.scores, strict=True)
    yield from words_of_lines(lines, pieces, scale=scale, size=size)


def words_of_lines(
    lines: Iterable[tuple[Sequence[Sequence[float]], str, float]],
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
        if upcoming < len(pieces) and _letters(pieces[upcoming]) == "".join(text.split()):
            own, upcoming = pieces[upcoming], upcoming + 1
        count = 0
        for word, box, sure in split_line(text, own, corners):
            x0, x1 = (min(max(x * scale[0], 0.0), float(width)) for x in (box[0], box[2]))
            y0, y1 = (min(max(y * scale[1], 0.0), float(height)) for y in (box[1], box[3]))
            if x1 > x0 and y1 > y0:
                yield Word(word, (x0, y0, x1, y1), number, float(sure))
                count += 1
        number += count > 0


def _letters(pieces: Sequence[Piece]) -> str:
    return "".join("".join(piece[0].split()) for piece in pieces)


def split_line(
    text: str, pieces: Sequence[Piece], corners: Sequence[Sequence[float]]
) -> Iterable[tuple[str, WordBox, float]]:
    """The words of one line, each with its box and confidence: split at spaces, at wide gaps and after punctuation."""
    frame = np.asarray(corners, dtype=float)
    across, down = np.ptp(frame, axis=0)
    along = 1 if down > 1.5 * across else 0  # the recogniser rotates such a line: its letters run downwards
    thickness = across if along else down
    boxes, sure = _characters(pieces, along)
    begin, position = 0, 0
    letters = "".join(text.split())
    spaced = set()
    for part in text.split():
        position += len(part)
        spaced.add(position)
    for end in range(1, len(letters) + 1):
        gap = boxes[end, along] - boxes[end - 1, along + 2] if end < len(letters) else 0.0
        if end in spaced or abs(gap) > WIDE_GAP * thickness or _breaks(letters, end):
            span = boxes[begin:end]
            low, high = span[:, :2].min(0), span[:, 2:].max(0)
            yield letters[begin:end], (low[0], low[1], high[0], high[1]), float(sure[begin:end].mean())
            begin = end


def _characters(pieces: Sequence[Piece], along: int) -> tuple[np.ndarray, np.ndarray]:
    """The box (N, 4) and the confidence (N,) of every character but spaces: each piece is split evenly."""
    boxes, sure = [], []
    for text, confidence, corners in pieces:
        letters = "".join(text.split())
        places = [index for index, letter in enumerate(text) if not letter.isspace()]
        frame = np.asarray(corners, dtype=float)
        low, high = frame.min(0), frame.max(0)
        step = (high[along] - low[along]) / max(len(text), 1)
        for place in places:
            box = [low[0], low[1], high[0], high[1]]
            box[along], box[along + 2] = low[along] + place * step, low[along] + (place + 1) * step
            boxes.append(box)
        sure += [float(confidence)] * len(letters)
    return np.array(boxes).reshape(-1, 4), np.array(sure)


def _breaks(letters: str, end: int) -> bool:
    """Between letters[end - 1] and letters[end]: after punctuation, or around a character that is a word by itself."""
    if end >= len(letters):
        return False
    before, after = letters[end - 1], letters[end]
    if is_ideograph(before) or is_ideograph(after):
        return True
    if before in BREAKS and after.isalpha() and end >= 2 and letters[end - 2].isalnum():
        return True
    if after in "([" and before.isalpha() and end >= 3:
        return True
    glued = letters[max(0, end - 3) : end + 2]  # as in "otherInvestment": three small letters, a capital, a small one
    return len(glued) == 5 and glued[:3].islower() and glued[:3].isalpha() and after.isupper() and glued[4].islower()


def load_page(image: Path, cache: Path | None) -> Page:
    """The page of an image file: from the folder `cache` if it was read before, else read and stored there."""
    if cache is None:
        return read_page(image)
    kept = cache / f"{image.name}.json"
    if kept.is_file():
        return Page.from_json(kept.read_text(encoding="utf-8"))
    page = read_page(image)
    cache.mkdir(parents=True, exist_ok=True)
    kept.write_text(page.to_json(), encoding="utf-8")
    return page
