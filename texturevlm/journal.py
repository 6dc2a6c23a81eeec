"""Append-only files with one JSON object per line: a killed run loses at most one line."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


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


def append(path: Path, objects: Iterable[Any]) -> None:
    """Add one line per object."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(one) + "\n" for one in objects)
