"""Named features of every word of a page, given a question: what makes a word likely to be the answer.

PageLayout has the positions of words and lines, and the features that do not depend on the question. A word of the
question that occurs on the page is a label. Answers are right of a label, below it, in its table row or column, or next
in reading order. Each such relation is a kernel between two boxes, in units of the label's height. For each relation, a
word's feature is the share of the question whose labels have that relation to the word. Rare words of the question
count more.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from texturevlm.relevance.ocr import Page
from texturevlm.text import ASKED, KINDS, STOP, asked_kinds, kinds, plain, terms, word_similarity

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


MOST_LABELS = 200  # the best matches on a page; more cost time and add nothing
MATCHED = 0.3  # similarity from which a word counts as a label
STOP_WEIGHT = 0.05  # weight of a stop word; other words have up to 1

RELATIONS = (
    "right", "row", "below", "column", "above", "left", "near", "around", "after", "before", "line", "next",
)  # fmt: skip
LABELLED = ("right", "below", "near", "after", "first_right", "first_below", "above", "left", "line")
FITS = {
    "date": ("date", "year"), "year": ("year", "date"), "time": ("time",), "money": ("money", "number"),
    "percent": ("percent", "number"), "count": ("number",), "code": ("code", "number"), "phone": ("phone",),
    "link": ("link",), "person": ("honour",), "firm": ("firm",), "place": ("street",),
    "page": ("number",),
}  # fmt: skip
NUMERIC = ("date", "year", "time", "money", "percent", "count", "code", "phone", "page")
FEATURE_NAMES = (
    *(f"share_{name}" for name in RELATIONS), "share_any", "share_table", "share_crossing",
    *(f"label_{name}" for name in LABELLED), "is_label", "label_weight", "line_is_label", "repeated",
    *(f"kind_{name}" for name in KINDS), *(f"line_{name}" for name in KINDS),
    *(f"shape_{name}" for name in SHAPE_FEATURES), *(f"place_{name}" for name in PLACE_FEATURES),
    *(f"asks_{name}" for name in ASKED), "asks_nothing", "found", "labels", "words",
    *(f"fits_{name}" for name in FITS), "fits_number", "misfits_number", "fits_title", "fits_name",
    "fits_top", "fits_bottom", "fits_right", "fits_left",
)  # fmt: skip


def word_features(page: Page, question: str, commonness: Mapping[str, float]) -> np.ndarray:
    """(N, len(FEATURE_NAMES)) float32: the features of every word of the page.

    commonness: how common words are in questions, 0 to 1; common words count less
    """
    layout = layout_of(page)
    count = len(layout.boxes)
    wanted = dict(zip(ASKED, asked_kinds(question)))
    columns: dict[str, Any] = layout.columns | _evidence(layout, question, commonness) | _fits(layout.columns, wanted)
    columns |= {f"asks_{name}": value for name, value in wanted.items()}
    columns |= {"asks_nothing": not any(wanted.values()), "words": np.log10(1 + count) / 3}
    return np.stack([np.broadcast_to(columns[name], count) for name in FEATURE_NAMES], 1).astype(np.float32)


def _fits(columns: dict[str, np.ndarray], wanted: dict[str, float]) -> dict[str, np.ndarray]:
    """Whether a word has the kind that the question asks for."""
    numeric = max(wanted[name] for name in NUMERIC)
    digits = (columns["shape_digits"] > 0).astype(np.float32)
    big, top, bottom = columns["place_height"], columns["place_first_lines"], columns["place_last_lines"]
    return {
        f"fits_{name}": wanted[name] * np.maximum.reduce([columns[f"kind_{kind}"] for kind in fitting])
        for name, fitting in FITS.items()
    } | {
        "fits_number": numeric * digits,
        "misfits_number": numeric * (1 - digits),
        "fits_title": wanted["title"] * (big + top),
        "fits_name": max(wanted["person"], wanted["firm"], wanted["place"]) * columns["shape_named"],
        "fits_top": wanted["top"] * top,
        "fits_bottom": wanted["bottom"] * bottom,
        "fits_right": wanted["right"] * columns["place_x"],
        "fits_left": wanted["left"] * (1 - columns["place_x"]),
    }


def _evidence(layout: PageLayout, question: str, commonness: Mapping[str, float]) -> dict[str, Any]:
    """The share of the question in each relation to each word."""
    alike, weight = _matched(layout, question, commonness)
    found = float((weight * alike.max(1, initial=0.0)).sum())
    share = weight / max(found, 1e-6)
    strength = (alike * share[:, None]).max(0, initial=0.0)  # of each page word as a label
    run = runs(layout, alike, share)
    labels = np.flatnonzero((alike * (weight > 0.4 * STOP_WEIGHT)[:, None]).max(0, initial=0.0) > MATCHED)
    if len(labels) > MOST_LABELS:
        labels = np.sort(labels[np.argsort(-strength[labels], kind="stable")[:MOST_LABELS]])
    kernel = relations(layout, labels)
    parts = {name: _collected(alike[:, labels], kernel[name]) for name in RELATIONS}
    columns = {f"share_{name}": share @ part for name, part in parts.items()}
    columns["share_any"] = share @ np.maximum.reduce([parts[name] for name in ("right", "below", "near", "after")])
    columns["share_table"] = share @ np.maximum.reduce([parts[name] for name in ("row", "column", "line")])
    columns["share_crossing"] = columns["share_table"] - np.maximum(columns["share_row"], columns["share_column"])
    for name in LABELLED:
        columns[f"label_{name}"] = (run[labels, None] * kernel[name]).max(0, initial=0.0)
    of_line = np.zeros_like(strength)
    for members in layout.members:
        of_line[members] = share @ alike[:, members].max(1, initial=0.0)
    which = layout.vocabulary[1]
    return columns | {
        "is_label": strength,
        "label_weight": run,
        "line_is_label": of_line,
        "repeated": np.log2(np.bincount(which, minlength=1)[which]) / 4,
        "found": found / max(float(weight.sum()), 1e-6),
        "labels": np.log2(1 + len(labels)) / 8,
    }


def _matched(layout: PageLayout, question: str, commonness: Mapping[str, float]) -> tuple[np.ndarray, np.ndarray]:
    """The similarity (terms, N) of the page's words to the question's, and the weight (terms,) of each term."""
    asked_terms = terms(question)
    vocabulary, which = layout.vocabulary
    alike = word_similarity([term for term, _ in asked_terms], vocabulary)[:, which]
    rarity = [STOP_WEIGHT if term in STOP else 1.0 - 0.9 * commonness.get(term, 0.0) for term, _ in asked_terms]
    weight = np.array([emphasis * rare for (_, emphasis), rare in zip(asked_terms, rarity)], dtype=np.float32)
    words = max(len(layout.boxes), 1)
    return alike, weight * np.log1p(words / (1 + (alike > 0.6).sum(1))) / np.log1p(words)


def _collected(alike: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """(terms, labels) and (labels, N) → (terms, N): the maximum over labels, per term and word."""
    collected = np.zeros((alike.shape[0], kernel.shape[1]), dtype=np.float32)
    for term, row in enumerate(alike):
        matched = np.flatnonzero(row > MATCHED)
        if len(matched):
            collected[term] = (row[matched, None] * kernel[matched]).max(0)
    return collected


def runs(layout: PageLayout, alike: np.ndarray, share: np.ndarray) -> np.ndarray:
    """(N,): the share of the question in the run of labels that a word is part of.

    A run is a part of a line whose words are words of the question in the same order, with at most one gap at a time.
    """
    total = np.zeros(alike.shape[1], dtype=np.float32)
    if not len(share):
        return total
    term = (alike * (share + 1e-4)[:, None]).argmax(0)
    value = np.take_along_axis(alike, term[None], 0)[0]
    for members in layout.members:
        current: list[int] = []
        skipped = False
        for index in (*members, None):
            label = index is not None and value[index] > MATCHED
            if index is not None and current and not label and not skipped:
                skipped = True
                continue
            if not (label and current and 0 < term[index] - term[current[-1]] <= 3):  # the run ends here
                total[current] = float((share[term[current]] * value[current]).sum())
                current = []
            current, skipped = [*current, index] if label else [], False
    return total


def relations(layout: PageLayout, labels: np.ndarray) -> dict[str, np.ndarray]:
    """Each (labels, N), 0 to 1: how strongly a word is in that relation to a label."""
    box, line = layout.boxes, layout.line
    unit = layout.heights[labels][:, None]
    x0, y0, x1, y1 = (box[labels, edge][:, None] for edge in range(4))
    right, left = (box[:, 0] - x1) / unit, (x0 - box[:, 2]) / unit
    below, above = (box[:, 1] - y1) / unit, (y0 - box[:, 3]) / unit
    beside = np.maximum(np.maximum(right, left), 0)
    apart = np.maximum(np.maximum(below, above), 0)
    middle = np.abs((box[:, 1] + box[:, 3]) - (y0 + y1)) / 2 / unit
    same_row = middle < 0.7
    same_column = (np.minimum(box[:, 2], x1) - np.maximum(box[:, 0], x0) > 0) | (np.abs(box[:, 0] - x0) < unit)
    under, over = same_column & (below > -0.5), same_column & (above > -0.5)
    order = np.arange(len(box))
    later = order - labels[:, None]
    kernel = {
        "right": same_row * (right > -0.5) * np.exp(-np.maximum(right, 0) / 8),
        "row": same_row / (1 + beside / 30),
        "below": under * np.exp(-np.maximum(below, 0) / 3),
        "column": under / (1 + np.maximum(below, 0) / 30),
        "above": over * np.exp(-np.maximum(above, 0) / 2),
        "left": same_row * (left > -0.5) * np.exp(-np.maximum(left, 0) / 4),
        "near": np.exp(-beside / 10 - apart / 2),
        "around": np.exp(-beside / 40 - apart / 8),
        "after": (later > 0) * np.exp(-np.maximum(later, 0) / 10),
        "before": (later < 0) * np.exp(np.minimum(later, 0) / 10),
        "line": line == line[labels][:, None],
        "next": (line == line[labels][:, None] + 1) & (apart < 2),
    }
    kernel["first_right"] = _first(layout, kernel["right"] > 0, right, labels)
    kernel["first_below"] = _first(layout, under & ~same_row, below, labels)
    itself = order == labels[:, None]
    return {name: np.where(itself, 0.0, value).astype(np.float32) for name, value in kernel.items()}


def _first(layout: PageLayout, eligible: np.ndarray, distance: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """(labels, N): 1 for the words of the nearest other line among the eligible words."""
    other = eligible & (layout.line != layout.line[labels][:, None])
    if not other.size:
        return np.zeros(other.shape)
    target = layout.line[np.where(other, distance, np.inf).argmin(1)]
    first: np.ndarray = (layout.line == target[:, None]) & other.any(1, keepdims=True)
    return first
