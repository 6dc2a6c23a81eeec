"""The layouts of public data sets as their authors ship them: one row of RELEASES each.

A release is read from the folder into which its archives were unpacked. A reader yields (place, row) per entry, with
the row's fields named as in data.py, or (place, exception) for a broken entry. Only the JSON files are opened.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

Entry = tuple[str, Any]  # its place in the file; a row, or the exception that it raised
ToRow = Callable[[Any, int, Path, Path], dict[str, Any]]  # entry, its number, its file, the folder → row


class Release(NamedTuple):
    """The files that hold the questions of a split, without `.json`, and the reader of one such file in a folder.

    Of several alternatives the first that matches is read; spaces separate patterns that are read together. Here `eval`
    is the part that papers report and whose answers are public.
    """

    train: tuple[str, ...]
    eval: tuple[str, ...]
    read: Callable[[Path, Path], Iterator[Entry]]


def recognised(folder: Path) -> str:
    """The name of the release whose files lie in a folder."""
    for name, release in RELEASES.items():
        if any(_matches(folder, names) for names in (*release.train, *release.eval)):
            return name
    raise ValueError(
        f"load_data: folder must hold questions.jsonl or the release of one of {', '.join(RELEASES)}, got {folder}"
    )


def release_entries(name: str, folder: Path, split: str | None) -> Iterator[Entry]:
    """All entries of a release; split None for both."""
    release = RELEASES[name]
    parts = {"train": release.train, "eval": release.eval}
    wanted = {part: names for part, names in parts.items() if split in (None, part)}
    found = {part: next(filter(None, (_matches(folder, one) for one in names)), []) for part, names in wanted.items()}
    if not any(found.values()):
        files = " or ".join(f"**/{stem}.json" for names in wanted.values() for one in names for stem in one.split())
        raise FileNotFoundError(f"load_data: a release of {name} must hold {files}, got {folder}")
    for part, paths in found.items():
        for path in paths:
            for place, row in release.read(path, folder):
                yield place, row if isinstance(row, Exception) else {**row, "split": part}


def _matches(folder: Path, names: str) -> list[Path]:
    """One file per name: with and without question types are the same questions; the longer name has more."""
    files = (sorted(path for path in folder.glob(f"**/{name}.json") if path.is_file())[-1:] for name in names.split())
    return [path for paths in files for path in paths]


def _lists(path: Path, *keys: str) -> list[list[Any]]:
    """The lists under some keys of a JSON file; under the key "", all of it."""
    try:
        parsed = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"load_data: {path} must be JSON: {error}") from None
    found: list[Any] = [parsed if not key else parsed.get(key) if isinstance(parsed, dict) else None for key in keys]
    for key, one in zip(keys, found):
        if not isinstance(one, list):
            under = f" under {key}" if key else ""
            raise ValueError(f"load_data: {path} must hold a list{under}, got {type(one).__name__}")
    return found


def _rows(path: Path, folder: Path, key: str, to_row: ToRow, entries: Iterable[Any] | None = None) -> Iterator[Entry]:
    """The rows of one file; what fails becomes a broken entry."""
    for number, entry in enumerate(_lists(path, key)[0] if entries is None else entries):
        try:
            row: Any = to_row(entry, number, path, folder)
        except KeyError as error:
            row = ValueError(f"must have {error.args[0]}, got {entry!r:.80}")
        except (TypeError, ValueError, AttributeError) as error:
            row = ValueError(f"must be an entry of the release ({error}), got {entry!r:.80}")
        yield f"{path}: {key}[{number}]", row


def _each(key: str) -> Callable[[ToRow], Callable[[Path, Path], Iterator[Entry]]]:
    """Make the reader of a file from a function that makes the row of one entry of its list."""
    return lambda to_row: partial(_rows, key=key, to_row=to_row)


def _image(name: str, *folders: Path) -> Path:
    """In the first folder that has it; if none has, in the first, so that an error can name it."""
    return next((folder / name for folder in folders if (folder / name).is_file()), folders[0] / name)


def _row(id: Any, image: Path, question: Any, answers: Any) -> dict[str, Any]:
    return {"id": id, "image": image, "question": question, "answers": answers}


@_each("data")
def _docvqa(entry: Any, number: int, path: Path, folder: Path) -> dict[str, Any]:
    """documents/ beside the questions (earlier archives) or spdocvqa_images/ (later ones)."""
    folders = [path.parent / "documents", folder / "documents", folder / "spdocvqa_images"]
    folders += [folder / stem / "documents" for stem in ("train", "val", "test")]
    image = _image(Path(entry["image"]).name, *folders)
    return _row(entry["questionId"], image, entry["question"], entry.get("answers", []))


@_each("data")
def _infovqa(entry: Any, number: int, path: Path, folder: Path) -> dict[str, Any]:
    """The images lie in infographicsvqa_images/ beside the questions."""
    name = Path(entry["image_local_name"]).name
    folders = [parent / stem for stem in ("infographicsvqa_images", "images") for parent in (path.parent, folder)]
    return _row(entry["questionId"], _image(name, *folders), entry["question"], entry.get("answers", []))


@_each("data")
def _textvqa(entry: Any, number: int, path: Path, folder: Path) -> dict[str, Any]:
    """train_images/ holds the images of train and val."""
    folders = [folder / "train_images", folder / "train_val_images" / "train_images", folder / "test_images"]
    image = _image(f"{entry['image_id']}.jpg", *folders)
    return _row(entry["question_id"], image, entry["question"], entry.get("answers", []))


@_each("")
def _chartqa(entry: Any, number: int, path: Path, folder: Path) -> dict[str, Any]:
    """png/ beside the questions; entries have no id."""
    image = path.parent / "png" / entry["imgname"]
    return _row(f"{path.stem}-{number}", image, entry["query"], [str(entry["label"])])


@_each("")
def _vizwiz(entry: Any, number: int, path: Path, folder: Path) -> dict[str, Any]:
    """train/ and val/ (or all images in Images/); one question per image."""
    root = path.parent.parent
    image = _image(entry["image"], root / path.stem, root / "Images" / path.stem, root / "Images")
    return _row(Path(entry["image"]).stem, image, entry["question"], _answers(entry.get("answers", [])))


def _answers(given: Iterable[Any]) -> list[Any]:
    return [one["answer"] for one in given]


def _vqav2(path: Path, folder: Path) -> Iterator[Entry]:
    """v2_OpenEnded_mscoco_val2014_questions.json, v2_mscoco_val2014_annotations.json and COCO's val2014/."""
    year = path.name.removeprefix("v2_OpenEnded_mscoco_").removesuffix("_questions.json").replace("-dev", "")
    answers: dict[Any, list[str]] = {}

    def annotation(entry: Any, *_: Any) -> dict[str, Any]:
        return {entry["question_id"]: _answers(entry["answers"])}

    def question(entry: Any, *_: Any) -> dict[str, Any]:
        name, own = f"COCO_{year}_{int(entry['image_id']):012d}.jpg", entry["question_id"]
        image = _image(name, folder / year, folder / "images" / year)
        return _row(own, image, entry["question"], answers.get(own, []))

    for listing in sorted(folder.glob(f"**/v2_mscoco_{year}_annotations.json")):
        for place, row in _rows(listing, folder, "annotations", annotation):
            if isinstance(row, Exception):
                yield place, row
            else:
                answers.update(row)
    yield from _rows(path, folder, "questions", question)


def _coco(path: Path, folder: Path) -> Iterator[Entry]:
    """annotations/instances_val2017.json and val2017/: one row per image and object class, with all its boxes."""
    year = path.stem.removeprefix("instances_")
    listed, categories, annotations = _lists(path, "images", "categories", "annotations")
    try:
        images, classes = ({row["id"]: row for row in rows} for rows in (listed, categories))
    except (KeyError, TypeError) as error:
        raise ValueError(f"load_data: {path}: each of images and categories must have an id ({error})") from None
    together: dict[tuple[Any, Any], list[list[float]]] = {}

    def add_box(entry: Any, *_: Any) -> dict[str, Any]:
        if entry.get("iscrowd"):
            return {}  # one box around many objects
        image, kind = entry["image_id"], entry["category_id"]
        if image not in images or kind not in classes:
            raise ValueError(f"must name an image and a category of the file, got {image!r} and {kind!r}")
        x, y, width, height = entry["bbox"]
        if width > 0 and height > 0:  # a few boxes of the release are a line
            together.setdefault((image, kind), []).append([x, y, x + width, y + height])
        return {}

    added = _rows(path, folder, "annotations", add_box, annotations)
    yield from (entry for entry in added if isinstance(entry[1], Exception))
    for (image, kind), boxes in together.items():
        known = images[image]
        file = _image(str(known.get("file_name")), folder / year, folder / "images" / year, path.parent.parent / year)
        size = [known["height"], known["width"]] if "height" in known and "width" in known else None
        row = {"id": f"{image}-{kind}", "image": file, "size": size, "name": classes[kind].get("name"), "boxes": boxes}
        yield f"{path}: image {image}", row


RELEASES = {
    "docvqa": Release(("train_v1.0*",), ("val_v1.0*", "test_v1.0*"), _docvqa),
    "infovqa": Release(
        ("infographicsVQA_train_v1.0*",), ("infographicsVQA_val_v1.0*", "infographicsVQA_test_v1.0*"), _infovqa
    ),
    "textvqa": Release(("TextVQA_*_train",), ("TextVQA_*_val", "TextVQA_*_test"), _textvqa),
    "chartqa": Release(
        ("train_human train_augmented",), ("test_human test_augmented", "val_human val_augmented"), _chartqa
    ),
    "vqav2": Release(
        ("v2_OpenEnded_mscoco_train*_questions",),
        ("v2_OpenEnded_mscoco_val*_questions", "v2_OpenEnded_mscoco_test*_questions"),
        _vqav2,
    ),
    "coco": Release(("instances_train*",), ("instances_val*",), _coco),
    "vizwiz": Release(("Annotations/train",), ("Annotations/val", "Annotations/test"), _vizwiz),
}
