"""The layout of a page: the positions of words and lines, and word features that do not depend on the question."""

from __future__ import annotations

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


class PageLayout:
    """Properties of a page's N words that do not depend on the question.

    boxes:   (N, 4); line: (N,), the index of each word's line, from 0 without gaps
    members: the indices of the words of each line; line_box: (N, 4), the box of each word's line
    turned:  (N,), whether the word's line is vertical; a line of one or two letters never is
    heights: (N,), of each word's letters; in a vertical line, the width of the line; unit: that of ordinary text
    areas:   (N,), of each word's box with WORD_MARGIN around it, in squares of `unit`
    """

    def __init__(self, page: Page) -> None:
        self.page, words = page, page.words
        self.boxes = np.array([word.box for word in words], dtype=np.float32).reshape(-1, 4)
        numbers = np.array([word.line for word in words], dtype=np.int64)
        self.line: np.ndarray = np.unique(numbers, return_inverse=True)[1].reshape(-1)
        order = np.argsort(self.line, kind="stable")
        self.members = np.split(order, np.flatnonzero(np.diff(self.line[order])) + 1) if len(order) else []
        self.line_box = np.zeros_like(self.boxes)
        for members in self.members:
            box = self.boxes[members]
            self.line_box[members] = (*box[:, :2].min(0), *box[:, 2:].max(0))
        across, down = (self.line_box[:, 2:] - self.line_box[:, :2]).T
        letters = np.bincount(self.line, [len(word.text) for word in words])[self.line]
        self.turned: np.ndarray = (down > 1.5 * across) & (letters > 2)
        upright = self.boxes[:, 3] - self.boxes[:, 1]
        self.heights: np.ndarray = np.maximum(np.where(self.turned, across, upright), 1.0)
        self.unit = float(max(np.median(self.heights), 1.0)) if len(words) else 1.0
        sides = self.boxes[:, 2:] - self.boxes[:, :2] + (2 * WORD_MARGIN * self.heights)[:, None]
        self.areas: np.ndarray = sides.prod(1) / self.unit**2

    @cached_property
    def plain(self) -> list[str]:
        """The words as `strings.plain` makes them."""
        return [plain(word.text) for word in self.page.words]

    @cached_property
    def vocabulary(self) -> tuple[list[str], np.ndarray]:
        """The distinct words, and the index (N,) of each word among them."""
        different, which = np.unique(np.array(self.plain, dtype=object), return_inverse=True)
        return list(different), which.reshape(-1)

    @cached_property
    def columns(self) -> dict[str, np.ndarray]:
        """The features that do not depend on the question, each (N,)."""
        found = np.zeros((len(self.boxes), len(KINDS)), dtype=np.float32)
        of_line = found.copy()
        for members in self.members:
            found[members] = kinds([self.page.words[index].text for index in members])
            of_line[members] = found[members].mean(0)
        columns = {f"kind_{name}": found[:, index] for index, name in enumerate(KINDS)}
        columns |= {f"line_{name}": of_line[:, index] for index, name in enumerate(KINDS)}
        columns |= {f"shape_{name}": value for name, value in zip(SHAPE_FEATURES, self._shapes())}
        columns |= {f"place_{name}": value for name, value in zip(PLACE_FEATURES, self._places())}
        return {name: np.asarray(value, dtype=np.float32) for name, value in columns.items()}

    def _shapes(self) -> tuple[np.ndarray, ...]:
        texts = [word.text for word in self.page.words]
        size = np.array([max(len(text), 1) for text in texts], dtype=np.float32)
        capital = np.array([text[:1].isupper() for text in texts], dtype=np.float32)
        stop = np.array([text in STOP for text in self.plain], dtype=np.float32)
        colon = np.array([text.endswith((":", "：")) for text in texts], dtype=np.float32)
        after, named = np.zeros_like(colon), np.zeros_like(colon)
        for members in self.members:
            after[members] = np.cumsum(colon[members]) - colon[members] > 0
            titled = capital[members] * (1 - stop[members])
            named[members] = titled * np.maximum(np.append(titled[1:], 0), np.insert(titled[:-1], 0, 0))
        return (
            np.array([sum(map(str.isalpha, text)) for text in texts]) / size,
            np.array([sum(map(str.isdigit, text)) for text in texts]) / size,
            np.array([text.isupper() for text in texts]),
            np.array([text[:1].isupper() and text[1:].islower() for text in texts]),
            np.array([text.islower() for text in texts]), colon, stop, np.log(size) / 3,
            np.array([len(text) == 1 and text.isalpha() for text in self.plain]) * capital,
            np.array(["(" in text or ")" in text for text in texts]),
            after, named,
        )  # fmt: skip

    def _places(self) -> tuple[np.ndarray, ...]:
        count, (height, width) = len(self.boxes), self.page.size
        centre = (self.boxes[:, :2] + self.boxes[:, 2:]) / 2
        order, words = np.zeros(count), np.zeros(count)
        for members in self.members:
            order[members], words[members] = np.arange(len(members)), len(members)
        middles = np.sort(centre[:, 1])
        low, high = (np.searchsorted(middles, centre[:, 1] + side * 0.6 * self.unit) for side in (-1, 1))
        beside = np.maximum(high - low - words, 0)  # words of other lines at the same height
        tall = self.heights / self.unit
        return (
            centre[:, 0] / width, centre[:, 1] / height, np.log2(tall), np.arange(count) / max(count, 1),
            np.log2(1 + words) / 4, order / np.maximum(words, 1), order == 0, order == words - 1, words == 1,
            np.array([word.confidence for word in self.page.words]), np.log2(1 + beside) / 4,
            np.abs((self.line_box[:, 0] + self.line_box[:, 2]) / 2 / width - 0.5) < 0.06, self.turned,
            np.argsort(np.argsort(-tall, kind="stable")) / max(count, 1),
            np.exp(-self.line / 3.0), np.exp(-(self.line.max(initial=0) - self.line) / 3.0),
        )  # fmt: skip


@lru_cache(maxsize=8)
def layout_of(page: Page) -> PageLayout:
    """Cached, since several questions are asked about one page."""
    return PageLayout(page)
