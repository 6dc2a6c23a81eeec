"""Tables of questions with images inside them, from the hub of `datasets` or from parquet files, as a folder of ours.

The images are written once, each under the hash of its content, so that questions about one page are known to be about
one page. What is wrong with a row is left for `load_data` to say.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?")  # owner/name, or owner/name:configuration
# The names of columns in public copies of the data sets, the likeliest first.
IDS = ("questionId", "question_id", "qid", "id")
QUESTIONS = ("question", "query")
ANSWERS = ("answers", "answer", "label", "multiple_choice_answer")
IMAGES = ("image", "images")
SPLITS = {"eval": ("validation", "val", "test"), "train": ("train",)}


def is_table(source: str) -> bool:
    """Whether a data set is parquet, or something that only the hub can have."""
    path = Path(source)
    if path.is_dir():
        return not (path / "questions.jsonl").is_file() and any(path.glob("**/*.parquet"))
    return path.suffix == ".parquet" or (not path.exists() and HUB_ID.fullmatch(source) is not None)


def table_folder(source: str, out: Path, *, split: str | None = "eval", limit: int | None = None) -> Path:
    """Write a table as a folder with questions.jsonl, inside `out`; one that is there already is used again.

    source: a parquet file, a folder of them, or an id of the hub
    split:  train or eval; None for all
    limit:  at most that many rows, evenly spread
    """
    found = f"{_state(source)} {split} {limit}"
    folder = out / f"data-{hashlib.blake2b(found.encode(), digest_size=6).hexdigest()}"
    listing = folder / "questions.jsonl"
    if listing.is_file():
        return folder
    tables = list(_tables(source, split))  # before anything is written
    (folder / "images").mkdir(parents=True, exist_ok=True)
    unfinished = listing.with_suffix(".part")
    with unfinished.open("w", encoding="utf-8") as file:
        for part, table in tables:
            count = len(table) if limit is None else min(limit, len(table))
            for index in range(count):
                number = index * len(table) // count
                name = str(number) if split else f"{part}-{number}"  # for rows that have no id
                row = {"split": part, **_row(table[number], name, folder)}
                file.write(json.dumps(row, default=str) + "\n")
    unfinished.replace(listing)
    return folder


def _state(source: str) -> str:
    """A source and, on this machine, when its files were written."""
    path = Path(source)
    if not path.exists():
        return source
    files = sorted(path.glob("**/*.parquet")) if path.is_dir() else [path]
    return str([(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files])


def _tables(source: str, split: str | None) -> Iterator[tuple[str, Any]]:
    """Our split and the table of each part of a source; images stay as bytes."""
    try:
        import datasets as module
    except ImportError:
        raise ImportError(f"eval: {source} is read by the package datasets: pip install datasets") from None
    path = Path(source)
    if path.exists():
        for ours, files in _files(path, split):
            whole = module.load_dataset("parquet", data_files=[str(file) for file in files], split="train")
            yield ours, _undecoded(module, whole)
        return
    name, _, configuration = source.partition(":")
    try:
        known = module.get_dataset_split_names(name, configuration or None)
    except OSError as error:  # no network, or no such data set
        wanted = "a folder, a parquet file or a data set of the hub"
        raise ValueError(f"eval: DATA must be {wanted}, got {source}, which is nothing here: {error}") from None
    for ours, theirs in _parts(source, split, known):
        yield ours, _undecoded(module, module.load_dataset(name, configuration or None, split=theirs))


def _files(path: Path, split: str | None) -> list[tuple[str, list[Path]]]:
    """Our split and its files: by the names of files or folders (train-00000-of-00002, train/0000), if they tell."""
    files = sorted(path.glob("**/*.parquet")) if path.is_dir() else [path]
    known = {name for names in SPLITS.values() for name in names}
    named: dict[str, list[Path]] = {}
    for file in files:
        told = [name for name in (re.split(r"[^a-z]", file.stem.lower())[0], file.parent.name.lower()) if name in known]
        if told:
            named.setdefault(told[0], []).append(file)
    if not path.is_dir() or not named:
        return [(split or "eval", files)]
    return [(ours, named[theirs]) for ours, theirs in _parts(str(path), split, list(named))]


def _parts(source: str, split: str | None, known: Sequence[str]) -> list[tuple[str, str]]:
    """Our split and the name that a source has for it."""
    found = []
    for ours, theirs in SPLITS.items():
        if split in (None, ours):
            chosen = next((one for one in theirs if one in known), None)
            if chosen is None and split is not None:
                raise ValueError(f"eval: {source} must have a part {' or '.join(theirs)}, got {', '.join(known)}")
            if chosen is not None:
                found.append((ours, chosen))
    return found


def _undecoded(module: Any, table: Any) -> Any:
    for column in IMAGES:
        if column in table.column_names and not isinstance(table.features[column], (list, module.Sequence)):
            table = table.cast_column(column, module.Image(decode=False))
    return table


def _row(row: dict[str, Any], name: str, folder: Path) -> dict[str, Any]:
    """A row in our format; what is missing stays missing."""
    found: dict[str, Any] = {"id": _first(row, IDS, name), "answers": _answers(_first(row, ANSWERS, []))}
    if (question := _first(row, QUESTIONS, None)) is not None:
        found["question"] = question
    image = _first(row, IMAGES, None)
    content = _bytes(image[0] if isinstance(image, list) and image else image)
    if content is not None:
        found["image"] = _written(content, folder)
    return found


def _first(row: dict[str, Any], names: tuple[str, ...], default: Any) -> Any:
    return next((row[name] for name in names if row.get(name) is not None), default)


def _answers(given: Any) -> Any:
    """A text, a list of texts, or a list of {"answer": …} as a list of texts."""
    if not isinstance(given, (list, tuple)):
        return [str(given)]
    return [one.get("answer") if isinstance(one, dict) else one for one in given]


def _bytes(image: Any) -> bytes | None:
    if isinstance(image, dict):
        inside, path = image.get("bytes"), image.get("path")
        return inside if inside is not None else Path(path).read_bytes() if path and Path(path).is_file() else None
    return image if isinstance(image, bytes) else None


def _written(content: bytes, folder: Path) -> str:
    """The name of an image in a folder, with the suffix of its format."""
    try:
        with Image.open(io.BytesIO(content)) as image:
            suffix = (image.format or "bin").lower()
    except Exception:  # `load_data` will name it
        suffix = "bin"
    path = folder / "images" / f"{hashlib.blake2b(content, digest_size=8).hexdigest()}.{suffix}"
    if not path.is_file():
        path.write_bytes(content)
    return path.relative_to(folder).as_posix()
