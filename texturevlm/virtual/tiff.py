"""Tiled TIFF files, pages read one by one by their byte ranges (tifffile and imagecodecs, extra `large`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from texturevlm.virtual.ranges import Ranges, open_ranges
from texturevlm.virtual.source import PageKey, StoredLevel, StoredPage, as_colours


class TiffSource:
    """A TIFF file whose levels are tiled. Only its header is read when it is opened."""

    def __init__(self, path: str | os.PathLike[str], *, ranges: Ranges | None = None) -> None:
        """ranges: the same file, opened"""
        self.name = os.fspath(path)
        tifffile = _tifffile()
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


def _tifffile() -> Any:
    try:
        import imagecodecs  # noqa: F401  # tifffile imports it where it is needed
        import tifffile
    except ImportError:
        raise ImportError("Texture.open: needs the extra large: pip install 'texturevlm[large]'") from None
    return tifffile


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
