"""What stores the pages of a large image: the protocol, and readers of TIFF files, slides and maps.

Tiled TIFF files are read page by page by their byte ranges (tifffile and imagecodecs, extra `large`), slides of
microscopes by OpenSlide (extra `slides`), maps and aerial images by GDAL with their overviews (rasterio, extra `maps`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from texturevlm.extras import extra
from texturevlm.virtual.ranges import Ranges, open_ranges

SLIDE_PAGE = 256  # OpenSlide reads any rectangle, and keeps a cache of the vendor's own tiles


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


class TiffSource:
    """A TIFF file whose levels are tiled. Only its header is read when it is opened."""

    def __init__(self, path: str | os.PathLike[str], *, ranges: Ranges | None = None) -> None:
        """ranges: the same file, opened"""
        self.name = os.fspath(path)
        # tifffile imports imagecodecs where it is needed.
        tifffile = extra("Texture.open: needs", "large", "imagecodecs", "tifffile")
        self._ranges = ranges or open_ranges(self.name)
        try:
            tiff = tifffile.TiffFile(self._ranges.file)
            self._levels = [level.keyframe for level in tiff.series[0].levels]
            self.levels = tuple(self._stored(level) for level in self._levels)
            ends = [(level.dataoffsets, level.databytecounts) for level in self._levels]
            more = self._next_image(tiff)
        except Exception as error:  # tifffile raises anything for damaged files
            self._ranges.file.close()
            if isinstance(error, ValueError) and str(error).startswith("Texture.open"):
                raise
            raise ValueError(f"Texture.open: {self.name} is not a TIFF file that can be read: {error}") from error
        self.opened_with, self.total_bytes = self._ranges.count, self._ranges.size
        last = max(offset + count for offsets, counts in ends for offset, count in zip(offsets, counts))
        last = max(last, more)
        if last > self.total_bytes:
            self._ranges.file.close()
            raise ValueError(f"Texture.open: {self.name} is cut: it reaches to byte {last}, of {self.total_bytes}")

    def _next_image(self, tiff: Any) -> int:
        """Where the chain of images goes on behind the last one that tifffile found; 0 if it ends there."""
        at, layout = tiff.pages.next_page_offset, tiff.tiff
        (found,) = self._ranges.read([(at or 0, layout.offsetsize)])
        if isinstance(found, Exception):
            raise found
        # tifffile leaves out, without an error, images whose header lies beyond the end of the file.
        return int.from_bytes(found, "little" if layout.byteorder == "<" else "big") if at else 0

    def _stored(self, level: Any) -> StoredLevel:
        """The size and the pages of a level, if they can be read."""
        height, width = level.imagelength, level.imagewidth
        if not level.is_tiled or len(level.shape) not in (2, 3) or level.axes not in ("YX", "YXS"):
            wanted = f"must have tiles of grey or colour, got {level.axes} {level.shape} in "
            wanted += "tiles" if level.is_tiled else "strips"
            raise ValueError(f"Texture.open: {self.name} {wanted}; make a pyramid: texturevlm pyramid {self.name}")
        return StoredLevel((height, width), (level.tilelength, level.tilewidth))

    def read_pages(self, keys: Sequence[PageKey]) -> list[StoredPage]:
        """As in PageSource; safe in several threads."""
        places = [self._place(key) for key in keys]
        found = self._ranges.read([(level.dataoffsets[index], level.databytecounts[index]) for level, index in places])
        return [_decoded(*place, data) for place, data in zip(places, found)]

    def _place(self, key: PageKey) -> tuple[Any, int]:
        """The level of a page in tifffile's terms, and its index there."""
        return self._levels[key.level], key.row * self.levels[key.level].pages[1] + key.column


def _decoded(level: Any, index: int, data: bytes | Exception) -> StoredPage:
    count = level.databytecounts[index]
    try:
        if isinstance(data, Exception):
            raise data
        if len(data) != count:
            return StoredPage(None, len(data), f"{count} bytes were wanted, and {len(data)} came")
        if count == 0:
            return StoredPage(None, 0, "it has no bytes")
        texels, _, _ = level.decode(data, index, jpegtables=level.jpegtables)
        return StoredPage(as_colours(texels[0]), count)
    except Exception as error:  # codecs raise anything for damaged data, and so do protocols
        return StoredPage(None, count, " ".join(str(error).split()) or type(error).__name__)


def is_large_tiff(ranges: Ranges, most: int, most_flat: int) -> bool:
    """Whether a file is a tiled TIFF of more than `most` pixels, or of more than `most_flat` if it has one level."""
    try:
        from tifffile import TiffFile
    except ImportError:
        return False  # Pillow reads it, or says that it is too large
    try:
        tiff = TiffFile(ranges.file)
        first = tiff.pages.first
        pixels = first.imagewidth * first.imagelength
        return bool(first.is_tiled and pixels > (most if len(tiff.series[0].levels) > 1 else most_flat))
    except Exception:  # tifffile raises anything for what is no TIFF or damaged, and Pillow says what is wrong
        return False
    finally:
        ranges.file.seek(0)


class _DecodedPages:
    """A source whose library tells no compressed bytes, so bytes are those of decoded texels.

    levels: see PageSource
    """

    opened_with = 0

    def __init__(self, path: str | os.PathLike[str], levels: Sequence[StoredLevel]) -> None:
        self.name, self.levels = os.fspath(path), tuple(levels)
        self.total_bytes = sum(3 * height * width for (height, width), _ in levels)

    def read_pages(self, keys: Sequence[PageKey]) -> list[StoredPage]:
        """As in PageSource; whether several threads may read at once is the library's matter."""
        return [self._read(key) for key in keys]

    def _read(self, key: PageKey) -> StoredPage:
        (height, width), (tall, wide) = self.levels[key.level]
        top, left = key.row * tall, key.column * wide
        box = top, left, min(tall, height - top), min(wide, width - left)
        try:
            texels = as_colours(self._texels(key.level, *box))
        except Exception as error:  # libraries raise errors of their own, OpenSlide the first one again and again
            return StoredPage(None, 0, str(error))
        return StoredPage(texels, 3 * box[2] * box[3])

    def _texels(self, level: int, top: int, left: int, rows: int, columns: int) -> np.ndarray:
        raise NotImplementedError


class SlideSource(_DecodedPages):
    """A slide; OpenSlide has locks of its own."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        openslide = extra("Texture.open: slides need", "slides", "openslide")
        try:
            self._slide: Any = openslide.OpenSlide(os.fspath(path))
        except openslide.OpenSlideError as error:  # which is raised for a file that may not be read, too
            with open(path, "rb"):
                name = os.fspath(path)
                raise ValueError(f"Texture.open: {name} is not a slide that can be read: {error}") from error
        page = SLIDE_PAGE, SLIDE_PAGE
        super().__init__(path, [StoredLevel((tall, wide), page) for wide, tall in self._slide.level_dimensions])

    def _texels(self, level: int, top: int, left: int, rows: int, columns: int) -> np.ndarray:
        down = self._slide.level_downsamples[level]
        image = self._slide.read_region((round(left * down), round(top * down)), level, (columns, rows))
        return np.asarray(image)


class MapSource(_DecodedPages):
    """A raster, not for several threads at once.

    The first three bands are red, green and blue; one or two bands are grey.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        name = os.fspath(path)
        rasterio = extra("Texture.open: maps need", "maps", "rasterio")
        with open(path, "rb"):  # for the system's own error
            pass
        try:
            finest = rasterio.open(name)
            coarser = range(len(finest.overviews(1)))
            self._files: list[Any] = [finest, *(rasterio.open(name, overview_level=level) for level in coarser)]
        except rasterio.errors.RasterioError as error:
            raise ValueError(f"Texture.open: {name} is not a map that can be read: {error}") from error
        if finest.dtypes[0] not in ("uint8", "uint16"):
            raise ValueError(f"Texture.open: {name} must have bands of 8 or 16 bits, got {finest.dtypes[0]}")
        self._bands = [1, 2, 3] if finest.count >= 3 else [1]
        super().__init__(path, [StoredLevel((file.height, file.width), file.block_shapes[0]) for file in self._files])

    def _texels(self, level: int, top: int, left: int, rows: int, columns: int) -> np.ndarray:
        from rasterio.windows import Window

        bands = self._files[level].read(self._bands, window=Window(left, top, columns, rows))
        texels: np.ndarray = bands.transpose(1, 2, 0)
        return texels
