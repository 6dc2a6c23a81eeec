"""Views that the package's own choosers lay for the questions of real pages, computed when the pages are packed.

On a CPU a choice takes a hundred times as long as a simulated view, so it is made ahead, on the page at its own size or
at twice its size. FOLDER/views.npz holds all of them: boxes in sixteenths of a pixel of the packed page.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from texturevlm_lab.train.reader.views import CHOOSERS, Chooser, Floats

VIEWS_FILE = "views.npz"
_PARTS = 16  # of a pixel
_BUDGETS = (40, 64, 64, 96, 96, 160, 273, 273)
_FINER = (1.0, 1.6, 1.6, 2.2)  # the reader is asked with 1.6 to 2.6; others, so that it does not depend on it
_MOST_PIXELS = 5_000_000  # of a page that is enlarged


class ChosenView(NamedTuple):
    """question: its number on the page; magnified: as in ReaderView; boxes: (n, 4), xyxy in pixels of the page."""

    question: int
    magnified: float
    boxes: Floats


def choose_views(
    image: Image.Image, width: int, questions: Sequence[str], rng: np.random.Generator, *, each: int
) -> list[ChosenView]:
    """`each` views for every question, by random choosers and budgets.

    width: of the packed page
    """
    if rng.random() < 0.5 and 4 * image.width * image.height <= _MOST_PIXELS:  # as if scanned twice as finely
        image = image.resize((2 * image.width, 2 * image.height), Image.Resampling.BICUBIC)
    chooser, ratio, found = Chooser(image), image.width / width, []
    for number, question in enumerate(questions):
        for _ in range(each):
            scorer, allocator = CHOOSERS[int(rng.integers(len(CHOOSERS)))]
            budget, finer = int(rng.choice(_BUDGETS)), float(rng.choice(_FINER))
            boxes = chooser.boxes(question, budget, scorer, allocator, finer) / ratio
            found.append(ChosenView(number, ratio, boxes.astype(np.float32)))
    return found


def save_views(pages: Sequence[Sequence[ChosenView]], folder: Path) -> None:
    """Write the views of all pages, in the order of the listing."""
    flat = [(page, view) for page, views in enumerate(pages) for view in views]
    boxes = [np.rint(view.boxes * _PARTS) for _, view in flat]
    table: dict[str, Any] = {
        "page": np.array([page for page, _ in flat], np.int32),
        "question": np.array([view.question for _, view in flat], np.int32),
        "magnified": np.array([view.magnified for _, view in flat], np.float32),
        "count": np.array([len(view.boxes) for _, view in flat], np.int32),
        "boxes": np.concatenate([*boxes, np.zeros((0, 4))]).astype(np.int16),
    }
    np.savez_compressed(folder / VIEWS_FILE, **table)


class ChosenViews:
    """The views of a folder, by page; none if it has no file of them."""

    def __init__(self, folder: Path) -> None:
        self._of: dict[int, list[tuple[int, float, NDArray[np.int16]]]] = {}
        if not (folder / VIEWS_FILE).is_file():
            return
        with np.load(folder / VIEWS_FILE) as table:
            boxes = np.split(table["boxes"], np.cumsum(table["count"])[:-1])
            for page, question, magnified, own in zip(table["page"], table["question"], table["magnified"], boxes):
                self._of.setdefault(int(page), []).append((int(question), float(magnified), own))

    def of(self, page: int, scale: float) -> list[ChosenView]:
        """Those of a page that is drawn `scale` times as large."""
        return [
            ChosenView(question, magnified / scale, boxes.astype(np.float32) * (scale / _PARTS))
            for question, magnified, boxes in self._of.get(page, ())
        ]
