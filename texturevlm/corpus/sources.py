"""Where images come from: a folder tree, a list, WebDataset tars, parquet files or PDFs, here or on an object store.

A source is listed once, in a fixed order, into entries (listing.py). The listing stays if the source changes later.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from texturevlm.check import check_choice
from texturevlm.corpus.listing import Entry
from texturevlm.corpus.recipe import UNIT
from texturevlm.corpus.store import Store, listed
from texturevlm.paths import IMAGE_SUFFIXES, is_url

LIST_SUFFIXES = (".txt", ".lst", ".jsonl")
LOOKED_AT = 10_000  # files of a folder, to find out what it holds


@dataclass(frozen=True)
class Kind:
    """per_unit: entries of a unit; None: the recipe's"""

    suffixes: tuple[str, ...]
    entries: Callable[[str], Iterator[Entry]]
    per_unit: int | None = 1


def find_kind(source: str, kind: str = "auto") -> str:
    """What a source is: a key of KINDS."""
    check_choice("corpus", "kind", kind, ("auto", *KINDS))
    if not is_url(source) and not _is_pattern(source) and not Path(source).exists():
        raise FileNotFoundError(f"corpus: no such file or folder: {source}")
    if kind != "auto":
        return kind
    if source.lower().endswith(LIST_SUFFIXES):
        return "list"
    found: set[str] = set()
    for number, (path, _) in enumerate(_files(source)):
        found |= {name for name, one in KINDS.items() if path.lower().endswith(one.suffixes) and name != "list"}
        if number >= LOOKED_AT:
            break
    if len(found) == 1:
        return found.pop()
    wanted = "images, tars, parquet files or PDFs, or be a list (.txt, .jsonl)"
    if not found:
        raise ValueError(f"corpus: source must hold {wanted}, got none in {source}")
    raise ValueError(
        f"corpus: source must hold one of {wanted}; {source} holds several, so kind must be one of "
        f"{', '.join(sorted(found))}"
    )


def entries_of(source: str, kind: str) -> Iterator[Entry]:
    """All entries of a source, in order."""
    return KINDS[kind].entries(source)


def per_unit_of(kind: str, unit: int) -> int:
    return KINDS[kind].per_unit or unit


def _files(source: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The files of a folder, of a pattern (*.tar), or the one file, with what fsspec says of each."""
    store = Store(source)
    top = store.path()
    if _is_pattern(source):
        found = store.fs.glob(top, detail=True)
        yield from ((name, found[name]) for name in sorted(found) if found[name]["type"] != "directory")
    elif store.fs.isdir(top):
        yield from ((str(info["name"]), info) for info in listed(store.fs, top))
    else:
        yield top, store.fs.info(top)


def _is_pattern(source: str) -> bool:
    """Whether a source stands for files by * or the like; a file or folder whose name has such letters does not."""
    return any(letter in source for letter in "*?[") and not Store(source).exists("")


def _entry(store: Store, path: str, info: dict[str, Any], **more: Any) -> Entry:
    """An entry with a path that fsspec opens."""
    etag = next((str(info[name]) for name in ("ETag", "etag", "mtime", "LastModified") if name in info), "")
    return Entry(path if store.local else store.fs.unstrip_protocol(path), int(info.get("size") or 0), etag, more)


def _of_files(source: str, suffixes: tuple[str, ...]) -> Iterator[Entry]:
    store = Store(source)
    top = store.path()
    if _is_pattern(source):
        top = re.split(r"[*?[]", top)[0].rpartition("/")[0]
    for path, info in _files(source):
        if path.lower().endswith(suffixes):
            key = path[len(top) :].strip("/") if path != top else Path(path).name
            yield _entry(store, path, info, key=key)


def _images(source: str) -> Iterator[Entry]:
    return _of_files(source, KINDS["images"].suffixes)


def _tars(source: str) -> Iterator[Entry]:
    return _of_files(source, KINDS["webdataset"].suffixes)


def _pdfs(source: str) -> Iterator[Entry]:
    return _of_files(source, KINDS["pdf"].suffixes)


def _parquet(source: str) -> Iterator[Entry]:
    """Row groups, as many to an entry as make up a unit's images. A file that cannot be read is one entry."""
    try:
        from pyarrow import parquet
    except ImportError:
        raise ImportError("corpus: parquet needs the extra corpus: pip install 'texturevlm[corpus]'") from None

    for entry in _of_files(source, KINDS["parquet"].suffixes):
        try:
            with Store(entry.path).open("") as file:
                metadata = parquet.ParquetFile(file).metadata
                rows = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
        except (OSError, ValueError):  # pyarrow's errors are of these; the unit will say what is wrong
            yield entry
            continue
        first = row = 0
        for index in range(len(rows)):
            counted = sum(rows[first : index + 1])
            if counted >= UNIT or index == len(rows) - 1:
                yield entry._replace(more={**entry.more, "groups": [first, index + 1], "row": row})
                first, row = index + 1, row + counted


def _listed(source: str) -> Iterator[Entry]:
    """The lines of a list: a path or a URL each, or an object with image, and key and question if wanted.

    Paths count from the folder of the list. A key that was there before is marked: it will be an error, not a row.
    """
    repeated = _repeated(source)
    seen: set[int] = set()
    for number, line in enumerate(_lines(source), 1):
        entry = _line_entry(source, number, line)
        if (own := _hash(entry.more["key"])) in repeated:
            entry = entry._replace(more={**entry.more, "twice": True}) if own in seen else entry
            seen.add(own)
        yield entry


def _lines(source: str) -> Iterator[str]:
    with Store(source).open("") as file:
        for line in file:
            if text := line.decode(errors="surrogateescape").strip():
                yield text


def _line_entry(source: str, number: int, line: str) -> Entry:
    given: dict[str, Any] = {"image": line}
    if line.startswith("{"):
        try:
            given = json.loads(line)
        except ValueError as error:
            raise ValueError(
                f"corpus: {source}:{number} must be a path, a URL or JSON, got {line[:60]!r} ({error})"
            ) from None
        if not isinstance(given.get("image"), str):
            raise ValueError(f"corpus: {source}:{number} must have image, a path or a URL, got {line[:60]!r}")
    image = given.pop("image")
    given["key"] = str(given.get("key", image))
    if not is_url(image) and not os.path.isabs(image):
        image = source.rpartition("/")[0] + "/" + image if "/" in source else image
    return Entry(image, more=given)


def _repeated(source: str) -> set[int]:
    """Hashes of the keys that a list has more than once; 8 bytes of memory per line."""
    hashes = array(
        "Q", (_hash(_line_entry(source, number, line).more["key"]) for number, line in enumerate(_lines(source), 1))
    )
    if len(hashes) == 0:
        raise ValueError(f"corpus: source must have at least one image, got none in {source}")
    ordered = np.sort(np.frombuffer(hashes, dtype=np.uint64))
    return set(ordered[1:][ordered[1:] == ordered[:-1]].tolist())


def _hash(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode(errors="surrogateescape"), digest_size=8).digest(), "little")


KINDS: dict[str, Kind] = {
    "images": Kind(tuple(sorted(IMAGE_SUFFIXES)), _images, None),
    "list": Kind(LIST_SUFFIXES, _listed, None),
    "webdataset": Kind((".tar", ".tar.gz", ".tgz"), _tars),
    "parquet": Kind((".parquet",), _parquet),
    "pdf": Kind((".pdf",), _pdfs, 8),
}
