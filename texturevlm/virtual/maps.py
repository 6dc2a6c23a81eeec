"""Maps and aerial images in any format of GDAL, with their overviews (rasterio, extra `maps`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from texturevlm.virtual.source import PageKey, StoredLevel, StoredPage, as_colours


class MapSource:
    """A raster. GDAL does not tell compressed bytes, so bytes are those of decoded texels.

    The first three bands are red, green and blue; one or two bands are grey.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name, self.opened_with = os.fspath(path), 0
        try:
            import rasterio
        except ImportError:
            raise ImportError("Texture.open: maps need the extra maps: pip install 'texturevlm[maps]'") from None
        with open(path, "rb"):  # for the system's own error
            pass
        try:
            finest = rasterio.open(self.name)
            coarser = range(len(finest.overviews(1)))
            self._levels: list[Any] = [finest, *(rasterio.open(self.name, overview_level=level) for level in coarser)]
        except rasterio.errors.RasterioError as error:
            raise ValueError(f"Texture.open: {self.name} is not a map that can be read: {error}") from error
        if finest.dtypes[0] not in ("uint8", "uint16"):
            raise ValueError(f"Texture.open: {self.name} must have bands of 8 or 16 bits, got {finest.dtypes[0]}")
        self.levels = tuple(StoredLevel((one.height, one.width), one.block_shapes[0]) for one in self._levels)
        self._bands = [1, 2, 3] if finest.count >= 3 else [1]
        self.total_bytes = sum(3 * one.height * one.width for one in self._levels)

    def read_pages(self, keys: Sequence[PageKey]) -> list[StoredPage]:
        """As in PageSource; not from several threads at once."""
        return [self._read(key) for key in keys]

    def _read(self, key: PageKey) -> StoredPage:
        from rasterio.errors import RasterioError
        from rasterio.windows import Window

        (height, width), (tall, wide) = self.levels[key.level]
        top, left = key.row * tall, key.column * wide
        rows, columns = min(tall, height - top), min(wide, width - left)
        try:
            bands = self._levels[key.level].read(self._bands, window=Window(left, top, columns, rows))
        except RasterioError as error:
            return StoredPage(None, 0, str(error))
        return StoredPage(as_colours(bands.transpose(1, 2, 0)), 3 * rows * columns)
