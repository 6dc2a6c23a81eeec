"""Where images come from: a folder tree, a list, WebDataset tars, parquet files or PDFs, here or on an object store.

A source is listed once, in a fixed order, into entries (ledger.py); the listing stays if the source changes later. The
entries of a unit are read as items, one image each, with the errors of those that cannot be had.
"""

from __future__ import annotations

import json
import os
import re
import tarfile
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from texturevlm.check import check_choice
from texturevlm.corpus.decode import Pixels, pixel_digest, to_bytes
from texturevlm.corpus.ledger import Entry, Unit
from texturevlm.corpus.recipe import UNIT
from texturevlm.corpus.store import Store, key_hash, listed
from texturevlm.extras import extra
from texturevlm.paths import IMAGE_SUFFIXES, is_url

LIST_SUFFIXES = (".txt", ".lst", ".jsonl")
LOOKED_AT = 10_000  # files of a folder, to find out what it holds
IMAGE_COLUMNS = ("image", "images", "jpg", "png", "img")  # of parquet files, the likeliest first
PAGE_PIXELS = 1 << 22  # of a rendered page: A4 at 200 dots per inch
QUESTION = "question"


@dataclass(frozen=True)
class Item:
    """One image that is to be read.

    load:  gives the bytes of its file, or its pixels (H, W, 3); called by another thread
    error: why there is none; then nothing else counts
    more:  other fields of its source, such as an answer
    """

    key: str
    load: Callable[[], bytes | Pixels] = bytes
    question: str = ""
    more: dict[str, Any] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True)
class Kind:
    """What a source may be.

    suffixes: of its files
    read:     an entry → its images
    per_unit: entries of a unit; None: the recipe's
    """

    suffixes: tuple[str, ...]
    read: Callable[[Entry], Iterator[Item]]
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
        found |= {name for name, known in KINDS.items() if path.lower().endswith(known.suffixes) and name != "list"}
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
    if kind == "list":
        return _listed(source)
    found = _of_files(source, KINDS[kind].suffixes)
    return _row_groups(found) if kind == "parquet" else found


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


def _of_files(source: str, suffixes: tuple[str, ...]) -> Iterator[Entry]:
    """One entry per file; its key is the path below the folder."""
    store = Store(source)
    top = store.path()
    if _is_pattern(source):
        top = re.split(r"[*?[]", top)[0].rpartition("/")[0]
    for path, info in _files(source):
        if path.lower().endswith(suffixes):
            key = path[len(top) :].strip("/") if path != top else Path(path).name
            etag = next((str(info[name]) for name in ("ETag", "etag", "mtime", "LastModified") if name in info), "")
            opened = path if store.local else store.fs.unstrip_protocol(path)  # a path that fsspec opens
            yield Entry(opened, int(info.get("size") or 0), etag, {"key": key})


def _row_groups(files: Iterator[Entry]) -> Iterator[Entry]:
    """Row groups of files, as many to an entry as make up a unit's images. A file that cannot be read is one entry."""
    parquet = extra("corpus: parquet needs", "corpus", "pyarrow.parquet")
    for entry in files:
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
        if (own := key_hash(entry.more["key"])) in repeated:
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
        "Q", (key_hash(_line_entry(source, number, line).more["key"]) for number, line in enumerate(_lines(source), 1))
    )
    if len(hashes) == 0:
        raise ValueError(f"corpus: source must have at least one image, got none in {source}")
    ordered = np.sort(np.frombuffer(hashes, dtype=np.uint64))
    return set(ordered[1:][ordered[1:] == ordered[:-1]].tolist())


def items_of(unit: Unit, kind: str) -> Iterator[Item]:
    """The images of a unit. Where an entry breaks off, an item with the error takes the place of the rest of it."""
    seen: set[str] = set()
    for entry in unit.entries:
        for item in _safely(entry, KINDS[kind].read):
            # The name of a file may be no text at all, which no format could hold.
            item = replace(item, key=item.key.encode(errors="replace").decode())
            if item.key in seen and item.error is None:
                item = Item(item.key, error="another image of this unit has the same key")
            seen.add(item.key)
            yield item


def _safely(entry: Entry, read: Callable[[Entry], Iterator[Item]]) -> Iterator[Item]:
    key = entry.more.get("key", entry.path)
    try:
        if entry.more.get("twice"):
            raise ValueError("another image of the list has the same key")
        if entry.size >= 0 and (size := Store(entry.path).size("")) is not None and size != entry.size:
            raise ValueError(f"it has {size} bytes, and had {entry.size} when the corpus was planned")
        yield from read(entry)
    except Exception as error:  # whatever is wrong with one file must not cost the others
        yield Item(key, error=said(error))


def said(error: BaseException) -> str:
    """One line about an error."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300].removesuffix(": ")


def _file(entry: Entry) -> Iterator[Item]:
    """The image that is a file of its own."""
    more = {name: value for name, value in entry.more.items() if name not in ("key", QUESTION, "twice")}
    yield Item(entry.more["key"], partial(Store(entry.path).read, ""), entry.more.get(QUESTION, ""), more)


def _tar(entry: Entry) -> Iterator[Item]:
    """Samples of a WebDataset: files with one name up to the first dot stand together."""
    shard = entry.more["key"]
    with Store(entry.path).open("") as file, tarfile.open(fileobj=file, mode="r|*") as tar:
        name, parts = "", dict[str, bytes]()
        try:
            for member in tar:
                if not member.isfile():
                    continue
                folder, _, base = member.name.rpartition("/")
                stem, _, suffix = base.partition(".")
                own = f"{folder}/{stem}" if folder else stem
                if own != name and parts:
                    yield _sample(shard, name, parts)
                    parts = {}
                name = own
                content = tar.extractfile(member)
                parts[suffix.lower()] = b"" if content is None else content.read()
        except (tarfile.TarError, EOFError, OSError) as error:
            # The sample under way may lack a part, so it is not trusted.
            raise ValueError(f"the shard breaks off at {name or 'its beginning'}: {said(error)}") from None
        if parts:
            yield _sample(shard, name, parts)
    if not entry.path.lower().endswith("z") and Store(entry.path).read("", max(0, entry.size - 1024)).strip(b"\0"):
        raise ValueError(f"the shard breaks off after {name or 'its beginning'}: it has no end mark")


def _sample(shard: str, name: str, parts: dict[str, bytes]) -> Item:
    key = f"{shard}/{name}"
    images = [suffix for suffix in parts if f".{suffix.rpartition('.')[2]}" in IMAGE_SUFFIXES]
    if len(images) != 1:
        return Item(key, error=f"a sample must have one image, got {len(images)} among {', '.join(sorted(parts))}")
    more: dict[str, Any] = {}
    if "json" in parts:
        try:
            more = dict(json.loads(parts["json"]))
        except (ValueError, TypeError) as error:
            return Item(key, error=f"its json cannot be read: {said(error)}")
    content = parts[images[0]]
    return Item(key, lambda: content, str(more.pop(QUESTION, "")), more)


def _rows(entry: Entry) -> Iterator[Item]:
    """Rows of a parquet file with a column of images: bytes, or a struct with bytes, as Hugging Face writes it."""
    from pyarrow import parquet

    with Store(entry.path).open("") as file:
        table = parquet.ParquetFile(file)
        names = table.schema_arrow.names
        column = next((name for name in IMAGE_COLUMNS if name in names), None)
        if column is None:
            raise ValueError(f"a column must be one of {', '.join(IMAGE_COLUMNS)}, got {', '.join(names)}")
        groups = range(*entry.more["groups"]) if "groups" in entry.more else range(table.num_row_groups)
        number = entry.more.get("row", 0)
        for batch in table.iter_batches(batch_size=32, row_groups=list(groups)):
            for row in batch.to_pylist():
                yield _row(f"{entry.more['key']}/{number}", row, column)
                number += 1


def _row(key: str, row: dict[str, Any], column: str) -> Item:
    image = row.pop(column)
    if isinstance(image, list):
        if len(image) != 1:
            return Item(key, error=f"{column} must hold one image, got {len(image)}")
        (image,) = image
    content = image.get("bytes") if isinstance(image, dict) else image
    if not isinstance(content, bytes):
        return Item(key, error=f"{column} must hold bytes, got {'null' if content is None else type(content).__name__}")
    more = {name: value for name, value in row.items() if isinstance(value, (str, int, float, bool, list))}
    return Item(key, lambda: content, str(more.pop(QUESTION, "") or ""), more)


def _pages(entry: Entry) -> Iterator[Item]:
    """The pages of a PDF, rendered when they are decoded."""
    from texturevlm.pages.document import PdfPages

    content = Store(entry.path).read("")
    pdf = PdfPages(content, function="corpus")
    for index in range(len(pdf)):
        more = {"page": index + 1, "document": pixel_digest(content)}
        yield Item(f"{entry.more['key']}#{index + 1}", partial(_page, pdf, index), more=more)


def _page(pdf: Any, index: int) -> Pixels:
    return to_bytes(pdf.texture(index, PAGE_PIXELS, "cpu").levels[0])


KINDS: dict[str, Kind] = {
    "images": Kind(tuple(sorted(IMAGE_SUFFIXES)), _file, None),
    "list": Kind(LIST_SUFFIXES, _file, None),
    "webdataset": Kind((".tar", ".tar.gz", ".tgz"), _tar),
    "parquet": Kind((".parquet",), _rows),
    "pdf": Kind((".pdf",), _pages, 8),
}
