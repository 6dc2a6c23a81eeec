"""Questions about images, from a folder: the project's own format, or a public data set as its authors ship it.

Our own format is a `questions.jsonl` beside the images, one question per line: id, image, size [height, width],
question (or cls and name), answers, boxes [[x0, y0, x1, y1], …] that each hold the answer, split (train or eval). The
layouts of public releases are in releases.py. An error about an entry names its file and line.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from PIL import Image

from texturevlm.allocate.footprints import Box
from texturevlm.check import check_choice, check_count
from texturevlm.text.edits import letters_and_digits
from texturevlm_lab.evaluate.releases import RELEASES, Entry, recognised, release_entries

LENGTH, KIND = "answer length", "kind"  # strata of questions
_LENGTHS = ((3, "1–3"), (8, "4–8"))  # letters and digits of an answer; a longer one is not read by luck
_LONGER = "9+"
_LISTING = "questions.jsonl"
_SIDEWAYS = range(5, 9)  # EXIF orientations that swap height and width
_ORIENTATION = 0x0112


@dataclass(frozen=True)
class Sample:
    """One question about one image.

    id:       the data set's id, as text
    image:    the file
    size:     (height, width) of the image in the file
    question: for a photograph with objects, the name of the object class
    answers:  accepted alternatives, as often as they were given (VQA accuracy counts them); empty where there is none
    boxes:    xyxy in the file's pixels, each holding the answer, or the objects of the class
    split:    train or eval
    name:     of the object class; empty for a question
    objects:  boxes of all objects of the image, of any class; empty for a question
    kind:     of document or question, if the data set names one
    reduced:  how many times smaller the image in the file is than the one that the data set gives boxes for
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
    kind: str = ""
    reduced: float = 1.0


@dataclass(frozen=True)
class Data:
    """A data set: its format, its samples, one line per broken entry that was skipped, and how many samples of the
    split there are and have no box, if those were left out."""

    format: str
    samples: tuple[Sample, ...]
    skipped: tuple[str, ...] = ()
    listed: int = 0
    unlocated: int = 0

    @property
    def left_out(self) -> str:
        """For reports: how many questions are not measured because nobody knows where their answer stands."""
        if not self.unlocated:
            return f"All {self.listed} questions have a located answer."
        return f"{self.unlocated} of {self.listed} questions have no located answer and are left out."


class NothingLeft(ValueError):
    """A data set without any usable sample; `skipped` as in Data."""

    def __init__(self, message: str, skipped: Sequence[str]) -> None:
        super().__init__(message)
        self.skipped = tuple(skipped)


def load_data(
    folder: Path | str,
    *,
    format: str = "auto",
    split: str | None = "eval",
    limit: int | None = None,
    located: bool | None = False,
    skip_broken: bool = False,
    answered: bool = False,
) -> Data:
    """The samples of a folder, in its order.

    format:      own, docvqa, infovqa, textvqa, chartqa, coco, vqav2 or vizwiz; auto recognises it by the files
    split:       train or eval (of a release: val, or test where that is what is reported); None takes all
    limit:       at most that many samples, evenly spread
    located:     only samples with boxes; None: if there are any, else all
    skip_broken: leave out entries that are broken or whose image is missing, and list them in `skipped`
    answered:    whether an entry without answers counts as broken
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"load_data: folder must be a data set, got {folder}, which is not a folder")
    check_choice("load_data", "format", format, ["auto", "own", *RELEASES])
    if split is not None:
        check_choice("load_data", "split", split, ["train", "eval"])
    if limit is not None:
        check_count("load_data", "limit", limit, 1)
    if format == "auto":
        format = "own" if (folder / _LISTING).is_file() else recognised(folder)
    skipped: list[str] = []

    def skip(what: str) -> None:
        if not skip_broken:
            raise ValueError(f"load_data: {what} (skip_broken leaves it out)")
        skipped.append(what)

    chosen = []
    seen: dict[str, str] = {}
    for place, row in _own(folder) if format == "own" else release_entries(format, folder, split):
        try:
            sample = _sample(row)
            if sample.id in seen:
                raise ValueError(f"id must be new, got {sample.id!r} again, first at {seen[sample.id]}")
            if answered and not any(answer.strip() for answer in sample.answers):
                raise ValueError(f"answers must have at least one answer, got {list(sample.answers)!r:.60}")
        except (ValueError, TypeError) as error:
            skip(f"{place}: {error}")
            continue
        seen[sample.id] = place
        if split in (None, sample.split):
            chosen.append(sample)
    chosen = _with_objects(chosen)
    listed, unlocated = len(chosen), 0
    if located or (located is None and any(sample.boxes for sample in chosen)):
        unlocated = sum(not sample.boxes for sample in chosen)
        chosen = [sample for sample in chosen if sample.boxes]
    if limit is not None and limit < len(chosen):
        chosen = [chosen[index * len(chosen) // limit] for index in range(limit)]
    image_size = cache(_image_size)
    opened = []
    for sample in chosen:
        try:
            opened.append(_at_size(sample, image_size(sample.image)))
        except ValueError as error:
            skip(f"sample {sample.id}: {error}")
    if not opened:
        wanted = f"{split or 'any'} samples" + (" with boxes" if located else "")
        raise NothingLeft(
            f"load_data: {folder} ({format}) must hold {wanted}, got none ({len(skipped)} were broken)", skipped
        )
    return Data(format, tuple(opened), tuple(skipped), listed, unlocated)


def _own(folder: Path) -> Iterator[Entry]:
    path = folder / _LISTING
    if not path.is_file():
        raise FileNotFoundError(f"load_data: folder must hold {_LISTING}, got {folder}")
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            row: Any
            try:
                row = json.loads(line)
            except ValueError as error:  # not JSON, or not UTF-8
                row = ValueError(f"must be JSON: {error}")
            if isinstance(row, dict) and isinstance(row.get("image"), str):
                row["image"] = folder / row["image"]
            yield f"{path}:{number}", row


def _sample(row: Any) -> Sample:
    """A row as a sample; its size is (0, 0) if the data set does not give it."""
    if isinstance(row, Exception):
        raise row
    if not isinstance(row, dict):
        raise ValueError(f"must be an object, got {row!r:.60}")
    name = row.get("name", "")
    if "question" not in row and not name:
        raise ValueError("must have question, or cls and name, got neither")
    absent: dict[str, Any] = {"id": None, "image": None, "size": None, "answers": [], "boxes": [], "split": "eval"}
    absent["kind"] = ""
    row = {**absent, "name": name, "question": name, **row}
    for field, (wanted, holds) in _FIELDS.items():
        if not holds(row[field]):
            raise ValueError(f"{field} must be {wanted}, got {row[field]!r:.60}")
    return Sample(
        id=str(row["id"]),
        size=tuple(row["size"] or (0, 0)),
        answers=tuple(row["answers"]),
        boxes=tuple(map(tuple, row["boxes"])),
        **{field: row[field] for field in ("image", "question", "split", "name", "kind")},
    )


def _texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(one, str) for one in values)


def _numbers(value: Any, count: int, *kinds: type) -> bool:
    """Whether it is a list of `count` finite numbers; a bool does not count as a number."""
    listed = isinstance(value, (list, tuple)) and len(value) == count
    return listed and all(type(one) in kinds and math.isfinite(one) for one in value)


def _boxes(values: Any) -> bool:
    numbers = isinstance(values, list) and all(_numbers(one, 4, int, float) for one in values)
    return numbers and all(x0 < x1 and y0 < y1 for x0, y0, x1, y1 in values)


_FIELDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "id": ("text or a number", lambda value: type(value) in (str, int, float)),
    "image": ("a file name", lambda value: isinstance(value, Path)),
    "size": ("[height, width]", lambda value: value is None or (_numbers(value, 2, int) and min(value) >= 1)),
    "name": ("text", lambda value: isinstance(value, str)),
    "kind": ("text", lambda value: isinstance(value, str)),
    "question": ("text", lambda value: isinstance(value, str)),
    "answers": ("a list of texts", _texts),
    "boxes": ("a list of [x0, y0, x1, y1] with x0 < x1 and y0 < y1", _boxes),
    "split": ("one of train, eval", lambda value: value in ("train", "eval")),
}


def _with_objects(samples: list[Sample]) -> list[Sample]:
    """Each sample of an object class with the boxes of all classes of its image."""
    together: dict[Path, list[Box]] = {}
    for sample in samples:
        if sample.name:
            together.setdefault(sample.image, []).extend(sample.boxes)
    return [replace(sample, objects=tuple(together.get(sample.image, ()))) for sample in samples]


def _at_size(sample: Sample, size: tuple[int, int]) -> Sample:
    """The sample with the size of the image in the file; boxes given for another size are scaled to it."""
    if sample.size in (size, (0, 0)):
        return replace(sample, size=size)
    down, across = (new / old for new, old in zip(size, sample.size))
    boxes, objects = (
        tuple((x0 * across, y0 * down, x1 * across, y1 * down) for x0, y0, x1, y1 in some)
        for some in (sample.boxes, sample.objects)
    )
    return replace(sample, size=size, boxes=boxes, objects=objects, reduced=1 / down)


def _image_size(path: Path) -> tuple[int, int]:
    """(height, width) from the file's header, upright."""
    if not path.is_file():
        raise ValueError(f"no such image: {path}")
    try:
        with Image.open(path) as image:
            width, height = image.size
            turned = image.getexif().get(_ORIENTATION) in _SIDEWAYS
    except Exception as error:  # Pillow's decoders raise anything for damaged files
        raise ValueError(f"image {path} cannot be read: {error}") from None
    return (width, height) if turned else (height, width)


def strata_of(sample: Sample) -> dict[str, str]:
    """The name of each stratum that the sample belongs to; the shortest accepted answer counts."""
    found = {}
    if sample.answers:
        letters = min(len(letters_and_digits(answer)) for answer in sample.answers)
        found[LENGTH] = next((name for most, name in _LENGTHS if letters <= most), _LONGER)
    if sample.kind:
        found[KIND] = sample.kind
    return found
