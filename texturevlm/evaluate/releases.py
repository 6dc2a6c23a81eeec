"""The layouts of public data sets as their authors ship them.

A release is read from the folder into which its archives were unpacked. Each function yields (place, row) per entry,
with the row's fields named as in data.py, or (place, exception) for a broken entry. Only the JSON files are opened.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

Entry = tuple[str, Any]  # its place in the file; a row, or the exception that it raised
Convert = Callable[[Any, int, Path, Path], dict[str, Any]]  # entry, its number, its file, the folder → row

# The files that hold the questions, by split; of several patterns the first that matches. Here `eval` is the part that
# papers report and whose answers are public.
LISTINGS: dict[str, dict[str, tuple[str, ...]]] = {
    "docvqa": {"train": ("**/train_v1.0*.json",), "eval": ("**/val_v1.0*.json", "**/test_v1.0*.json")},
    "textvqa": {"train": ("**/TextVQA_*_train.json",), "eval": ("**/TextVQA_*_val.json", "**/TextVQA_*_test.json")},
    "chartqa": {
        "train": ("**/train_human.json", "**/train_augmented.json"),
        "eval": ("**/test_human.json", "**/test_augmented.json", "**/val_human.json", "**/val_augmented.json"),
    },
    "vqav2": {
        "train": ("**/v2_OpenEnded_mscoco_train*_questions.json",),
        "eval": ("**/v2_OpenEnded_mscoco_val*_questions.json", "**/v2_OpenEnded_mscoco_test*_questions.json"),
    },
    "coco": {"train": ("**/instances_train*.json",), "eval": ("**/instances_val*.json",)},
    "vizwiz": {
        "train": ("**/Annotations/train.json",),
        "eval": ("**/Annotations/val.json", "**/Annotations/test.json"),
    },
}


def recognised(folder: Path) -> str:
    """The name of the release whose files lie in a folder."""
    for name, splits in LISTINGS.items():
        if any(_matches(folder, pattern) for patterns in splits.values() for pattern in patterns):
            return name
    raise ValueError(
        f"load_data: folder must hold questions.jsonl or the release of one of {', '.join(LISTINGS)}, got {folder}"
    )


def release_entries(name: str, folder: Path, split: str | None) -> Iterator[Entry]:
    """All entries of a release; split None for both."""
    for path, part in _listings(folder, name, split):
        if name == "coco":
            yield from _coco(path, folder, part)
        elif name == "vqav2":
            yield from _vqav2(path, folder, part)
        else:
            key, convert = CONVERTERS[name]
            yield from _rows(path, key, convert, folder, part)


def _matches(folder: Path, pattern: str) -> list[Path]:
    return sorted(path for path in folder.glob(pattern) if path.is_file())


def _listings(folder: Path, name: str, split: str | None) -> Iterator[tuple[Path, str]]:
    """The question files of a split, each with its split. ChartQA's come in pairs: human and augmented questions."""
    found = False
    pair = 2 if name == "chartqa" else 1
    for part, patterns in LISTINGS[name].items():
        if split not in (None, part):
            continue
        for first in range(0, len(patterns), pair):
            # One file per pattern: with and without question types are the same questions; the longer name has more.
            files = [_matches(folder, pattern)[-1:] for pattern in patterns[first : first + pair]]
            if any(files):
                yield from ((path, part) for paths in files for path in paths)
                found = True
                break
    if not found:
        wanted = [pattern for part, names in LISTINGS[name].items() if split in (None, part) for pattern in names]
        raise FileNotFoundError(f"load_data: a release of {name} must hold {' or '.join(wanted)}, got {folder}")


def _parsed(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"load_data: {path} must be JSON: {error}") from None


def _list(path: Path, parsed: Any, key: str | None) -> list[Any]:
    found = parsed if key is None else parsed.get(key) if isinstance(parsed, dict) else None
    if not isinstance(found, list):
        raise ValueError(
            f"load_data: {path} must hold a list{f' under {key}' if key else ''}, got {type(found).__name__}"
        )
    return found


def _image(folders: Sequence[Path], name: str) -> Path:
    """In the first folder that has it; if none has, in the first, so that an error can name it."""
    return next((folder / name for folder in folders if (folder / name).is_file()), folders[0] / name)


def _rows(path: Path, key: str | None, convert: Convert, folder: Path, part: str) -> Iterator[Entry]:
    """The converted entries of one file; what fails becomes a broken entry."""
    for number, entry in enumerate(_list(path, _parsed(path), key)):
        place = f"{path}: {key}[{number}]" if key else f"{path}: [{number}]"
        try:
            yield place, {**convert(entry, number, path, folder), "split": part}
        except KeyError as error:
            yield place, ValueError(f"must have {error.args[0]}, got {entry!r:.80}")
        except (TypeError, ValueError, AttributeError) as error:
            yield place, ValueError(f"must be an entry of the release ({error}), got {entry!r:.80}")


def _docvqa(entry: Any, number: int, path: Path, folder: Path) -> dict[str, Any]:
    """documents/ beside the questions (earlier archives) or spdocvqa_images/ (later ones)."""
    folders = [path.parent / "documents", folder / "documents", folder / "spdocvqa_images"]
    folders += [folder / stem / "documents" for stem in ("train", "val", "test")]
    return {
        "id": entry["questionId"],
        "image": _image(folders, Path(entry["image"]).name),
        "question": entry["question"],
        "answers": entry.get("answers", []),
    }


def _textvqa(entry: Any, number: int, path: Path, folder: Path) -> dict[str, Any]:
    """train_images/ holds the images of train and val."""
    folders = [folder / "train_images", folder / "train_val_images" / "train_images", folder / "test_images"]
    return {
        "id": entry["question_id"],
        "image": _image(folders, f"{entry['image_id']}.jpg"),
        "question": entry["question"],
        "answers": entry.get("answers", []),
    }


def _chartqa(entry: Any, number: int, path: Path, folder: Path) -> dict[str, Any]:
    """png/ beside the questions; entries have no id."""
    return {
        "id": f"{path.stem}-{number}",
        "image": path.parent / "png" / entry["imgname"],
        "question": entry["query"],
        "answers": [str(entry["label"])],
    }


def _vizwiz(entry: Any, number: int, path: Path, folder: Path) -> dict[str, Any]:
    """train/ and val/ (or all images in Images/); one question per image."""
    root = path.parent.parent
    return {
        "id": Path(entry["image"]).stem,
        "image": _image([root / path.stem, root / "Images" / path.stem, root / "Images"], entry["image"]),
        "question": entry["question"],
        "answers": [answer["answer"] for answer in entry.get("answers", [])],
    }


CONVERTERS: dict[str, tuple[str | None, Convert]] = {
    "docvqa": ("data", _docvqa),
    "textvqa": ("data", _textvqa),
    "chartqa": (None, _chartqa),
    "vizwiz": (None, _vizwiz),
}


def _vqav2(path: Path, folder: Path, part: str) -> Iterator[Entry]:
    """v2_OpenEnded_mscoco_val2014_questions.json, v2_mscoco_val2014_annotations.json and COCO's val2014/."""
    year = path.name.removeprefix("v2_OpenEnded_mscoco_").removesuffix("_questions.json").replace("-dev", "")

    def answer(entry: Any, number: int, path: Path, folder: Path) -> dict[str, Any]:
        return {"id": entry["question_id"], "answers": [answer["answer"] for answer in entry["answers"]]}

    def question(entry: Any, number: int, path: Path, folder: Path) -> dict[str, Any]:
        name = f"COCO_{year}_{int(entry['image_id']):012d}.jpg"
        image = _image([folder / year, folder / "images" / year], name)
        return {"id": entry["question_id"], "image": image, "question": entry["question"]}

    answers: dict[Any, list[str]] = {}
    for listing in _matches(folder, f"**/v2_mscoco_{year}_annotations.json"):
        for place, row in _rows(listing, "annotations", answer, folder, part):
            if isinstance(row, Exception):
                yield place, row
            else:
                answers[row["id"]] = row["answers"]
    for place, row in _rows(path, "questions", question, folder, part):
        yield place, row if isinstance(row, Exception) else {**row, "answers": answers.get(row["id"], [])}


def _coco(path: Path, folder: Path, part: str) -> Iterator[Entry]:
    """annotations/instances_val2017.json and val2017/: one row per image and object class, with all its boxes."""
    parsed = _parsed(path)
    images = _by_id(path, parsed, "images")
    classes = _by_id(path, parsed, "categories")
    year = path.stem.removeprefix("instances_")
    folders = [folder / year, folder / "images" / year, path.parent.parent / year]
    together: dict[tuple[Any, Any], list[list[float]]] = {}
    for number, entry in enumerate(_list(path, parsed, "annotations")):
        try:
            if entry.get("iscrowd"):
                continue  # one box around many objects
            image, kind = entry["image_id"], entry["category_id"]
            if image not in images or kind not in classes:
                raise ValueError(f"must name an image and a category of the file, got {image!r} and {kind!r}")
            x, y, width, height = entry["bbox"]
            if width > 0 and height > 0:  # a few boxes of the release are a line
                together.setdefault((image, kind), []).append([x, y, x + width, y + height])
        except KeyError as error:
            yield f"{path}: annotations[{number}]", ValueError(f"must have {error.args[0]}, got {entry!r:.80}")
        except (TypeError, ValueError, AttributeError) as error:
            yield f"{path}: annotations[{number}]", ValueError(f"{error}, got {entry!r:.80}")
    for (image, kind), boxes in together.items():
        row = images[image]
        yield (
            f"{path}: image {image}",
            {
                "id": f"{image}-{kind}",
                "image": _image(folders, str(row.get("file_name"))),
                "size": [row["height"], row["width"]] if "height" in row and "width" in row else None,
                "name": classes[kind].get("name"),
                "boxes": boxes,
                "split": part,
            },
        )


def _by_id(path: Path, parsed: Any, key: str) -> dict[Any, dict[str, Any]]:
    rows = _list(path, parsed, key)
    for number, row in enumerate(rows):
        if not isinstance(row, dict) or "id" not in row:
            raise ValueError(f"load_data: {path}: {key}[{number}] must have an id, got {row!r:.80}")
    return {row["id"]: row for row in rows}
