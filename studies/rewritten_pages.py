"""Held-out train pages with new answers: a data set to choose the reader's weights and settings on.

    python -m studies.rewritten_pages DATA --words CACHE --fonts DIR --out FOLDER [--limit N] [--copies N]

DATA holds docvqa_half, funsd, sroie and chartqa. FOLDER gets one folder per set that `texturevlm eval` reads. The pages
are those of documents that training holds out, at their own size. Their answers are wiped out and others are printed
in their place, so that no reader can have seen them, whatever it was trained on. --limit: pages per set.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from PIL import Image

from studies.study import option, study_main
from texturevlm.progress import Progress
from texturevlm.train.reader.packing import RealPage, is_held, read_page, train_pages
from texturevlm.train.reader.pages import ReaderPage
from texturevlm.train.reader.rewritten import AnswerWriter
from texturevlm.train.render import find_fonts


def write(options: argparse.Namespace) -> None:
    pages = [page for page in train_pages(options.data) if is_held(page.document)]
    by_set: dict[str, list[RealPage]] = {}
    for page in pages:
        by_set.setdefault(page.source, []).append(page)
    chosen = [page for own in by_set.values() for page in own[: options.limit]]
    read = {page.path: read_page(page, options.words) for page in chosen}
    writer = AnswerWriter(find_fonts(options.fonts), [word for page in read.values() for word, _ in page.words])
    progress = Progress(len(chosen), "pages")
    rows: dict[str, list[str]] = {page.source: [] for page in chosen}
    for number, page in enumerate(chosen):
        for copy in range(options.copies):
            after = writer.rewrite(read[page.path], np.random.default_rng([23, number, copy]), 1.0)
            rows[page.source] += written(page, read[page.path], after, copy, options.out / page.source)
        progress.step()
    for name, lines in rows.items():
        (options.out / name / "questions.jsonl").write_text("".join(lines), encoding="utf-8")
        print(f"{options.out / name}: {len(lines)} questions")


def written(page: RealPage, before: ReaderPage, after: ReaderPage, copy: int, folder: Path) -> list[str]:
    """Save a page; returns the lines of the questions whose answer is new."""
    folder.mkdir(parents=True, exist_ok=True)
    image = f"{page.path.stem}-{copy}.png"
    Image.fromarray(after.image).save(folder / image)
    lines = []
    for index, (old, new) in enumerate(zip(before.questions, after.questions)):
        if old.answer != new.answer:
            boxes = [[round(float(edge), 1) for edge in box] for box in new.boxes]
            row = {"id": f"{page.path.stem}-{copy}-{index}", "image": image, "size": [*after.image.shape]}
            row |= {"question": new.text, "answers": [new.answer], "boxes": boxes, "split": "train"}
            lines.append(json.dumps({**row, "document": page.document}) + "\n")
    return lines


main = study_main(
    __name__,
    __doc__,
    write,
    None,
    option("--words", type=Path, required=True, metavar="CACHE", help="folder of the words read by OCR"),
    option("--copies", type=int, default=1, metavar="N", help="of a page, each with other answers (default: 1)"),
    option("--fonts", type=Path, metavar="DIR", help=".ttf and .otf files (default: the system's fonts)"),
)
