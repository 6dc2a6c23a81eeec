"""Where the authors of public data sets put questions, answers and images, and under which names.

A release is read from the folder into which its archives were unpacked. Each function gives (place, row) for every
entry, the row in the names of data.py, or an exception that says what is wrong with it; nothing is opened but the JSON.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

Entry = tuple[str, Any]  # where it stands; a row, or the exception that it gave

# The files that hold the questions, by split; of several patterns the first that matches. What is called eval here is
# the part that papers report and whose answers are public.
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
    """The release whose files lie in a folder."""
    for name, splits in LISTINGS.items():
        if any(_matches(folder, pattern) for patterns in splits.values() for pattern in patterns):
            return name
    raise ValueError(
        f"load: folder must hold questions.jsonl or the release of one of {', '.join(LISTINGS)}, got {folder}"
    )


def _matches(folder: Path, pattern: str) -> list[Path]:
    return sorted(path for path in folder.glob(pattern) if path.is_file())


def _listings(folder: Path, name: str, split: str | None, *, together: int = 1) -> Iterator[tuple[Path, str]]:
    """The files of a split, with it; `together` patterns belong to one part (human and augmented questions)."""
    found = False
    for part, patterns in LISTINGS[name].items():
        if split not in (None, part):
            continue
        for first in range(0, len(patterns), together):
            # One file a pattern: with and without question types are the same questions. The longer name has more.
            files = [_matches(folder, pattern)[-1:] for pattern in patterns[first : first + together]]
            if any(files):
                yield from ((path, part) for paths in files for path in paths)
                found = True
                break
    if not found:
        wanted = [pattern for part, names in LISTINGS[name].items() if split in (None, part) for pattern in names]
        raise FileNotFoundError(f"load: a release of {name} must hold {' or '.join(wanted)}, got {folder}")


def _parsed(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"load: {path} must be JSON: {error}") from None


def _list(path: Path, parsed: Any, key: str | None) -> list[Any]:
    found = parsed if key is None else parsed.get(key) if isinstance(parsed, dict) else None
    if not isinstance(found, list):
        raise ValueError(f"load: {path} must hold a list{f' under {key}' if key else ''}, got {type(found).__name__}")
    return found


def _image(folders: Sequence[Path], name: str) -> Path:
    """In the first of the folders that has it; where none has, in the first, so that a complaint can name it."""
    return next((folder / name for folder in folders if (folder / name).is_file()), folders[0] / name)


Convert = Callable[[Any, int, Path, Path], dict[str, Any]]  # entry, its number, its file, the folder → row


def _rows(path: Path, key: str | None, convert: Convert, folder: Path, part: str) -> Iterator[Entry]:
    """The entries of one file, converted; what fails is told as a broken entry."""
    for number, entry in enumerate(_list(path, _parsed(path), key)):
        place = f"{path}: {key}[{number}]" if key else f"{path}: [{number}]"
        try:
            yield place, {**convert(entry, number, path, folder), "split": part}
        except KeyError as error:
            yield place, ValueError(f"must have {error.args[0]}, got {entry!r:.80}")
        except (TypeError, ValueError, AttributeError) as error:
            yield place, ValueError(f"must be an entry of the release ({error}), got {entry!r:.80}")


def docvqa(folder: Path, split: str | None) -> Iterator[Entry]:
    """{train,val}_v1.0[_withQT].json, with documents/ beside it (earlier archives) or spdocvqa_images/ (later ones)."""
    for path, part in _listings(folder, "docvqa", split):
        yield from _rows(path, "data", _docvqa, folder, part)


def _docvqa(entry: Any, number: int, path: Path, folder: Path) -> dict[str, Any]:
    folders = [path.parent / "documents", folder / "documents", folder / "spdocvqa_images"]
    folders += [folder / stem / "documents" for stem in ("train", "val", "test")]
    return {
        "id": entry["questionId"],
        "image": _image(folders, Path(entry["image"]).name),
        "question": entry["question"],
        "answers": entry.get("answers", []),
    }


def textvqa(folder: Path, split: str | None) -> Iterator[Entry]:
    """TextVQA_0.5.1_{train,val}.json and train_images/, which holds both; test_images/."""
    for path, part in _listings(folder, "textvqa", split):
        yield from _rows(path, "data", _textvqa, folder, part)


def _textvqa(entry: Any, number: int, path: Path, folder: Path) -> dict[str, Any]:
    folders = [folder / "train_images", folder / "train_val_images" / "train_images", folder / "test_images"]
    return {
        "id": entry["question_id"],
        "image": _image(folders, f"{entry['image_id']}.jpg"),
        "question": entry["question"],
        "answers": entry.get("answers", []),
    }


def chartqa(folder: Path, split: str | None) -> Iterator[Entry]:
    """{train,val,test}/{train,val,test}_{human,augmented}.json and png/ beside them; entries have no id."""
    for path, part in _listings(folder, "chartqa", split, together=2):
        yield from _rows(path, None, _chartqa, folder, part)


def _chartqa(entry: Any, number: int, path: Path, folder: Path) -> dict[str, Any]:
    return {
        "id": f"{path.stem}-{number}",
        "image": path.parent / "png" / entry["imgname"],
        "question": entry["query"],
        "answers": [str(entry["label"])],
    }


def vizwiz(folder: Path, split: str | None) -> Iterator[Entry]:
    """Annotations/{train,val}.json and train/, val/ (or all of them in Images/); an image has one question."""
    for path, part in _listings(folder, "vizwiz", split):
        yield from _rows(path, None, _vizwiz, folder, part)


def _vizwiz(entry: Any, number: int, path: Path, folder: Path) -> dict[str, Any]:
    root = path.parent.parent
    return {
        "id": Path(entry["image"]).stem,
        "image": _image([root / path.stem, root / "Images" / path.stem, root / "Images"], entry["image"]),
        "question": entry["question"],
        "answers": [answer["answer"] for answer in entry.get("answers", [])],
    }


def vqav2(folder: Path, split: str | None) -> Iterator[Entry]:
    """v2_OpenEnded_mscoco_val2014_questions.json, v2_mscoco_val2014_annotations.json and COCO's val2014/."""
    for path, part in _listings(folder, "vqav2", split):
        answers: dict[Any, list[str]] = {}
        for listing in _matches(folder, f"**/v2_mscoco_{_coco_year(path)}_annotations.json"):
            for place, row in _rows(listing, "annotations", _vqav2_answers, folder, part):
                if isinstance(row, Exception):
                    yield place, row
                else:
                    answers[row["id"]] = row["answers"]
        for place, row in _rows(path, "questions", _vqav2_question, folder, part):
            if not isinstance(row, Exception):
                row["answers"] = answers.get(row["id"], [])
            yield place, row


def _coco_year(path: Path) -> str:
    """Such as val2014, the part of the name that says which images are meant."""
    return path.name.removeprefix("v2_OpenEnded_mscoco_").removesuffix("_questions.json").replace("-dev", "")


def _vqav2_answers(entry: Any, number: int, path: Path, folder: Path) -> dict[str, Any]:
    return {"id": entry["question_id"], "answers": [answer["answer"] for answer in entry["answers"]]}


def _vqav2_question(entry: Any, number: int, path: Path, folder: Path) -> dict[str, Any]:
    year = _coco_year(path)
    name = f"COCO_{year}_{int(entry['image_id']):012d}.jpg"
    return {
        "id": entry["question_id"],
        "image": _image([folder / year, folder / "images" / year], name),
        "question": entry["question"],
    }


def coco(folder: Path, split: str | None) -> Iterator[Entry]:
    """annotations/instances_val2017.json and val2017/: one row an image and object class, with all its boxes."""
    for path, part in _listings(folder, "coco", split):
        parsed = _parsed(path)
        images = _by_id(path, parsed, "images")
        classes = _by_id(path, parsed, "categories")
        year = path.stem.removeprefix("instances_")
        folders = [folder / year, folder / "images" / year, path.parent.parent / year]
        together: dict[tuple[Any, Any], list[list[float]]] = {}
        for number, entry in enumerate(_list(path, parsed, "annotations")):
            try:
                if entry.get("iscrowd"):
                    continue  # one box around many: not the place of an object
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
            row, name = images[image], classes[kind].get("name")
            yield (
                f"{path}: image {image}",
                {
                    "id": f"{image}-{kind}",
                    "image": _image(folders, str(row.get("file_name"))),
                    "size": [row["height"], row["width"]] if "height" in row and "width" in row else None,
                    "name": name,
                    "boxes": boxes,
                    "split": part,
                },
            )


def _by_id(path: Path, parsed: Any, key: str) -> dict[Any, dict[str, Any]]:
    rows = _list(path, parsed, key)
    for number, row in enumerate(rows):
        if not isinstance(row, dict) or "id" not in row:
            raise ValueError(f"load: {path}: {key}[{number}] must have an id, got {row!r:.80}")
    return {row["id"]: row for row in rows}


RELEASES: dict[str, Callable[[Path, str | None], Iterator[Entry]]] = {
    "docvqa": docvqa,
    "textvqa": textvqa,
    "chartqa": chartqa,
    "coco": coco,
    "vqav2": vqav2,
    "vizwiz": vizwiz,
}
