"""Held-out train pages as data sets, to choose the reader's weights and settings on.

    python -m texturevlm_lab.studies.held_out_pages DATA --words CACHE --fonts DIR --out FOLDER [--limit N] [--copies N]

DATA holds docvqa_half, funsd, sroie and chartqa. FOLDER gets two folders per set that `texturevlm eval` reads, with the
pages of documents that training holds out, at their own size: `annotated-SET`, as they are, and `rewritten-SET`, where
answers are wiped out and others printed in their place, so that no reader can have seen them, whatever it was trained
on. --limit: pages per set.
"""

import argparse
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from texturevlm.check import check_count
from texturevlm.progress import Progress
from texturevlm_lab.studies.study import option, study_main
from texturevlm_lab.train.reader.packing import RealPage, is_held, read_page, train_pages
from texturevlm_lab.train.reader.pages import ReaderPage
from texturevlm_lab.train.reader.rewritten import AnswerWriter
from texturevlm_lab.train.render import find_fonts

KINDS = ("annotated", "rewritten")


def write(options: argparse.Namespace) -> None:
    check_count("held_out_pages", "--copies", options.copies, 1)
    fonts = find_fonts(options.fonts)
    by_set: dict[str, list[RealPage]] = {}
    for page in train_pages(options.data):
        if is_held(page.document):
            by_set.setdefault(page.source, []).append(page)
    chosen = [page for own in by_set.values() for page in own[: options.limit]]
    if not chosen:
        raise ValueError(f"held_out_pages: DATA must have held-out train pages, got none in {options.data}")
    read = {page.path: read_page(page, options.words) for page in chosen}
    writer = AnswerWriter(fonts, [word for page in read.values() for word, _ in page.words])
    progress, folders = Progress(len(chosen), "pages"), dict[Path, list[dict[str, Any]]]()
    for number, page in enumerate(chosen):
        annotated, rewritten = (options.out / f"{kind}-{page.source}" for kind in KINDS)
        folders.setdefault(annotated, []).extend(as_annotated(page, annotated))
        for copy in range(options.copies):
            after = writer.rewrite(read[page.path], np.random.default_rng([23, number, copy]), 1.0)
            folders.setdefault(rewritten, []).extend(as_rewritten(page, read[page.path], after, copy, rewritten))
        progress.step()
    for folder, rows in folders.items():
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "questions.jsonl").write_text(lines, encoding="utf-8")
        print(f"{folder}: {len(rows)} questions")


def as_annotated(page: RealPage, folder: Path) -> list[dict[str, Any]]:
    """Copy a page; returns the rows of its questions."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(page.path, folder / page.path.name)
    return [{**row, "image": page.path.name, "split": "train"} for row in page.rows]


def as_rewritten(
    page: RealPage, before: ReaderPage, after: ReaderPage, copy: int, folder: Path
) -> Sequence[dict[str, Any]]:
    """Save a page; returns the rows of the questions whose answer is new."""
    folder.mkdir(parents=True, exist_ok=True)
    image, rows = f"{page.path.stem}-{copy}.png", []
    Image.fromarray(after.image).save(folder / image)
    for index, (old, new) in enumerate(zip(before.questions, after.questions)):
        if old.answer != new.answer:
            boxes = [[round(float(edge), 1) for edge in box] for box in new.boxes]
            row = {"id": f"{page.path.stem}-{copy}-{index}", "image": image, "size": [*after.image.shape]}
            row |= {"question": new.text, "answers": [new.answer], "boxes": boxes, "split": "train"}
            rows.append({**row, "document": page.document})
    return rows


def origin_page(folder: str, image: str) -> str:
    """The page that a file of such a folder shows: annotated, and rewritten in several copies, it is one page."""
    kind, _, source = folder.partition("-")
    if kind not in KINDS:
        return f"{folder}/{image}"
    stem = Path(image).stem
    return f"{source}/{stem if kind == KINDS[0] else stem.rpartition('-')[0]}"


OPTIONS = (
    option("--words", type=Path, required=True, metavar="CACHE", help="folder of the words read by OCR"),
    option("--copies", type=int, default=1, metavar="N", help="of a rewritten page, with other answers (default: 1)"),
    option("--fonts", type=Path, metavar="DIR", help=".ttf and .otf files (default: the system's fonts)"),
)
main = study_main(__name__, __doc__, write, None, *OPTIONS)
