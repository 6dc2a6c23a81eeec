"""The share of content that stays legible at a coarser scale: the one curve that every allocator uses.

Text of known height is lost more steeply: with 7.3 for Tesseract and 6.7 for RapidOCR (results/readable-height.md). But
an allocator only has an estimate of the legible scale, and with 7 it spends tokens worse than with 5.5, on train pages
(docs/removed.md).
"""

from typing import Any, TypeVar

import numpy as np
from torch import Tensor

STEEPNESS = 5.5
UNIT = 1 << 30  # the value of a whole image, of which a cell's is a whole number
Map = TypeVar("Map", Tensor, np.ndarray)


def legibility(legible_scale: Map, scale: Any) -> Map:
    """The share of content that is legible, from 1 to 0, when a sample is `scale` pixels wide.

    legible_scale: the sample width in pixels at which half of the content is legible, of any shape
    scale:         a number, or a shape that broadcasts with it
    """
    share: Map = 1 / (1 + (scale / legible_scale) ** STEEPNESS)
    return share
