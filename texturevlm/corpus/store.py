"""Folders on this machine or on an object store (fsspec): files appear in them whole or not at all."""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, cast

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

PART = ".part"  # how the name of an unfinished file ends
_NUMBERS = count()


class Store:
    """A folder whose files appear whole or not at all.

    url: a path, or a URL that fsspec knows (s3://bucket/folder); some need a package of their own, which fsspec names
    """

    def __init__(self, url: str | os.PathLike[str]) -> None:
        self.url = os.fspath(url)

    @cached_property
    def _found(self) -> tuple[Any, str]:
        from fsspec.core import url_to_fs

        fs, root = url_to_fs(self.url)
        return fs, str(root).rstrip("/")

    def __getstate__(self) -> dict[str, str]:
        return {"url": self.url}  # a connection is not handed to another process

    @property
    def fs(self) -> Any:
        return self._found[0]

    @property
    def local(self) -> bool:
        """Whether it lies on a disk of this machine."""
        return _is_local(self.fs)

    def path(self, name: str = "") -> str:
        return f"{self._found[1]}/{name}" if name else self._found[1]

    def exists(self, name: str) -> bool:
        """Whether there is such a file; "" for the folder itself."""
        return bool(self.fs.exists(self.path(name)))

    def size(self, name: str) -> int | None:
        """The bytes of a file; None if there is none."""
        try:
            return int(self.fs.size(self.path(name)))
        except FileNotFoundError:
            return None

    def open(self, name: str) -> BinaryIO:
        return cast(BinaryIO, self.fs.open(self.path(name), "rb"))

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """The bytes of a file from start to stop."""
        if start == 0 and stop is None:
            return bytes(self.fs.cat_file(self.path(name)))
        return bytes(self.fs.cat_file(self.path(name), start=start, end=stop))

    def names(self, folder: str, suffix: str) -> Iterator[str]:
        """The names of the files below a folder that end in `suffix`, in order, folder by folder."""
        if self.fs.isdir(self.path(folder)):
            for info in listed(self.fs, self.path(folder)):
                if info["name"].endswith(suffix):
                    yield info["name"][len(self.path()) + 1 :]

    @contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        """A file on this machine to write to, which becomes the file `name` at the end, and vanishes after an error."""
        if not self.local:
            with tempfile.TemporaryDirectory(prefix="texturevlm-") as folder:
                path = Path(folder) / Path(name).name
                yield path
                self.fs.put_file(str(path), self.path(name))  # an object appears when all of it is there
            return
        place = Path(self.path(name))
        place.parent.mkdir(parents=True, exist_ok=True)
        # Two runs may work on one unit, if the first was left behind by its driver: each has a file of its own.
        part = place.with_name(f".{place.name}.{socket.gethostname()}-{os.getpid()}-{next(_NUMBERS)}{PART}")
        try:
            yield part
            with part.open("rb+") as written:
                os.fsync(written.fileno())  # else a power failure could leave an empty file under the final name
            os.replace(part, place)
        finally:
            part.unlink(missing_ok=True)

    def write(self, name: str, content: bytes) -> None:
        with self.writing(name) as path:
            path.write_bytes(content)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        if self.exists(name):
            self.fs.rm_file(self.path(name))

    def remove_unfinished(self) -> None:
        """Remove what killed runs left; an object store has nothing unfinished."""
        if self.local and self.fs.isdir(self.path()):
            for part in Path(self.path()).rglob(f".*{PART}"):
                part.unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """For one run at a time, on a disk of this machine; a run that is killed gives the lock back."""
        if not self.local or fcntl is None:
            yield
            return
        Path(self.path()).mkdir(parents=True, exist_ok=True)
        folder = os.open(self.path(), os.O_RDONLY)
        try:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BlockingIOError(f"corpus: another run works on {self.url}; wait until it has ended") from None
            yield
        finally:
            os.close(folder)


def _is_local(fs: Any) -> bool:
    return "file" in ([fs.protocol] if isinstance(fs.protocol, str) else fs.protocol)


def listed(fs: Any, folder: str) -> Iterator[dict[str, Any]]:
    """What fsspec says of each file below a folder, in order; one folder at a time is held in memory.

    Of a folder on this machine only its names are: a million of them take 100 MB, and what fsspec says of them 1 GB.
    """
    if _is_local(fs):
        yield from _listed_here(folder)
        return
    for info in sorted(fs.ls(folder, detail=True), key=lambda info: str(info["name"])):
        if info["type"] == "directory":
            if str(info["name"]).rstrip("/") != folder.rstrip("/"):  # some stores list the folder itself
                yield from listed(fs, info["name"])
        else:
            yield info


def _listed_here(folder: str) -> Iterator[dict[str, Any]]:
    """The same of a folder on this machine. Links to folders are not followed: they may lead back."""
    with os.scandir(folder) as found:
        names = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in found)
    for name, is_folder in names:
        path = f"{folder.rstrip('/')}/{name}"
        if is_folder:
            yield from _listed_here(path)
            continue
        try:
            status = os.stat(path)
        except OSError:  # a link to nothing, or gone by now: reading it will say so
            yield {"name": path, "size": -1, "type": "file"}
            continue
        if stat.S_ISREG(status.st_mode):
            yield {"name": path, "size": status.st_size, "mtime": status.st_mtime, "type": "file"}


def key_hash(key: str) -> int:
    """64 bits that stand for the key of an image where millions of keys would take too much memory."""
    return int.from_bytes(hashlib.blake2b(key.encode(errors="surrogatepass"), digest_size=8).digest(), "little")
