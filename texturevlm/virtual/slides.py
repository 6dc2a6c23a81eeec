"""Slides of microscopes, in their vendors' formats (OpenSlide, extra `slides`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from texturevlm.virtual.source import PageKey, StoredLevel, StoredPage, as_colours

PAGE = 256  # OpenSlide reads any rectangle, and keeps a cache of the vendor's own tiles


class SlideSource:
    """A slide. OpenSlide does not tell compressed bytes, so bytes are those of decoded texels."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name, self.opened_with = os.fspath(path), 0
        try:
            import openslide
        except ImportError:
            raise ImportError("Texture.open: slides need the extra slides: pip install 'texturevlm[slides]'") from None
        try:
            self._slide: Any = openslide.OpenSlide(self.name)
        except openslide.OpenSlideError as error:  # which is raised for a file that may not be read, too
            with open(path, "rb"):
                raise ValueError(f"Texture.open: {self.name} is not a slide that can be read: {error}") from error
        sizes = [(height, width) for width, height in self._slide.level_dimensions]
        self.levels = tuple(StoredLevel(size, (PAGE, PAGE)) for size in sizes)
        self.total_bytes = sum(3 * height * width for height, width in sizes)

    def read_pages(self, keys: Sequence[PageKey]) -> list[StoredPage]:
        """As in PageSource; OpenSlide has locks of its own."""
        return [self._read(key) for key in keys]

    def _read(self, key: PageKey) -> StoredPage:
        (height, width), down = self.levels[key.level].size, self._slide.level_downsamples[key.level]
        top, left = key.row * PAGE, key.column * PAGE
        size = (min(PAGE, width - left), min(PAGE, height - top))
        try:
            image = self._slide.read_region((round(left * down), round(top * down)), key.level, size)
        except Exception as error:  # after one error a slide answers every call with it
            return StoredPage(None, 0, str(error))
        return StoredPage(as_colours(np.asarray(image)), 3 * size[0] * size[1])
