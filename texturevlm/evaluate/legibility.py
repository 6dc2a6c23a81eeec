"""Legibility: how much of an answer an OCR engine still reads from what the tokens deliver.

For each of up to three boxes of the answer: crop it from the delivered picture, let the engine read the crop as one
line, and compare letters and digits with the answer. It needs no language model.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from texturevlm.rebuilding import PixelBox
from texturevlm.text.edits import edit_distance

MOST_BOXES = 3  # of an answer that are read
LEAST_SIMILAR = 0.5  # a similarity below this counts as nothing read


def pixel_box(box: Sequence[float], size: tuple[int, int]) -> PixelBox:
    """The whole pixels of a box (xyxy) inside an image (height, width); at least one."""
    height, width = size
    left, top = min(max(math.floor(box[0]), 0), width - 1), min(max(math.floor(box[1]), 0), height - 1)
    return left, top, min(max(math.ceil(box[2]), left + 1), width), min(max(math.ceil(box[3]), top + 1), height)


def crop_boxes(boxes: Sequence[Sequence[float]], size: tuple[int, int]) -> list[PixelBox]:
    """The parts of an image to read: the first boxes, padded by half their height above and below and by their height
    left and right, cut off at the image's edge."""
    found = []
    for x0, y0, x1, y1 in boxes[:MOST_BOXES]:
        tall = y1 - y0
        found.append(pixel_box((x0 - tall, y0 - tall / 2, x1 + tall, y1 + tall / 2), size))
    return found


def as_bytes(picture: Tensor) -> NDArray[np.uint8]:
    """(C, H, W), 0 to 1 → what an OCR engine takes: (H, W) if it is grey, else (H, W, 3)."""
    colour = picture[:3] if picture.shape[0] >= 3 else picture[:1]
    pixels = (colour.detach().float().clamp(0, 1) * 255).round().byte().permute(1, 2, 0).cpu().numpy()
    grey = pixels.shape[2] == 1 or bool((pixels == pixels[..., :1]).all())
    return np.ascontiguousarray(pixels[..., 0] if grey else pixels)


def legibility_score(texts: Sequence[str], answers: Sequence[str]) -> float:
    """The best similarity over the texts that were read and the accepted answers."""
    return max((similarity(text, answer) for text in texts for answer in answers), default=0.0)


def similarity(text: str, answer: str) -> float:
    """Letters and digits only: 1 if the answer is contained, else normalised Levenshtein similarity, 0 if under 0.5."""
    read, wanted = letters_and_digits(text), letters_and_digits(answer)
    if not wanted:  # an answer such as "?" cannot be judged by letters and digits
        return 0.0
    if wanted in read:
        return 1.0
    close = 1 - edit_distance(read, wanted) / max(len(read), len(wanted))
    return close if close >= LEAST_SIMILAR else 0.0


def letters_and_digits(text: str) -> str:
    """In lower case."""
    return "".join(letter for letter in text.lower() if letter.isalnum())
