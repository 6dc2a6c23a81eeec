"""The images of a unit, one after another, with the errors of those that cannot be had."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from texturevlm.corpus.listing import Entry, Unit
from texturevlm.corpus.store import Store
from texturevlm.paths import IMAGE_SUFFIXES

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
IMAGE_COLUMNS = ("image", "images", "jpg", "png", "img")  # of parquet files, the likeliest first
PAGE_PIXELS = 1 << 22  # of a rendered page: A4 at 200 dots per inch
QUESTION = "question"


@dataclass(frozen=True)
class Item:
    """One image to be.

    load:  gives the bytes of its file, or its pixels (H, W, 3); called by another thread
    error: why there is none; then nothing else counts
    more:  other fields of its source, such as an answer
    """

    key: str
    load: Callable[[], bytes | Pixels] = bytes
    question: str = ""
    more: dict[str, Any] = field(default_factory=dict)
    error: str | None = None


def items_of(unit: Unit, kind: str) -> Iterator[Item]:
    """The images of a unit. Where an entry breaks off, an item with the error takes the place of the rest of it."""
    seen: set[str] = set()
    for entry in unit.entries:
        for item in _safely(entry, READERS[kind]):
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
    from texturevlm.pages.pdf import PdfPages

    content = Store(entry.path).read("")
    pdf = PdfPages(content, function="corpus")
    digest = hashlib.blake2b(content, digest_size=16).hexdigest()
    for index in range(len(pdf)):
        more = {"page": index + 1, "document": digest}
        yield Item(f"{entry.more['key']}#{index + 1}", partial(_page, pdf, index), more=more)


def _page(pdf: Any, index: int) -> Pixels:
    from texturevlm.corpus.decode import to_bytes

    return to_bytes(pdf.texture(index, PAGE_PIXELS, "cpu").levels[0])


READERS: dict[str, Callable[[Entry], Iterator[Item]]] = {
    "images": _file,
    "list": _file,
    "webdataset": _tar,
    "parquet": _rows,
    "pdf": _pages,
}
