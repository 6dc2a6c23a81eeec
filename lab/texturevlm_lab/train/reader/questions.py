"""Questions with answers and boxes: from what a rendered page remembers, and from words and labels on any page."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from texturevlm.allocate.footprints import Box
from texturevlm_lab.train.render.sheet import PlacedEntry, PlacedWord

_WORDING: dict[str, Any] = tomllib.loads(files(__package__).joinpath("wording.toml").read_text(encoding="utf-8"))
LABELS: list[str] = _WORDING["labels"]
NAMED = ("field", "leader", "item", "sum", "cell")  # kinds that are asked for by their label
PLACE_KINDS = ("after", "row", "below", "line")  # kinds that are asked for by their place
TOP = "top"  # the kind of what is read where nothing is asked
_SHORTEST = 3  # characters of what a question names
_FOLLOWING = 3  # words of what follows
_LONGEST_LABEL = 6  # words of a label
_FARTHEST = 20  # heights of a label between it and its value
_WIDEST_GAP = 3.5  # heights between a number of a column and what stands over it
_LONGEST_HEAD = 4  # words of the head of a column
_YEAR = re.compile(r"(?:19|20)\d\d")
_RATE = re.compile(r"\s*\(?\d[\d.,]*\s*%\)?")  # "VAT 19 %", "Tax (8.5%)"
_NUMBER = re.compile(r"\b(?:[Nn]umber|NUMBER|[Nn]o\b\.?|NO\b\.?)|#")
TextLine = list[int]  # numbers of words, from left to right


class ReaderQuestion(NamedTuple):
    """text and answer; the boxes of the answer; those of what the question names."""

    kind: str
    text: str
    answer: str
    boxes: tuple[Box, ...]
    named: tuple[Box, ...] = ()


def entry_questions(
    words: Sequence[PlacedWord], entries: Sequence[PlacedEntry], rng: np.random.Generator, *, wording: str = "asked"
) -> list[ReaderQuestion]:
    """A question per entry that has one answer on its page; `wording`: asked or held_out."""
    text = [(entry.kind, *(_name(words, part) for part in entry[1:])) for entry in entries]
    keys = [(kind, label.lower(), head.lower()) if kind in NAMED else (kind,) for kind, label, _, head in text]
    count = Counter(keys)
    found = []
    for entry, key, (kind, label, _, head) in zip(entries, keys, text):
        forms = _WORDING[wording].get(kind)
        if count[key] > 1 or not forms or (kind in NAMED and len(label) < 2) or (kind == "cell" and not head):
            continue
        asked = str(rng.choice(forms)).format(label=_cased(_called(label, rng), rng), head=_cased(head, rng))
        boxes, named = _boxes(words, entry.value), _boxes(words, entry.label + entry.head)
        found.append(ReaderQuestion(kind, asked, _text(words, entry.value), boxes, named))
    return found


def place_questions(
    words: Sequence[PlacedWord], lines: Sequence[TextLine], rng: np.random.Generator, count: int
) -> Iterator[ReaderQuestion]:
    """`count` tries of questions about what stands where: after, right of, below, and the line that begins with."""
    texts = Counter(_text(words, line).lower() for line in lines)
    for _ in range(count if lines else 0):
        kind = str(rng.choice(PLACE_KINDS))
        line = lines[int(rng.integers(len(lines)))]
        if kind == "line":
            label = line[: int(rng.integers(1, 3))]
            value = line if len(line) > len(label) else []
        elif kind == "after":
            start = int(rng.integers(len(line)))
            end = start + int(rng.integers(1, 3))
            label, value = line[start:end], line[end:]
        else:
            label, value = line, _beside(words, lines, line, below=kind == "below")
        name = _name(words, label)
        if not value or len(name) < _SHORTEST or (kind in ("row", "below") and texts[_text(words, line).lower()] > 1):
            continue
        form = str(rng.choice(_WORDING["asked"][kind]))
        if kind == "after":
            if len(value) > _FOLLOWING:
                form = _WORDING["asked"]["after"][-1]
            value = value[:1] if "next word" in form else value
        asked = form.format(label=_cased(name, rng))
        yield ReaderQuestion(kind, asked, _text(words, value), _boxes(words, value), _boxes(words, label))


def top_question(words: Sequence[PlacedWord], lines: Sequence[TextLine]) -> ReaderQuestion:
    """No question at all: a reader answers with the topmost line."""
    line = min(lines, key=lambda line: _around(words, line)[1])
    return ReaderQuestion(TOP, "", _text(words, line), _boxes(words, line))


def labelled_questions(
    words: Sequence[PlacedWord], asked: Sequence[ReaderQuestion], rng: np.random.Generator
) -> list[ReaderQuestion]:
    """Questions about what stands right of a label that ends with a colon, as forms and letters have them.

    asked: questions of the page; what they ask for is not asked for again
    """
    lines, found, count, taken = lines_of(words), [], Counter[str](), _answer_boxes(asked)
    for line in lines:
        colon = next((at for at, number in enumerate(line) if words[number][0].endswith(":")), None)
        if colon is None:
            continue
        label = line[: colon + 1]
        value = line[colon + 1 :] or _beside(words, lines, line, below=False)
        name, answer = _name(words, label), _text(words, value)
        count[name.lower()] += 1
        if len(name) < 2 or len(label) > _LONGEST_LABEL or ":" in answer or not any(map(str.isalnum, answer)):
            continue
        (_, top, right, bottom), left = words[label[-1]][1], words[value[0]][1][0]
        if left - right <= _FARTHEST * (bottom - top) and not _is_asked(_boxes(words, value), taken):
            found.append((name, answer, label, value))
    return [
        ReaderQuestion(
            "field",
            str(rng.choice(_WORDING["asked"]["field"])).format(label=_cased(_called(name, rng), rng)),
            answer,
            _boxes(words, value),
            _boxes(words, label),
        )
        for name, answer, label, value in found
        if count[name.lower()] == 1
    ]


def table_questions(
    words: Sequence[PlacedWord], asked: Sequence[ReaderQuestion], rng: np.random.Generator
) -> list[ReaderQuestion]:
    """Questions about numbers that stand right of a label: the only one of its row, or one under the head of a column.

    asked: as in `labelled_questions`
    """
    lines, found, count, taken = lines_of(words), [], Counter[tuple[str, str]](), _answer_boxes(asked)
    figures = [line for line in lines if _is_figure(_text(words, line))]
    texts = Counter(_name(words, line).lower() for line in lines)
    for line in lines:
        name = _name(words, line)
        if line in figures or len(line) > _LONGEST_LABEL or sum(map(str.isalpha, name)) < _SHORTEST:
            continue
        row, last = [], line
        while (last := _beside(words, lines, last, below=False)) and last not in row:
            row.append(last)
        if not row or any(one not in figures for one in row):
            continue
        heads = [[]] if len(row) == 1 else [_column_head(words, lines, one) for one in row]
        for value, head in zip(row, heads):
            over = _name(words, head)
            count[name.lower(), over.lower()] += 1
            if (over or len(row) == 1) and not _is_asked(_boxes(words, value), taken):
                found.append((name, over, line + head, value))
    return [
        ReaderQuestion(
            kind := "cell" if over else "figure",
            str(rng.choice(_WORDING["asked"][kind])).format(label=_cased(name, rng), head=_cased(over, rng)),
            _text(words, value),
            _boxes(words, value),
            _boxes(words, named),
        )
        for name, over, named, value in found
        if count[name.lower(), over.lower()] == 1 and (over or texts[name.lower()] == 1)
    ]


def _is_figure(text: str) -> bool:
    """Whether a text is one number or amount: "1,204", "$25 MM", "(3.5%)"."""
    numbers = sum(any(map(str.isdigit, word)) for word in text.split())
    return numbers == 1 and sum(map(str.isalpha, text)) <= 2


def _column_head(words: Sequence[PlacedWord], lines: Sequence[TextLine], line: TextLine) -> TextLine:
    """The lowest line above a number that has no digit or is a year; [] if there is none.

    It must overlap its column, and no gap between it and the number may be wide.
    """
    x0, y0, x1, y1 = _around(words, line)
    over = [(box, other) for other in lines if (box := _around(words, other))[3] <= y0 + 0.3 * (y1 - y0)]
    for (u0, v0, u1, v1), other in sorted(over, key=lambda one: -one[0][3]):
        if min(u1, x1) <= max(u0, x0):
            continue
        if y0 - v1 > _WIDEST_GAP * (y1 - y0):
            return []
        text = _text(words, other)
        if _YEAR.fullmatch(text) or not any(map(str.isdigit, text)):
            return other if len(other) <= _LONGEST_HEAD and sum(map(str.isalnum, text)) >= 2 else []
        y0, y1 = v0, v1
    return []


def _answer_boxes(asked: Sequence[ReaderQuestion]) -> NDArray[np.float64]:
    return np.array([box for question in asked for box in question.boxes], np.float64).reshape(-1, 4)


def _is_asked(boxes: Sequence[Box], taken: NDArray[np.float64]) -> bool:
    """Whether the centre of a box lies in the answer of a question. taken: (N, 4), the boxes of answers"""
    own = np.array(boxes).reshape(-1, 1, 4)
    middle = np.tile((own[..., :2] + own[..., 2:]) / 2, 2)
    return bool(((middle - taken[None]) * (1, 1, -1, -1) >= 0).all(-1).any())


def _beside(words: Sequence[PlacedWord], lines: Sequence[TextLine], line: TextLine, *, below: bool) -> TextLine:
    """The nearest line right of a line, or below it and starting or ending near it; [] if there is none."""
    x0, y0, x1, y1 = _around(words, line)
    height = y1 - y0
    best: tuple[float, TextLine] = (np.inf, [])
    for other in lines:
        u0, v0, u1, v1 = _around(words, other)
        if below:
            near = -0.3 * height < v0 - y1 < 1.2 * height and min(abs(u0 - x0), abs(u1 - x1)) < height
            gap = v0 - y1
        else:
            near = abs((v0 + v1) - (y0 + y1)) / 2 < 0.4 * height and u0 >= x1
            gap = u0 - x1
        if near and other is not line and gap < best[0]:
            best = (gap, other)
    return best[1]


def lines_of(words: Sequence[PlacedWord]) -> list[TextLine]:
    """Words in lines, split at wide gaps."""
    if not words:
        return []
    boxes = np.array([box for _, box in words])
    middle, height = (boxes[:, 1] + boxes[:, 3]) / 2, boxes[:, 3] - boxes[:, 1]
    lines: list[TextLine] = []
    ends = np.zeros((len(words), 3))  # middle, height and right edge of each line's last word
    for index in np.argsort(boxes[:, 0], kind="stable"):
        last = ends[: len(lines)]
        taller = np.maximum(last[:, 1], height[index])
        left = boxes[index, 0]
        near = (
            (np.abs(last[:, 0] - middle[index]) < 0.45 * taller)
            & (last[:, 2] <= left + 0.3 * height[index])
            & (last[:, 2] > left - 2.2 * height[index])
            & (np.minimum(last[:, 1], height[index]) > 0.4 * taller)
        )
        hits = np.flatnonzero(near)
        number = int(hits[np.argmax(last[hits, 2])]) if len(hits) else len(lines)
        if number == len(lines):
            lines.append([])
        lines[number].append(int(index))
        ends[number] = (middle[index], height[index], boxes[index, 2])
    return lines


def reading_order(boxes: NDArray[np.float64], chosen: Sequence[int]) -> list[int]:
    """Words line by line, each from left to right."""
    left = sorted(chosen, key=lambda index: boxes[index, 1] + boxes[index, 3])
    order: list[int] = []
    while left:
        _, top, _, bottom = boxes[left[0]]
        centre = (boxes[left, 1] + boxes[left, 3]) / 2
        same = np.abs(centre - (top + bottom) / 2) < 0.6 * (bottom - top)
        order += sorted([index for index, one in zip(left, same) if one], key=lambda index: float(boxes[index, 0]))
        left = [index for index, one in zip(left, same) if not one]
    return order


def _text(words: Sequence[PlacedWord], numbers: Sequence[int]) -> str:
    return " ".join(words[number][0] for number in numbers)


def _name(words: Sequence[PlacedWord], numbers: Sequence[int]) -> str:
    """The text without the signs around it."""
    return _text(words, numbers).strip(" :.;,-")


def _boxes(words: Sequence[PlacedWord], numbers: Sequence[int]) -> tuple[Box, ...]:
    return tuple(words[number][1] for number in numbers)


def _around(words: Sequence[PlacedWord], numbers: Sequence[int]) -> Box:
    x0, y0, x1, y1 = zip(*(words[number][1] for number in numbers))
    return min(x0), min(y0), max(x1), max(y1)


def _called(label: str, rng: np.random.Generator) -> str:
    """A label as a question may call it: without its rate, with another word for number."""
    short = _RATE.sub("", label).strip()
    label = short if len(short) > 1 and rng.random() < 0.7 else label
    if rng.random() < 0.5:
        label = _NUMBER.sub(str(rng.choice(("number", "Number", "No", "No.", "#"))), label)
    return label


def _cased(text: str, rng: np.random.Generator) -> str:
    roll = rng.random()
    return text if roll < 0.45 else text.lower() if roll < 0.85 else text.upper() if roll < 0.9 else text.title()
