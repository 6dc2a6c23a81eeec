"""A file of questions about the images of a source: JSONL with key, question and other fields, such as an answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from texturevlm.corpus.store import Store

NAME = "plan/questions.jsonl"  # a copy in the corpus, for workers on other machines
Asked = dict[str, list[tuple[str, dict[str, Any]]]]


def check_questions(path: Path) -> bytes:
    """The content of a file of questions, each line checked."""
    content = path.read_bytes()
    if not parse_questions(content, str(path)):
        raise ValueError(f"corpus: questions must have at least one, got none in {path}")
    return content


def parse_questions(content: bytes, name: str) -> Asked:
    """By the key of the image, in the order of the file."""
    found: Asked = {}
    for number, line in enumerate(content.decode().splitlines(), 1):
        if not line.strip():
            continue
        try:
            fields = dict(json.loads(line))
            key, question = fields.pop("key"), fields.pop("question")
            if not (isinstance(key, str) and isinstance(question, str)):
                raise TypeError("both are texts")
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"corpus: {name}:{number} must be JSON with key and question, got {line[:60]!r} ({error})"
            ) from None
        found.setdefault(key, []).append((question, fields))
    return found


def load_questions(store: Store) -> Asked:
    return parse_questions(store.read(NAME), NAME) if store.exists(NAME) else {}
