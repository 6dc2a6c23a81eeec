"""Legibility: how much of an answer can still be read from what the tokens deliver.

For each of up to three places where the answer stands: crop it from the picture that the tokens deliver, let a reader
read the crop as one line, and compare letters and digits with the answer. It needs no language model, and it is what
any reader, model or person, has to start from.
"""

import math
from collections.abc import Sequence

import numpy as np
from torch import Tensor

PLACES = 3  # at most
LEAST = 0.5  # a similarity below this counts as nothing read

Box = tuple[int, int, int, int]


def places(boxes: Sequence[Sequence[float]], size: tuple[int, int]) -> list[Box]:
    """The parts of an image to read: up to three boxes, padded by half their height above and below and by their
    height left and right, cut off at the image's edge; xyxy in whole pixels, none empty.
    """
    height, width = size
    found = []
    for x0, y0, x1, y1 in boxes[:PLACES]:
        tall = y1 - y0
        left, right = _span(x0 - tall, x1 + tall, width)
        top, bottom = _span(y0 - tall / 2, y1 + tall / 2, height)
        found.append((left, top, right, bottom))
    return found


def _span(low: float, high: float, extent: int) -> tuple[int, int]:
    first = min(max(math.floor(low), 0), extent - 1)
    return first, min(max(math.ceil(high), first + 1), extent)


def as_bytes(picture: Tensor) -> np.ndarray:
    """(C, H, W), 0 to 1 → what a reader takes: (H, W) if it is grey, else (H, W, 3)."""
    colour = picture[:3] if picture.shape[0] >= 3 else picture[:1]
    pixels = (colour.detach().float().clamp(0, 1) * 255).round().byte().permute(1, 2, 0).cpu().numpy()
    grey = pixels.shape[2] == 1 or bool((pixels == pixels[..., :1]).all())
    return np.ascontiguousarray(pixels[..., 0] if grey else pixels)


def score(texts: Sequence[str], answers: Sequence[str]) -> float:
    """The best over places and answers: 1 if the answer is contained in what was read, else how similar they are."""
    return max((similarity(text, answer) for text in texts for answer in answers), default=0.0)


def similarity(text: str, answer: str) -> float:
    """Letters and digits only: 1 if contained, else normalised Levenshtein similarity, or 0 if that is under 0.5."""
    read, wanted = plain(text), plain(answer)
    if not wanted:  # an answer such as "?" cannot be judged by letters and digits
        return 0.0
    if wanted in read:
        return 1.0
    close = 1 - distance(read, wanted) / max(len(read), len(wanted))
    return close if close >= LEAST else 0.0


def plain(text: str) -> str:
    """Letters and digits, lower case."""
    return "".join(letter for letter in text.lower() if letter.isalnum())


def distance(first: str, second: str) -> int:
    """Levenshtein: the fewest letters to put in, take out or exchange."""
    row = list(range(len(second) + 1))
    for number, letter in enumerate(first, 1):
        diagonal, row[0] = row[0], number
        for column, other in enumerate(second, 1):
            diagonal, row[column] = row[column], min(diagonal + (letter != other), row[column] + 1, row[column - 1] + 1)
    return row[-1]
