"""Append-only files with one JSON object per line: a killed run loses at most one line."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

Parsed = TypeVar("Parsed")


def whole_lines(path: Path) -> list[bytes]:
    """The lines of a journal; none if the file does not exist. An unfinished last line is cut off in the file."""
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        with path.open("r+b") as file:
            file.truncate(len(whole))  # or the next line would be joined to it
    return whole.splitlines()


def read_journal(path: Path, wanted: str, parse: Callable[[Any], Parsed]) -> list[Parsed]:
    """What `parse` makes of each object of a journal; a line on which it fails is named by the error."""
    found = []
    for number, line in enumerate(whole_lines(path), 1):
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
