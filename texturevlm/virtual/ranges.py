"""Bytes of a file by their ranges: on this machine, or at a URL that fsspec reads (http, https, s3, …)."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Sequence
from typing import Any, Protocol

from texturevlm.image import PATIENCE, SCHEMES
from texturevlm.paths import is_url

BLOCK = 1 << 16  # bytes of a request for a part of a header
Range = tuple[int, int]  # offset and count


class Ranges(Protocol):
    """A file of `size` bytes; file: to read a header from, by one thread."""

    size: int
    file: Any

    @property
    def count(self) -> int:
        """Bytes that were read through `file`."""

    def read(self, ranges: Sequence[Range]) -> list[bytes | Exception]:
        """One result per range, in order; fewer bytes where the file ends, an exception where reading failed."""


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


class LocalRanges:
    """A file on this machine."""

    def __init__(self, path: str) -> None:
        self.file = _Counted(path, "rb")
        self.size = os.fstat(self.file.fileno()).st_size

    @property
    def count(self) -> int:
        return self.file.count

    def read(self, ranges: Sequence[Range]) -> list[bytes | Exception]:
        """As in Ranges; safe in several threads."""
        return [self._read(offset, count) for offset, count in ranges]

    def _read(self, offset: int, count: int) -> bytes | Exception:
        try:
            return os.pread(self.file.fileno(), count, offset)  # one handle for all threads: it has no position
        except OSError as error:
            return error


class NoRangesError(ConnectionError):
    """A server that sends files whole or not at all. size: of the file; None if the server does not say."""

    def __init__(self, url: str, size: int | None) -> None:
        self.size = size
        wanted = "its server does not answer requests for ranges of bytes; download the file"
        super().__init__(f"Texture.open: {url:.80} cannot be read by pages: {wanted}")


class RemoteRanges:
    """A file at a URL. Ranges that are asked for together are fetched side by side, where the protocol can."""

    def __init__(self, url: str) -> None:
        from fsspec.core import url_to_fs

        url = re.sub(r"^([\w+.-]+):/+", r"\1://", url)  # a Path drops a slash
        try:
            self._fs, self._path = url_to_fs(url, **_patience(url))
            size = self._fs.size(self._path)
            self.file = self._fs.open(self._path, "rb", block_size=BLOCK, cache_type="blockcache")
        except ImportError as error:  # fsspec names the package that a protocol needs
            raise ImportError(f"Texture.open: {url:.80} cannot be read: {error}") from None
        except Exception as error:  # each protocol has errors of its own
            raise ConnectionError(f"Texture.open: {url:.80} cannot be read: {_said(error)}") from error
        try:
            self.file.seek(max(0, size - 1))
            self.file.read(1)
        except (TypeError, ValueError):  # no size, no position, or the whole file for an answer
            raise NoRangesError(url, size) from None
        except Exception as error:
            raise ConnectionError(f"Texture.open: {url:.80} cannot be read: {_said(error)}") from error
        self.file.seek(0)
        self.size = int(size)

    @property
    def count(self) -> int:
        return int(self.file.cache.total_requested_bytes)

    def read(self, ranges: Sequence[Range]) -> list[bytes | Exception]:
        """As in Ranges; safe in several threads."""
        starts, ends = [offset for offset, _ in ranges], [offset + count for offset, count in ranges]
        found = self._fs.cat_ranges([self._path] * len(ranges), starts, ends)
        return [ConnectionError(_said(part)) if isinstance(part, Exception) else part for part in found]


def open_ranges(name: str) -> Ranges:
    """A path or a URL."""
    return RemoteRanges(name) if is_url(name) else LocalRanges(name)


def _patience(url: str) -> dict[str, Any]:
    """Options of fsspec: how long a web server may be silent."""
    if not SCHEMES.match(url):
        return {}
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=None, sock_connect=PATIENCE, sock_read=PATIENCE)
    return {"client_kwargs": {"timeout": timeout, "trust_env": True}}


def _said(error: BaseException) -> str:
    """The first cause: fsspec says "not found" whatever happened."""
    while error.__cause__ is not None:
        error = error.__cause__
    if (status := getattr(error, "status", None)) is not None:  # aiohttp's
        return f"the server answers {status} {getattr(error, 'message', '')}".strip()
    return " ".join(str(error).split()) or type(error).__name__
