"""How much can still be made out of what is looked at coarsely: the one curve that all choosing goes by.

Fitted to what Tesseract reads of words that shrink (results/readable-height.md).
"""

from typing import Any, TypeVar

import numpy as np
from torch import Tensor

STEEPNESS = 5.5
Map = TypeVar("Map", Tensor, np.ndarray)


def legibility(legible_scale: Map, scale: Any) -> Map:
    """How much is made out of what is half lost at `half` when a sample is `scale` pixels wide: 1 to 0.

    half:   of any shape
    scale:  a number, or of a shape that goes with half's
    """
    return 1 / (1 + (scale / legible_scale) ** STEEPNESS)
