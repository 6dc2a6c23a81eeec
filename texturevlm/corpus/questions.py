"""A file of questions about the images of a source: JSONL with key, question and other fields, such as an answer.

The corpus has a copy, for workers on other machines, and an index of it: hashes of the keys, in order, and where their
lines begin. Workers read both where they lie, so that a file of any length takes no memory of theirs.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import shutil
import tempfile
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from texturevlm.corpus.store import Store, key_hash

FILES = NAME, INDEX = "plan/questions.jsonl", "plan/questions.bin"


@dataclass(frozen=True)
class QuestionFile:
    """A file of questions that was checked: a digest of it, and how many there are."""

    path: Path
    digest: str
    count: int


def check_questions(path: Path) -> QuestionFile:
    """Check each line of a file of questions."""
    digest, count = hashlib.blake2b(digest_size=16), 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            digest.update(line)
            if line.strip():
                parse_line(line, f"{path}:{number}")
                count += 1
    if not count:
        raise ValueError(f"corpus: questions must have at least one, got none in {path}")
    return QuestionFile(path, digest.hexdigest(), count)


def parse_line(line: bytes, name: str) -> tuple[str, str, dict[str, Any]]:
    """The key, the question and the other fields of a line."""
    try:
        fields = dict(json.loads(line))
        key, question = fields.pop("key"), fields.pop("question")
        if not (isinstance(key, str) and isinstance(question, str)):
            raise TypeError("both are texts")
    except (ValueError, KeyError, TypeError) as error:
        shown = line.decode(errors="replace").strip()[:60]
        raise ValueError(f"corpus: {name} must be JSON with key and question, got {shown!r} ({error})") from None
    return key, question, fields


def write_questions(store: Store, given: QuestionFile) -> None:
    """Put a copy of the questions and their index into a corpus."""
    hashes, places, at = array("Q"), array("Q"), 0
    with store.writing(NAME) as path, given.path.open("rb") as file, path.open("wb") as copy:
        for number, line in enumerate(file, 1):
            if line.strip():
                hashes.append(key_hash(parse_line(line, f"{given.path}:{number}")[0]))
                places.append(at)
            at += copy.write(line)
    keys = np.frombuffer(hashes, dtype="<u8")
    order = np.argsort(keys, kind="stable")  # questions about one image stay in the order of the file
    with store.writing(INDEX) as path:
        np.stack([keys[order], np.frombuffer(places, dtype="<u8")[order]]).tofile(path)


class Questions:
    """The questions of a corpus, by the key of the image; safe in several threads. store: None for no questions"""

    def __init__(self, store: Store | None) -> None:
        self._lines: Any = b""
        self._keys = self._places = np.zeros(0, "<u8")
        if store is not None:
            self._lines = _mapped(store, NAME)
            self._keys, self._places = np.frombuffer(_mapped(store, INDEX), dtype="<u8").reshape(2, -1)

    def about(self, key: str) -> list[tuple[str, dict[str, Any]]]:
        """The questions about an image in the order of the file, each with its other fields; none if there is none."""
        first, last = (np.searchsorted(self._keys, np.uint64(key_hash(key)), side) for side in ("left", "right"))
        found = (parse_line(self._line(int(place)), NAME) for place in self._places[first:last])
        return [(question, fields) for own, question, fields in found if own == key]

    def _line(self, place: int) -> bytes:
        end = self._lines.find(b"\n", place)
        return bytes(self._lines[place : None if end < 0 else end])


def _mapped(store: Store, name: str) -> mmap.mmap:
    """A file of a store in the address space of this process, of which only what is read takes memory."""
    with tempfile.TemporaryFile() as copy, store.open(name) as file:
        own: BinaryIO = file
        if not store.local:
            shutil.copyfileobj(file, copy)
            copy.flush()
            own = copy
        return mmap.mmap(own.fileno(), 0, access=mmap.ACCESS_READ)
