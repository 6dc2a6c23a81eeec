"""Questions about images, from a folder: the project's own format, or a public data set as its authors ship it.

Our own format is a `questions.jsonl` beside the images, one question per line: id, image, size [height, width],
question (or cls and name), answers, boxes [[x0, y0, x1, y1], …] that each hold the answer, split (train or eval). The
layouts of public releases are in releases.py. An error about an entry names its file and line.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from PIL import Image

from texturevlm.check import check_choice, check_count
from texturevlm.evaluate.releases import LISTINGS, Entry, recognised, release_entries

_LISTING = "questions.jsonl"
_SIDEWAYS = range(5, 9)  # EXIF orientations that swap height and width
_ORIENTATION = 0x0112

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Sample:
    """One question about one image.

    id:       the data set's id, as text
    image:    the file
    size:     (height, width) of the image in the file
    question: for a photograph with objects, the name of the object class
    answers:  accepted alternatives; empty where there is none to read
    boxes:    xyxy in the file's pixels, each holding the answer, or the objects of the class
    split:    train or eval
    name:     of the object class; empty for a question
    objects:  boxes of all objects of the image, of any class; empty for a question
    """

    id: str
    image: Path
    size: tuple[int, int]
    question: str
    answers: tuple[str, ...] = ()
    boxes: tuple[Box, ...] = ()
    split: str = "eval"
    name: str = ""
    objects: tuple[Box, ...] = ()


@dataclass(frozen=True)
class Data:
    """A data set: its format, its samples, and one line per broken entry that was skipped."""

    format: str
    samples: tuple[Sample, ...]
    skipped: tuple[str, ...] = ()


def load_data(
    folder: Path | str,
    *,
    format: str = "auto",
    split: str | None = "eval",
    limit: int | None = None,
    located: bool | None = False,
    skip_broken: bool = False,
) -> Data:
    """The samples of a folder, in its order.

    format:      own, docvqa, textvqa, chartqa, coco, vqav2 or vizwiz; auto recognises it by the files
    split:       train or eval (of a release: val, or test where that is what is reported); None takes all
    limit:       at most that many samples, evenly spread
    located:     only samples with boxes; None: if there are any, else all
    skip_broken: leave out entries that are broken or whose image is missing, and list them in `skipped`
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"load_data: folder must be a data set, got {folder}, which is not a folder")
    check_choice("load_data", "format", format, ["auto", "own", *LISTINGS])
    if split is not None:
        check_choice("load_data", "split", split, ["train", "eval"])
    if limit is not None:
        check_count("load_data", "limit", limit, 1)
    if format == "auto":
        format = "own" if (folder / _LISTING).is_file() else recognised(folder)
    entries = _own(folder) if format == "own" else release_entries(format, folder, split)
    skipped: list[str] = []
    samples = _unbroken(entries, folder, skipped if skip_broken else None)
    chosen = _with_objects([sample for sample in samples if split in (None, sample.split)])
    if located or (located is None and any(sample.boxes for sample in chosen)):
        chosen = [sample for sample in chosen if sample.boxes]
    if limit is not None and limit < len(chosen):
        chosen = [chosen[index * len(chosen) // limit] for index in range(limit)]
    opened = list(_with_sizes(chosen, skipped if skip_broken else None))
    if not opened:
        wanted = f"{split or 'any'} samples" + (" with boxes" if located else "")
        raise ValueError(f"load_data: {folder} ({format}) must hold {wanted}, got none ({len(skipped)} were broken)")
    return Data(format, tuple(opened), tuple(skipped))


def _own(folder: Path) -> Iterator[Entry]:
    path = folder / _LISTING
    if not path.is_file():
        raise FileNotFoundError(f"load_data: folder must hold {_LISTING}, got {folder}")
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            place = f"{path}:{number}"
            try:
                row = json.loads(line)
            except ValueError as error:  # not JSON, or not UTF-8
                yield place, ValueError(f"must be JSON: {error}")
                continue
            if isinstance(row, dict) and isinstance(row.get("image"), str):
                row = {**row, "image": folder / row["image"]}
            yield place, row


def _unbroken(entries: Iterator[Entry], folder: Path, skipped: list[str] | None) -> Iterator[Sample]:
    """Entries as samples; the size may still be missing. A broken one is added to `skipped`, or raised."""
    seen: dict[str, str] = {}
    for place, row in entries:
        try:
            sample = _sample(row)
            if sample.id in seen:
                raise ValueError(f"id must be new, got {sample.id!r} again, first at {seen[sample.id]}")
        except (ValueError, TypeError) as error:
            _complain(f"{place}: {error}", skipped)
            continue
        seen[sample.id] = place
        yield sample


def _complain(what: str, skipped: list[str] | None) -> None:
    if skipped is None:
        raise ValueError(f"load_data: {what} (skip_broken leaves it out)")
    skipped.append(what)


def _sample(row: Any) -> Sample:
    if isinstance(row, Exception):
        raise row
    if not isinstance(row, dict):
        raise ValueError(f"must be an object, got {row!r:.60}")
    name = _field(row, "name", str, "")
    question = _field(row, "question", str, name)
    if "question" not in row and not name:
        raise ValueError("must have question, or cls and name, got neither")
    if "id" not in row or isinstance(row["id"], (dict, list, bool)) or row["id"] is None:
        raise ValueError(f"id must be text or a number, got {row.get('id')!r:.60}")
    if not isinstance(row.get("image"), Path):
        raise ValueError(f"image must be a file name, got {row.get('image')!r:.60}")
    answers = _field(row, "answers", list, [])
    if not all(isinstance(answer, str) for answer in answers):
        raise ValueError(f"answers must be texts, got {answers!r:.60}")
    return Sample(
        id=str(row["id"]),
        image=row["image"],
        size=_size(row.get("size")),
        question=question,
        answers=tuple(dict.fromkeys(answers)),
        boxes=tuple(_box(box) for box in _field(row, "boxes", list, [])),
        split=check_choice("", "split", _field(row, "split", str, "eval"), ["train", "eval"]),
        name=name,
    )


def _field(row: dict[str, Any], name: str, kind: type, default: Any) -> Any:
    value = row.get(name, default)
    if not isinstance(value, kind):
        raise ValueError(f"{name} must be {'text' if kind is str else 'a list'}, got {value!r:.60}")
    return value


def _size(value: Any) -> tuple[int, int]:
    """(height, width); (0, 0) if the data set does not give it."""
    if value is None:
        return 0, 0
    whole = isinstance(value, (list, tuple)) and len(value) == 2 and all(type(side) is int for side in value)
    if not whole or min(value) < 1:
        raise ValueError(f"size must be [height, width], got {value!r:.60}")
    return value[0], value[1]


def _box(value: Any) -> Box:
    numbers = (
        isinstance(value, (list, tuple))
        and len(value) == 4
        and all(isinstance(edge, (int, float)) and not isinstance(edge, bool) and math.isfinite(edge) for edge in value)
    )
    if not numbers or value[0] >= value[2] or value[1] >= value[3]:
        raise ValueError(f"boxes must be [x0, y0, x1, y1] with x0 < x1 and y0 < y1, got {value!r:.60}")
    return value[0], value[1], value[2], value[3]


def _with_objects(samples: list[Sample]) -> list[Sample]:
    """Each sample of an object class with the boxes of all classes of its image."""
    together: dict[Path, list[Box]] = {}
    for sample in samples:
        if sample.name:
            together.setdefault(sample.image, []).extend(sample.boxes)
    return [replace(sample, objects=tuple(together.get(sample.image, ()))) for sample in samples]


def _with_sizes(samples: list[Sample], skipped: list[str] | None) -> Iterator[Sample]:
    """Samples with the size of the image in the file; boxes given for another size are scaled to it."""
    sizes: dict[Path, tuple[int, int] | str] = {}
    for sample in samples:
        if sample.image not in sizes:
            sizes[sample.image] = _image_size(sample.image)
        size = sizes[sample.image]
        if isinstance(size, str):
            _complain(f"sample {sample.id}: {size}", skipped)
            continue
        if sample.size not in (size, (0, 0)):
            factors = size[1] / sample.size[1], size[0] / sample.size[0]
            sample = replace(sample, boxes=_scaled(sample.boxes, factors), objects=_scaled(sample.objects, factors))
        yield replace(sample, size=size)


def _scaled(boxes: tuple[Box, ...], factors: tuple[float, float]) -> tuple[Box, ...]:
    across, down = factors
    return tuple((x0 * across, y0 * down, x1 * across, y1 * down) for x0, y0, x1, y1 in boxes)


def _image_size(path: Path) -> tuple[int, int] | str:
    """(height, width) from the file's header, upright; or what is wrong with it."""
    if not path.is_file():
        return f"no such image: {path}"
    try:
        with Image.open(path) as image:
            width, height = image.size
            turned = image.getexif().get(_ORIENTATION) in _SIDEWAYS
    except Exception as error:  # Pillow's decoders raise anything for damaged files
        return f"image {path} cannot be read: {error}"
    return (width, height) if turned else (height, width)
