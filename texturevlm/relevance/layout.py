"""The layout of a page: the positions of words and lines, and word features that do not depend on the question."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from texturevlm.relevance.ocr import Page
from texturevlm.text.strings import KINDS, STOP, kinds, plain

WORD_MARGIN = 0.25  # of a line's height, added on each side of a word: OCR's boxes are inexact
SHAPE_FEATURES = (
    "letters", "digits", "capitals", "title_case", "small", "colon", "stop", "length", "initial", "bracket",
    "after_colon", "named",
)  # fmt: skip
PLACE_FEATURES = (
    "x", "y", "height", "order", "line_words", "line_place", "line_first", "line_last", "alone", "sure", "crowd",
    "centred", "turned", "height_rank", "first_lines", "last_lines",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class PageLayout:
    """Properties of a page's N words that do not depend on the question; each is computed at first use."""

    page: Page

    @cached_property
    def boxes(self) -> np.ndarray:
        """(N, 4)."""
        return np.array([word.box for word in self.page.words], dtype=np.float32).reshape(-1, 4)

    @cached_property
    def line(self) -> np.ndarray:
        """(N,): the index of each word's line, from 0 without gaps."""
        numbers = np.array([word.line for word in self.page.words], dtype=np.int64)
        return np.unique(numbers, return_inverse=True)[1].reshape(-1)

    @cached_property
    def plain(self) -> list[str]:
        return [plain(word.text) for word in self.page.words]

    @cached_property
    def vocabulary(self) -> tuple[list[str], np.ndarray]:
        """The distinct words, and the index (N,) of each word among them."""
        different, which = np.unique(np.array(self.plain, dtype=object), return_inverse=True)
        return list(different), which.reshape(-1)

    @cached_property
    def unit(self) -> float:
        """The height of ordinary text."""
        return float(max(np.median(self.heights), 1.0)) if len(self.boxes) else 1.0

    @cached_property
    def heights(self) -> np.ndarray:
        """(N,): the height of each word's letters; in a vertical line, the width of the line."""
        height = self.boxes[:, 3] - self.boxes[:, 1]
        heights: np.ndarray = np.maximum(np.where(self.turned, self.line_box[:, 2] - self.line_box[:, 0], height), 1.0)
        return heights

    @cached_property
    def turned(self) -> np.ndarray:
        """(N,): whether the word's line is vertical; a line of one or two letters never is."""
        letters = np.bincount(self.line, [len(word.text) for word in self.page.words])[self.line]
        across, down = self.line_box[:, 2] - self.line_box[:, 0], self.line_box[:, 3] - self.line_box[:, 1]
        turned: np.ndarray = (down > 1.5 * across) & (letters > 2)
        return turned

    @cached_property
    def line_box(self) -> np.ndarray:
        """(N, 4): the box of each word's line."""
        box = np.full((self.line.max(initial=-1) + 1, 4), np.inf, dtype=np.float32)
        box[:, 2:] = -np.inf
        for edge in range(4):
            (np.minimum if edge < 2 else np.maximum).at(box[:, edge], self.line, self.boxes[:, edge])
        of_words: np.ndarray = box[self.line]
        return of_words

    @cached_property
    def areas(self) -> np.ndarray:
        """(N,): the area of each word's box with WORD_MARGIN around it, in squares of the height of ordinary text."""
        margin = 2 * WORD_MARGIN * self.heights
        sides = self.boxes[:, 2:] - self.boxes[:, :2] + margin[:, None]
        areas: np.ndarray = sides.prod(1) / self.unit**2
        return areas

    @cached_property
    def columns(self) -> dict[str, np.ndarray]:
        """The features that do not depend on the question, each (N,)."""
        return {**self._kinds(), **self._shapes(), **self._places()}

    def _kinds(self) -> dict[str, np.ndarray]:
        found = np.zeros((len(self.boxes), len(KINDS)), dtype=np.float32)
        of_line = found.copy()
        for members in self.members:
            found[members] = kinds([self.page.words[index].text for index in members])
            of_line[members] = found[members].mean(0)
        columns = {f"kind_{name}": found[:, index] for index, name in enumerate(KINDS)}
        return columns | {f"line_{name}": of_line[:, index] for index, name in enumerate(KINDS)}

    @cached_property
    def members(self) -> list[np.ndarray]:
        """The indices of the words of each line."""
        order = np.argsort(self.line, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(self.line[order])) + 1) if len(order) else []

    def _shapes(self) -> dict[str, np.ndarray]:
        texts = [word.text for word in self.page.words]
        size = np.array([max(len(text), 1) for text in texts], dtype=np.float32)
        capital = np.array([text[:1].isupper() for text in texts], dtype=np.float32)
        small = np.array([text.islower() for text in texts], dtype=np.float32)
        stop = np.array([text in STOP for text in self.plain], dtype=np.float32)
        colon = np.array([text.endswith((":", "：")) for text in texts], dtype=np.float32)
        after, named = np.zeros_like(colon), np.zeros_like(colon)
        for members in self.members:
            before = np.cumsum(colon[members]) - colon[members]
            after[members] = before > 0
            titled = capital[members] * (1 - stop[members])
            beside = np.maximum(np.append(titled[1:], 0), np.insert(titled[:-1], 0, 0))
            named[members] = titled * beside
        values = (
            np.array([sum(map(str.isalpha, text)) for text in texts]) / size,
            np.array([sum(map(str.isdigit, text)) for text in texts]) / size,
            np.array([text.isupper() for text in texts]),
            np.array([text[:1].isupper() and text[1:].islower() for text in texts]),
            small, colon, stop, np.log(size) / 3,
            np.array([len(text) == 1 and text.isalpha() for text in self.plain]) * capital,
            np.array(["(" in text or ")" in text for text in texts]),
            after, named,
        )  # fmt: skip
        return {f"shape_{name}": np.asarray(value, dtype=np.float32) for name, value in zip(SHAPE_FEATURES, values)}

    def _places(self) -> dict[str, np.ndarray]:
        count = len(self.boxes)
        height, width = self.page.size
        centre = (self.boxes[:, :2] + self.boxes[:, 2:]) / 2
        order, words = np.zeros(count), np.zeros(count)
        for members in self.members:
            order[members], words[members] = np.arange(len(members)), len(members)
        middles = np.sort(centre[:, 1])
        low, high = (np.searchsorted(middles, centre[:, 1] + side * 0.6 * self.unit) for side in (-1, 1))
        beside = np.maximum(high - low - words, 0)  # words of other lines at the same height
        tall = self.heights / self.unit
        box = self.line_box
        values = (
            centre[:, 0] / width, centre[:, 1] / height, np.log2(tall), np.arange(count) / max(count, 1),
            np.log2(1 + words) / 4, order / np.maximum(words, 1), order == 0, order == words - 1, words == 1,
            [word.confidence for word in self.page.words], np.log2(1 + beside) / 4,
            np.abs((box[:, 0] + box[:, 2]) / 2 / width - 0.5) < 0.06,
            self.turned,
            (np.argsort(np.argsort(-tall, kind="stable")) / max(count, 1)),
            np.exp(-self.line / 3.0), np.exp(-(self.line.max(initial=0) - self.line) / 3.0),
        )  # fmt: skip
        return {f"place_{name}": np.asarray(value, dtype=np.float32) for name, value in zip(PLACE_FEATURES, values)}


@lru_cache(maxsize=8)
def layout_of(page: Page) -> PageLayout:
    """Cached, since several questions are asked about one page."""
    return PageLayout(page)
