"""What stores the pages of a large image: the protocol that files, slides, maps and arrays share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np


class PageKey(NamedTuple):
    """One page: its level, 0 is the finest, and its row and column among the pages of that level."""

    level: int
    row: int
    column: int


class StoredLevel(NamedTuple):
    """A level as it is stored: its size and the size of its pages, both (height, width) in texels."""

    size: tuple[int, int]
    page: tuple[int, int]

    @property
    def pages(self) -> tuple[int, int]:
        """Rows and columns of pages."""
        return -(-self.size[0] // self.page[0]), -(-self.size[1] // self.page[1])


class StoredPage(NamedTuple):
    """What came of reading a page.

    texels: (h, w, 3) uint8, as large as a page or cut at the edge of its level; None if it cannot be read
    bytes:  that were read for it
    error:  why it cannot be read
    """

    texels: np.ndarray | None
    bytes: int
    error: str = ""


class PageSource(Protocol):
    """Levels of pages that are read when they are asked for.

    name:        for messages
    levels:      finest first; each about half as large as the one before, or a quarter, or any less
    total_bytes: of all pages of all levels, in the unit of `StoredPage.bytes`
    opened_with: bytes that were read to open it
    """

    name: str
    levels: tuple[StoredLevel, ...]
    total_bytes: int
    opened_with: int

    def read_pages(self, keys: Sequence[PageKey]) -> list[StoredPage]:
        """One result per key, in order. A page that cannot be read is a result with an error, not an exception."""


def as_colours(texels: np.ndarray) -> np.ndarray:
    """(h, w), (h, w, 1), (h, w, 3) or (h, w, 4) of uint8 or uint16 → (h, w, 3) uint8; opacity is laid over white."""
    if texels.dtype == np.uint16:
        texels = ((texels.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)
    if texels.dtype != np.uint8:
        raise ValueError(f"pages must hold 8-bit or 16-bit whole numbers, got {texels.dtype}")
    channels = texels[..., None] if texels.ndim == 2 else texels
    if channels.shape[2] in (1, 2):
        return np.ascontiguousarray(np.broadcast_to(channels[..., :1], (*channels.shape[:2], 3)))
    if channels.shape[2] == 4:
        opacity = channels[..., 3:].astype(np.uint16)
        over = (channels[..., :3] * opacity + 255 * (255 - opacity) + 127) // 255
        return over.astype(np.uint8)
    return np.ascontiguousarray(channels[..., :3])
