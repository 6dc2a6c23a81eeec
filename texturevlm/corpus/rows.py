"""A row of a corpus, the same in every format."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
FOOTPRINT = 7  # numbers: centre, ddx and ddy, x then y each, in pixels of the image; score
DTYPES = {"patches": "uint8", "features": "float16", "codes": "uint16", "allocations": "", "thumbnails": "uint8"}


@dataclass(frozen=True, eq=False)
class Row:
    """What was chosen of one image.

    key:        of the image in its source
    digest:     BLAKE2b of its file
    size:       (height, width)
    footprints: (n, 7) float32, see FOOTPRINT
    payload:    patches (n, 3, P, P) uint8; features (n, 1 + layers of DeepStack, D) float16; codes (n, groups, stages)
                uint16; thumbnails: the bytes of a JPEG (m,) uint8; allocations: nothing (0,)
    more:       other fields of the source
    """

    key: str
    digest: str
    size: tuple[int, int]
    question: str
    footprints: Array
    payload: Array
    more: dict[str, Any] = field(default_factory=dict)
