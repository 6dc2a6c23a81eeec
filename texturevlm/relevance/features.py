"""Named features of every word of a page, given a question: what makes a word likely to be the answer.

A word of the question that occurs on the page is a label. Answers are right of a label, below it, in its table row or
column, or next in reading order. Each such relation is a kernel between two boxes, in units of the label's height. For
each relation, a word's feature is the share of the question whose labels have that relation to the word. Rare words of
the question count more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from texturevlm.relevance.layout import PLACE_FEATURES, SHAPE_FEATURES, PageLayout, layout_of
from texturevlm.relevance.ocr import Page
from texturevlm.text.strings import ASKED, KINDS, STOP, asked_kinds, terms, word_similarity

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
