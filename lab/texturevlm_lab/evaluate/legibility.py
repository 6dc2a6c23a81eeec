"""Legibility: how much of an answer an OCR engine still reads from what the tokens deliver.

For each of up to three boxes of the answer: crop it from the delivered picture, let the engine read the crop as one
line, and compare letters and digits with the answer. It needs no language model.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from texturevlm.rebuilding import PixelBox, pixel_box
from texturevlm.text.edits import similarity

MOST_BOXES = 3  # of an answer that are read


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
