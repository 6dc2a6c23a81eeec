"""The plan of a corpus on disk: a list of entries, cut into units, which any worker reads one by one.

listing.gz has one gzip member per unit, a line of JSON each, so that a unit is one range of bytes. index.bin has
a fixed-size record per unit. Neither is ever held in memory as a whole, so that a plan may have any length.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import struct
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from texturevlm.corpus.store import Store

LISTING, INDEX = "plan/listing.gz", "plan/index.bin"
RECORD = struct.Struct("<QII8s")  # offset, length and number of entries of a unit, and a digest of them


class Entry(NamedTuple):
    """One file of a source: an image, or many in a shard.

    size: bytes, and etag, which changes when the content does; -1 and "" where asking would take a request per file
    more: key, question and others of a list; rows of a parquet file; `twice`, if another entry has the same key
    """

    path: str
    size: int = -1
    etag: str = ""
    more: dict[str, Any] = {}  # noqa: RUF012  never changed


class Unit(NamedTuple):
    """A part of the work that is done or not done. Its id follows from its entries."""

    number: int
    digest: str
    entries: tuple[Entry, ...]

    @property
    def id(self) -> str:
        return f"{self.number:07}-{self.digest}"


class Planned(NamedTuple):
    units: int
    entries: int
    digest: str


def write_listing(store: Store, entries: Iterable[Entry], per_unit: int) -> Planned:
    """Write the plan of entries, `per_unit` of them to a unit."""
    remaining, total = iter(entries), hashlib.blake2b(digest_size=16)
    offset = units = count = 0
    with (
        store.writing(LISTING) as listing,
        store.writing(INDEX) as index,
        listing.open("wb") as blocks,
        index.open("wb") as records,
    ):
        while some := list(islice(remaining, per_unit)):
            text = (json.dumps(some) + "\n").encode()
            digest = hashlib.blake2b(text, digest_size=8).digest()
            block = gzip.compress(text, 1, mtime=0)
            blocks.write(block)
            records.write(RECORD.pack(offset, len(block), len(some), digest))
            total.update(digest)
            offset, units, count = offset + len(block), units + 1, count + len(some)
    return Planned(units, count, total.hexdigest())


class Listing:
    """Reads what `write_listing` wrote."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def unit(self, number: int) -> Unit:
        record = self.store.read(INDEX, number * RECORD.size, (number + 1) * RECORD.size)
        offset, length, count, digest = RECORD.unpack(record)
        text = gzip.decompress(self.store.read(LISTING, offset, offset + length))
        entries = tuple(Entry(*one) for one in json.loads(text))
        if len(entries) != count or hashlib.blake2b(text, digest_size=8).digest() != digest:
            raise ValueError(
                f"corpus: {Path(self.store.url, LISTING)} is damaged at unit {number}; plan in a new folder"
            )
        return Unit(number, digest.hex(), entries)

    def digests(self) -> Iterator[str]:
        """The digests of all units, in order."""
        with self.store.open(INDEX) as records:
            while record := records.read(RECORD.size):
                yield RECORD.unpack(record)[3].hex()
