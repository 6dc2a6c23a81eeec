"""Tiled TIFF files, pages read one by one by their byte ranges (tifffile and imagecodecs, extra `large`)."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import Any

from texturevlm.virtual.source import PageKey, StoredLevel, StoredPage, as_colours

MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # little and big endian; + is BigTIFF


class _Counted(io.FileIO):
    """A file that counts what is read of it."""

    count = 0

    def read(self, size: int | None = -1, /) -> bytes:
        found = super().read(-1 if size is None else size) or b""
        self.count += len(found)
        return found

    def readinto(self, buffer: Any, /) -> int:
        found = super().readinto(buffer) or 0
        self.count += found
        return found


class TiffSource:
    """A TIFF file whose levels are tiled. Only its header is read when it is opened."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = os.fspath(path)
        tifffile = _tifffile()
        self._file = _Counted(self.name, "rb")
        try:
            tiff = tifffile.TiffFile(self._file)
            self._levels = [level.keyframe for level in tiff.series[0].levels]
            self.levels = tuple(self._stored(level) for level in self._levels)
            ranges = [(level.dataoffsets, level.databytecounts) for level in self._levels]
            more = self._next_image(tiff)
        except Exception as error:  # tifffile raises anything for damaged files
            self._file.close()
            if isinstance(error, ValueError) and str(error).startswith("Texture.open"):
                raise
            raise ValueError(f"Texture.open: {self.name} is not a TIFF file that can be read: {error}") from error
        self.opened_with = self._file.count
        self.total_bytes = os.fstat(self._file.fileno()).st_size
        last = max(offset + count for offsets, counts in ranges for offset, count in zip(offsets, counts))
        last = max(last, more)
        if last > self.total_bytes:
            self._file.close()
            raise ValueError(f"Texture.open: {self.name} is cut: it reaches to byte {last}, of {self.total_bytes}")

    def _next_image(self, tiff: Any) -> int:
        """Where the chain of images goes on behind the last one that tifffile found; 0 if it ends there."""
        at, layout = tiff.pages.next_page_offset, tiff.tiff
        found = os.pread(self._file.fileno(), layout.offsetsize, at or 0)
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
        return [self._read(key) for key in keys]

    def _read(self, key: PageKey) -> StoredPage:
        level, (_, columns) = self._levels[key.level], self.levels[key.level].pages
        index = key.row * columns + key.column
        offset, count = level.dataoffsets[index], level.databytecounts[index]
        try:
            data = os.pread(self._file.fileno(), count, offset)  # one handle for all threads: it has no position
            if len(data) < count:
                return StoredPage(None, len(data), f"its {count} bytes end after {len(data)}")
            if count == 0:
                return StoredPage(None, 0, "it has no bytes")
            texels, _, _ = level.decode(data, index, jpegtables=level.jpegtables)
            return StoredPage(as_colours(texels[0]), count)
        except Exception as error:  # codecs raise anything for damaged data
            return StoredPage(None, count, " ".join(str(error).split()) or type(error).__name__)


def _tifffile() -> Any:
    try:
        import imagecodecs  # noqa: F401  # tifffile imports it where it is needed
        import tifffile
    except ImportError:
        raise ImportError("Texture.open: needs the extra large: pip install 'texturevlm[large]'") from None
    return tifffile


def is_tiff(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins as a TIFF file does."""
    with open(path, "rb") as file:
        return file.read(4) in MAGIC
