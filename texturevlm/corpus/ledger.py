"""The ledger of a corpus: what is planned, what is done, what went wrong. A killed run goes on where it was.

    plan.json                  the recipe, and how many units there are: written when the plan is complete
    plan/                      the entries of each unit, in two files
    data/0000/0000012.parquet  rows of unit 12
    errors/0000/0000012.jsonl  what could not be read in unit 12, a line per image
    done/0000/0000012.json     written last: unit 12 is done exactly if this is there
All but the times in done/ follow from the recipe and the source, so that any run makes the same bytes.

plan/listing.gz has one gzip member per unit, a line of JSON each, so that a unit is one range of bytes. plan/index.bin
has a fixed-size record per unit. Neither is ever held in memory as a whole, so that a plan may have any length.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from texturevlm.corpus.formats import FORMATS
from texturevlm.corpus.questions import FILES as QUESTIONS
from texturevlm.corpus.recipe import Recipe
from texturevlm.corpus.store import Store

PLAN = "plan.json"
PER_FOLDER = 1000  # units
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


class Fault(NamedTuple):
    """What could not be made a row: the key of the image or shard, and why."""

    key: str
    error: str


@dataclass(frozen=True)
class Extent:
    """How many units and entries a plan has, and a digest of all entries."""

    units: int
    entries: int
    digest: str


@dataclass(frozen=True)
class Plan(Extent):
    """What is to be made of how much."""

    recipe: Recipe


@dataclass(frozen=True)
class Manifest:
    """The manifest of a unit.

    seconds: by stage, summed over the threads that work at it; wall: of the unit
    asked:   questions of the file of questions whose image could be read
    """

    unit: str
    rows: int
    errors: int
    bytes: int
    digest: str
    seconds: dict[str, float]
    wall: float
    asked: int = 0


class Ledger:
    """The files of one corpus."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def plan(self) -> Plan | None:
        """The plan, if it is complete."""
        if not self.store.exists(PLAN):
            return None
        try:
            found = json.loads(self.store.read(PLAN))
            return Plan(found["units"], found["entries"], found["digest"], Recipe.from_json(found["recipe"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"corpus: {Path(self.store.url, PLAN)} must be the plan of a corpus ({error})") from None

    def begin(self, recipe: Recipe, entries: Iterable[Entry], per_unit: int) -> Plan:
        """The plan of this recipe: the one that is there, or a new one; another recipe's is refused.

        entries: not touched if there is a plan, which stays as it was even if the source has changed
        """
        found = self.plan()
        if found is not None:
            if found.recipe.digest != recipe.digest:
                differ = "; ".join(found.recipe.differences(recipe))
                raise ValueError(
                    f"corpus: {self.store.url} was begun with {differ}; go on with the same options, or choose another "
                    "folder"
                )
            self.store.remove_unfinished()
            return found
        planned = write_entries(self.store, entries, per_unit)
        if planned.units == 0:
            for name in (LISTING, INDEX):
                self.store.remove(name)
            raise ValueError(
                f"corpus: source must have at least one entry of kind {recipe.kind}, got none in {recipe.source}"
            )
        content = {"recipe": asdict(recipe), "digest_of_recipe": recipe.digest, **asdict(planned)}
        self.store.write(PLAN, (json.dumps(content, indent=1) + "\n").encode())
        return Plan(**asdict(planned), recipe=recipe)

    def withdraw(self, plan: Plan) -> None:
        """Take the plan away again, unless a unit is done."""
        if next(self.done(plan), None) is None:
            for name in (PLAN, LISTING, INDEX, *QUESTIONS):
                self.store.remove(name)

    def unit(self, number: int) -> Unit:
        """The entries of a unit, as `write_entries` wrote them."""
        record = self.store.read(INDEX, number * RECORD.size, (number + 1) * RECORD.size)
        offset, length, count, digest = RECORD.unpack(record)
        text = gzip.decompress(self.store.read(LISTING, offset, offset + length))
        entries = tuple(Entry(*fields) for fields in json.loads(text))
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

    def data_name(self, number: int, recipe: Recipe) -> str:
        """The file of a unit's rows."""
        return _name("data", number, FORMATS[recipe.format].suffix)

    def commit(self, unit: Unit, faults: list[Fault], **counts: Any) -> Manifest:
        """Hand in a unit whose data are in their place: the errors, then the manifest (counts: its other fields)."""
        if faults:
            lines = "".join(json.dumps(fault._asdict(), ensure_ascii=False) + "\n" for fault in faults)
            self.store.write(_name("errors", unit.number, "jsonl"), lines.encode())
        else:
            self.store.remove(_name("errors", unit.number, "jsonl"))  # of an earlier try, see `forget`
        done = Manifest(unit=unit.id, errors=len(faults), **counts)
        self.store.write(_name("done", unit.number, "json"), (json.dumps(asdict(done)) + "\n").encode())
        return done

    def done(self, plan: Plan) -> Iterator[tuple[int, Manifest]]:
        """The units that are done, in order. One whose data are gone, or were cut, is not."""
        digests = self.digests()
        at = -1
        for name in self.store.names("done", ".json"):
            number = int(Path(name).stem)
            digest = ""
            while at < number:
                at, digest = at + 1, next(digests)
            done = Manifest(**json.loads(self.store.read(name)))
            whole = self.store.size(self.data_name(number, plan.recipe)) == done.bytes
            if whole and done.unit == f"{number:07}-{digest}":
                yield number, done

    def forget(self, number: int) -> None:
        """Make a unit undone."""
        self.store.remove(_name("done", number, "json"))

    def faults(self) -> Iterator[Fault]:
        """All errors, unit by unit."""
        for name in self.store.names("errors", ".jsonl"):
            yield from (Fault(**json.loads(line)) for line in self.store.read(name).decode().splitlines())

    # A unit on which a worker died leaves a note of what it was reading, so that the next try can pass over it.

    def note_reading(self, number: int, items: list[int]) -> None:
        self.store.write(_name("tries", number, "json"), json.dumps(items).encode())

    def noted(self, number: int) -> list[int]:
        name = _name("tries", number, "json")
        return list(json.loads(self.store.read(name))) if self.store.exists(name) else []

    def clear_note(self, number: int) -> None:
        self.store.remove(_name("tries", number, "json"))


def write_entries(store: Store, entries: Iterable[Entry], per_unit: int) -> Extent:
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
    return Extent(units, count, total.hexdigest())


def _name(folder: str, number: int, suffix: str) -> str:
    return f"{folder}/{number // PER_FOLDER:04}/{number:07}.{suffix}"


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
