"""Append-only files with one JSON object per line: a killed run loses at most one line."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

Parsed = TypeVar("Parsed")


def cut_unfinished(path: Path) -> None:
    """Cut off an unfinished last line before more is appended: the next line would be joined to it.

    Only for a file that is known to be a journal of ours: anything else would be damaged.
    """
    content = path.read_bytes() if path.exists() else b""
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with path.open("r+b") as file:
            file.truncate(whole)


def read_journal(path: Path, wanted: str, parse: Callable[[Any], Parsed]) -> list[Parsed]:
    """What `parse` makes of each object of a journal; a line on which it fails is named by the error.

    Without an unfinished last line, which stays in the file; empty if the file does not exist.
    """
    content = path.read_bytes() if path.exists() else b""
    found = []
    for number, line in enumerate(content[: content.rfind(b"\n") + 1].splitlines(), 1):
        try:
            found.append(parse(json.loads(line)))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}:{number}: must be {wanted}, got {line[:60]!r} ({error})") from None
    return found


def append(path: Path, objects: Iterable[Any]) -> None:
    """Add one line per object."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(one) + "\n" for one in objects)
