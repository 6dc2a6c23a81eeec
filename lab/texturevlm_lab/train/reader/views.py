"""Views of a page for one question: tokens as choosers lay them, and controls.

If fine tokens always lay on the answer, a reader would learn that "fine" points at the answer, and judge choosers by
how much they resemble its training. So most views are laid as the package's allocators lay theirs (shelves of squares
off the grid, the best cut in two), over places that are right only sometimes. All of it is numpy: a view takes about a
millisecond. `chosen` calls the package's real choosers, which takes a hundred times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from texturevlm.allocate.footprints import Box, Boxes, use_all
from texturevlm.ops.cover import cover, rows_of
from texturevlm_lab.train.reader.network import TOKEN_SIDE

Floats = NDArray[np.float32]
_EVERY = 10**6  # squares: no limit
AHEAD = "ahead"  # the kind of views that choosers laid when real pages were packed: see chosen.py
# Kinds of views and how often each is drawn; those made ahead only where a page has some.
VIEW_KINDS = {"resize": 0.12, "one scale": 0.12, "oracle": 0.16, "fit": 0.36, "layers": 0.24, AHEAD: 1.0}
HIT = 0.65  # share of views of `fit` and `layers` whose relevance includes the answer
CHOOSERS = (("scout", "auto"), ("scout", "auto"), ("scout", "density"), ("none", "auto"), ("none", "density"))
COARSEST, LEVELS = 6, 9  # the coarsest level, and how many there are
SMALLEST_TYPE, LARGEST_TYPE = 10.0, 24.0  # samples over the height of the answer that fine tokens aim at


class ReaderView(NamedTuple):
    """tokens: (n, 4), x and y of the centre, pixels per sample along x and y, in reading order; magnified: see PageInk;
    segment: (n,), the level of each token, coarse before fine."""

    tokens: Floats
    segment: NDArray[np.int8]
    magnified: float
    kind: str


class PageInk:
    """Where a page has ink, in cells, with a random threshold.

    magnified: positions are those of a page so many times as large, of which this one is a reduction: choosers make no
               samples finer than a pixel, and real pages have more pixels than training pages
    """

    def __init__(self, image: NDArray[np.uint8], rng: np.random.Generator) -> None:
        self.size = height, width = image.shape
        self.cell = cell = int(rng.choice((4, 4, 6, 8)))
        self.magnified = 1.0 if rng.random() < 0.5 else float(rng.uniform(0.9, 1.75))
        self.patch = TOKEN_SIDE / self.magnified  # pixels of the finest token
        self.least = max(1, int(self.patch / cell + 1e-6))
        paper = int(np.median(image[::7, ::7]))
        whole = image[: height // cell * cell, : width // cell * cell]
        contrast = np.abs(whole.astype(np.int16) - paper).reshape(height // cell, cell, width // cell, cell)
        self.ink: NDArray[np.bool_] = contrast.max((1, 3)) > rng.uniform(35, 100)
        if rng.random() < 0.5:  # grown by a cell
            self.ink[1:] |= self.ink[:-1].copy()
            self.ink[:, 1:] |= self.ink[:, :-1].copy()
        if self.ink.sum() < 4:
            self.ink[:] = True
        self.rows = rows_of(self.ink)
        self._fitted: dict[int, list[Box]] = {}

    def fitted(self, budget: int) -> list[Box]:
        """All ink, at the finest scale that the budget allows."""
        if budget not in self._fitted:
            span = finest(self.rows, max(self.ink.shape), budget, self.least)
            self._fitted[budget] = self.boxes(cover(self.rows, span, _EVERY), span)
        return self._fitted[budget]

    def boxes(self, squares: Sequence[tuple[int, int]], span: int) -> list[Box]:
        """Squares of cells as boxes in pixels, no finer than a patch, moved onto the page."""
        side = max(self.patch, span * self.cell)
        shift = (side - span * self.cell) / 2
        height, width = self.size
        found = []
        for row, column in squares:
            x = _within(column * self.cell - shift, side, width)
            y = _within(row * self.cell - shift, side, height)
            found.append((x, y, x + side, y + side))
        return found


def _within(start: float, side: float, extent: float) -> float:
    return (extent - side) / 2 if side > extent else min(max(start, 0.0), extent - side)


def finest(rows: list[int], largest: int, budget: int, least: int) -> int:
    """The smallest side in cells, from `least` up, of which `budget` squares cover all marked cells."""
    low, high = least - 1, max(largest, least)
    while high - low > 1:
        middle = (low + high) // 2
        if len(cover(rows, middle, budget)) <= budget:
            high = middle
        else:
            low = middle
    return high


def draw_view(
    page: PageInk,
    budget: int,
    answer: Sequence[Box],
    asked: Sequence[Box],
    words: Floats,
    rng: np.random.Generator,
    kinds: dict[str, float] = VIEW_KINDS,
) -> ReaderView | None:
    """A random view of `budget` tokens; None if that kind of view is impossible here.

    answer: boxes of the answer
    asked:  those, and the boxes of what the question names
    words:  (N, 4), boxes of all words
    """
    drawn = {kind: share for kind, share in kinds.items() if kind != AHEAD}
    shares = np.array(list(drawn.values()))
    kind = str(rng.choice(list(drawn), p=shares / shares.sum()))
    places = relevant_places(page, answer, asked, words, rng, hit=kind == "oracle" or rng.random() < HIT)
    found: list[Box] | None
    if kind == "resize":
        found = resized_boxes(page.size, budget)
    elif kind == "one scale":  # a full grid off the origin, blank cells left out
        found = _moved(page.fitted(budget), rng)
    elif kind == "fit":
        found = page.fitted(max(4, int(budget * rng.choice((1.0, 0.92, 0.75)))))
    else:
        if kind == "oracle":
            places = [(_grown(box, rng), 1.0) for box in asked]
        found = layered_boxes(page, places, answer, budget, rng)
    if not found:
        return None
    ranked = sorted(zip(found, relevance(found, places, rng).tolist()), key=lambda one: -one[1])[:budget]
    if kind != "one scale":
        ranked = use_all(ranked, budget=budget, patch=page.patch)
    return as_view([box for box, _ in ranked], page.magnified, kind)


def resized_boxes(size: tuple[int, int], budget: int) -> list[Box]:
    """The whole page as a grid of at most `budget` tokens, nearly square."""
    height, width = size
    columns = max(1, int(np.sqrt(budget * width / height)))
    rows = max(1, budget // columns)
    across, down = width / columns, height / rows
    return [
        (column * across, row * down, (column + 1) * across, (row + 1) * down)
        for row in range(rows)
        for column in range(columns)
    ]


def layered_boxes(
    page: PageInk, places: Boxes, answer: Sequence[Box], budget: int, rng: np.random.Generator
) -> list[Box] | None:
    """A fine layer over the places, as far as a share of the budget goes, and all other ink coarsely."""
    height = float(np.median([box[3] - box[1] for box in answer]))
    wanted = np.exp(rng.uniform(np.log(SMALLEST_TYPE), np.log(LARGEST_TYPE)))
    span = max(page.least, int(max(page.patch, TOKEN_SIDE * height / wanted) / page.cell + 1e-6))
    most = int(budget * rng.uniform(0.15, 0.8))
    marked = np.zeros_like(page.ink)
    above: list[tuple[int, int]] = []
    for (x0, y0, x1, y1), _ in places:
        tried = marked.copy()
        rows = slice(int(y0 / page.cell), int(np.ceil(y1 / page.cell)))
        tried[rows, int(x0 / page.cell) : int(np.ceil(x1 / page.cell))] = True
        squares = cover(rows_of(tried & page.ink), span, most)
        if len(squares) <= most:
            marked, above = tried, squares
    if not above:
        return None
    rest = page.ink.copy()
    for row, column in above:
        rest[row : row + span, column : column + span] = False
    spent = rng.uniform(0.85, 1.0) if rng.random() < 0.7 else rng.uniform(0.1, 0.5)
    left = rows_of(rest)
    floor = finest(left, max(rest.shape), max(int((budget - len(above)) * spent), 4), span)
    return page.boxes(above, span) + page.boxes(cover(left, floor, _EVERY), floor)


def relevant_places(
    page: PageInk, answer: Sequence[Box], asked: Sequence[Box], words: Floats, rng: np.random.Generator, *, hit: bool
) -> Boxes:
    """Places with masses, best first, as a chooser might find them: some words at random, and if `hit` the answer."""
    chosen = [(tuple(map(float, words[index])), 0.0) for index in rng.integers(len(words), size=rng.integers(1, 6))]
    if hit:
        chosen += [(box, 0.7) for box in (asked if rng.random() < 0.6 else answer)]
    places = [(_clipped(_grown(box, rng), page.size), float(np.exp(rng.normal() * 0.8 + more))) for box, more in chosen]
    return sorted(places, key=lambda one: -one[1])


def _grown(box: Sequence[float], rng: np.random.Generator) -> Box:
    x0, y0, x1, y1 = box
    height = min(y1 - y0, 40.0)
    across, down = height * rng.uniform(0.2, 5), height * rng.uniform(0.1, 2)
    dx, dy = rng.normal() * height * 0.6, rng.normal() * height * 0.3
    return (x0 - across + dx, y0 - down + dy, x1 + across + dx, y1 + down + dy)


def _clipped(box: Box, size: tuple[int, int]) -> Box:
    return (max(0.0, box[0]), max(0.0, box[1]), min(float(size[1]), box[2]), min(float(size[0]), box[3]))


def _moved(boxes: Sequence[Box], rng: np.random.Generator) -> list[Box]:
    dx, dy = rng.uniform(-8, 8, 2)
    return [(x0 + dx, y0 + dy, x1 + dx, y1 + dy) for x0, y0, x1, y1 in boxes]


def relevance(boxes: Sequence[Box], places: Boxes, rng: np.random.Generator) -> NDArray[np.float64]:
    """The mass of the places that each box holds; ties are broken at random."""
    table = np.array(boxes, np.float64).reshape(-1, 4)
    score = rng.random(len(table)) * 1e-4
    for (x0, y0, x1, y1), mass in places:
        wide = np.minimum(table[:, 2], x1) - np.maximum(table[:, 0], x0)
        tall = np.minimum(table[:, 3], y1) - np.maximum(table[:, 1], y0)
        area = max((x1 - x0) * (y1 - y0), 1.0)
        score += np.clip(wide, 0, None) * np.clip(tall, 0, None) / area * mass
    return score


def as_view(boxes: Sequence[Box] | Floats, magnified: float, kind: str) -> ReaderView:
    """Boxes as tokens, in the order in which a model gets them: any other order would tell which ones matter."""
    table = np.array(boxes, np.float32).reshape(-1, 4)
    centre, step = (table[:, :2] + table[:, 2:]) / 2, (table[:, 2:] - table[:, :2]) / TOKEN_SIDE
    level = np.clip(np.rint(np.log2(step.min(1) * magnified)), COARSEST - LEVELS + 1, COARSEST)
    order = np.lexsort((centre[:, 0], centre[:, 1], -level))
    tokens = np.concatenate([centre, step], 1)[order]
    return ReaderView(tokens.astype(np.float32), level[order].astype(np.int8), magnified, kind)


def legible_height(tokens: Floats, answer: Sequence[Box]) -> float:
    """Samples over the height of the answer where it is seen worst; 0 if a part of it is not seen."""
    least = np.inf
    for x0, y0, x1, y1 in answer:
        middle = (y0 + y1) / 2
        for share in (0.15, 0.5, 0.85):
            x = x0 + share * (x1 - x0)
            near = np.abs(tokens[:, :2] - (x, middle)) <= tokens[:, 2:] * (TOKEN_SIDE / 2)
            seen = tokens[near.all(1), 2:]
            if not len(seen):
                return 0.0
            least = min(least, (y1 - y0) / np.maximum(seen[:, 0] * 0.8, seen[:, 1]).min())
    return float(least)


class Chooser:
    """The package's own choosers on one page.

    patch: pixels of the finest token; one below TOKEN_SIDE stands for a page that has more pixels
    """

    def __init__(self, image: Any, patch: int = TOKEN_SIDE) -> None:
        from texturevlm.types import Texture

        self.texture, self.patch = Texture.open(image).mipmapped(), patch
        self._prepared: dict[str, Any] = {}

    def view(self, question: str, budget: int, scorer: str, allocator: str) -> ReaderView:
        return as_view(self.boxes(question, budget, scorer, allocator), TOKEN_SIDE / self.patch, scorer)

    def boxes(self, question: str, budget: int, scorer: str, allocator: str, finer: float = 1.0) -> Floats:
        """(n, 4), xyxy in pixels. finer: how many times as finely as OCR print must be seen"""
        from texturevlm.placement import choose_tokens
        from texturevlm.relevance import Balance
        from texturevlm.relevance.prepared import Prepared

        if scorer not in self._prepared:
            self._prepared[scorer] = Prepared(self.texture, patch=self.patch, scorer=scorer)
        prepared = self._prepared[scorer]
        found = choose_tokens(
            self.texture,
            question,
            budget=budget,
            patch=self.patch,
            allocator=allocator,
            relevance=prepared,
            balance=Balance(particularise=finer),
        )
        boxes: Floats = found.boxes[0][found.valid[0]].numpy()
        return boxes
