"""Samples of a page: lines and blocks to read, and questions with views, as arrays of fixed shapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from texturevlm.allocate.footprints import Box
from texturevlm_lab.train.reader.alphabet import ILLEGIBLE, encode_text, training_ids
from texturevlm_lab.train.reader.network import TOKEN_SIDE
from texturevlm_lab.train.reader.pages import ReaderPage
from texturevlm_lab.train.reader.questions import (
    PLACE_KINDS,
    TOP,
    ReaderQuestion,
    TextLine,
    lines_of,
    place_questions,
    reading_order,
    top_question,
)
from texturevlm_lab.train.reader.views import (
    AHEAD,
    VIEW_KINDS,
    Chooser,
    Floats,
    PageInk,
    ReaderView,
    as_view,
    draw_view,
    legible_height,
)

# Samples over the height of capitals: they can be read; they cannot; between them nobody can tell. Choosers spend no
# more than OCR needs, which is about 6: a reader that was never shown less than 8 would not read what they choose. One
# that has to read what nobody can learns to invent.
_LEGIBLE, _HARD = 5.0, 3.8
_TOLD = 0.08  # share of the illegible answers that are kept, as ILLEGIBLE: common ones would be overused
_GUESSED = 0.25  # share of the questions that are kept though what they name is not legible: a reader may guess, rarely
# Kinds that are drawn as often together as any other kind: questions made from OCR must not displace annotated ones.
_GROUPS = dict.fromkeys((*PLACE_KINDS, TOP), "place") | dict.fromkeys(("field", "cell", "figure"), "label")
_FAR = -1e6  # where a letter without a place stands
_MOST_BOXES = 8  # of an answer that the reader is told about
_TALLEST = 60  # pixels of a word that is read
_WIDTHS = {"ijl.,:;'!|I ": 0.27, 'frt()[]/-"`': 0.36, "mwMW@%": 0.85, "ABCDEGHKNOPQRSUVXYZ&#+=<>~$": 0.66}
_WIDTH = {sign: width for signs, width in _WIDTHS.items() for sign in signs}


class Shape(NamedTuple):
    """Samples of one kind: room for visual tokens and ids, samples per page, and the shapes of crops in tokens.

    budgets: of views, where `grids` is empty: some are drawn between the first and the last, most are one of them
    """

    tokens: int
    length: int
    per_page: int
    grids: tuple[tuple[int, int], ...] = ()
    budgets: tuple[int, ...] = ()

    def budget(self, rng: np.random.Generator) -> int:
        """Draw how many tokens a view has."""
        if rng.random() < 0.6:
            return int(rng.choice(self.budgets))
        return int(np.exp(rng.uniform(np.log(self.budgets[0]), np.log(self.budgets[-1]))))


SHAPES = {
    "line": Shape(16, 48, 12, ((1, 16), (2, 8), (2, 8), (4, 4))),
    "block": Shape(48, 112, 6, ((2, 24), (3, 16), (4, 12), (6, 8), (8, 6))),
    "few": Shape(96, 160, 6, budgets=(32, 64, 96)),
    "many": Shape(288, 160, 10, budgets=(97, 160, 273, 273, 288)),
    "most": Shape(512, 160, 4, budgets=(289, 400, 512, 512)),
}
CROPS = tuple(name for name, shape in SHAPES.items() if shape.grids)


class ReaderSample(NamedTuple):
    """A prompt with its answer.

    tokens, segment, magnified: as in ReaderView
    keep:              the box outside of which paper is shown
    marks:             (letters, 2), see `letter_marks`
    boxes, named:      (n, 4), where the answer stands, and what the question names; none if nobody can read it there
    """

    tokens: Floats
    segment: NDArray[np.int8]
    magnified: float
    ids: list[int]
    before: int
    keep: tuple[float, float, float, float]
    marks: Floats
    boxes: Floats
    named: Floats
    kind: str


_EVERYWHERE = (-1e4, -1e4, 1e4, 1e4)
_NO_MARKS = np.zeros((0, 2), np.float32)
_NO_BOXES = np.zeros((0, 4), np.float32)


def page_samples(
    page: ReaderPage,
    rng: np.random.Generator,
    *,
    choosers: Sequence[tuple[str, str]] = (),
    kinds: dict[str, float] = VIEW_KINDS,
) -> dict[str, list[ReaderSample]]:
    """The samples of a page by the names of SHAPES, at most as many as fit; none if the page has too few words.

    choosers: relevance and allocator of those of the package that lay the views; none: they are simulated
    kinds:    of views, and how often each is drawn
    """
    found: dict[str, list[ReaderSample]] = {name: [] for name in SHAPES}
    if len(page.words) < 4:
        return found
    boxes = np.array([box for _, box in page.words])
    lines = lines_of(page.words)
    for name, read in (("line", _line), ("block", _block)):
        shape = SHAPES[name]
        tries = (read(page, boxes, lines, shape, rng) for _ in range(shape.per_page * 4))
        found[name] = [one for one in tries if one is not None][: shape.per_page]
    questions = [*page.questions]
    questions += place_questions(page.words, lines, rng, max(8, len(questions) // 2))
    questions.append(top_question(page.words, lines))
    geometry, own = PageInk(page.image, rng), _chooser(page, rng) if choosers else None
    words = boxes.astype(np.float32)
    kinds_asked = [_GROUPS.get(question.kind, question.kind) for question in questions]
    common = Counter(kinds_asked)  # a table has fifty cells, a bill one due date: each kind is asked as often
    shares = np.array([1 / common[kind] for kind in kinds_asked])
    shares /= shares.sum()
    for name in (name for name in SHAPES if name not in CROPS):
        shape = SHAPES[name]
        ahead = [one for one in page.views if shape.budgets[0] <= len(one.boxes) <= shape.tokens]
        for drawn in rng.choice(len(questions), shape.per_page * 4, p=shares):
            if len(found[name]) == shape.per_page:
                break
            question, view = questions[drawn], None
            if ahead and rng.random() * sum(kinds.values()) < kinds.get(AHEAD, 0):
                made = ahead[int(rng.integers(len(ahead)))]
                question, view = page.questions[made.question], as_view(made.boxes, made.magnified, AHEAD)
            elif question.boxes and own is not None:
                view = own.view(question.text, shape.budget(rng), *choosers[int(rng.integers(len(choosers)))])
            elif question.boxes:
                asked = (*question.boxes, *question.named)
                view = draw_view(geometry, shape.budget(rng), question.boxes, asked, words, rng, kinds)
            one = _asked(page, question, view, shape, rng)
            if one is not None:
                found[name].append(one)
    return found


def _chooser(page: ReaderPage, rng: np.random.Generator) -> Chooser:
    """The choosers of the package on a page, at a random magnification."""
    return Chooser(page.image, int(rng.choice((32, 32, 26, 20))))


def _asked(
    page: ReaderPage, question: ReaderQuestion, view: ReaderView | None, shape: Shape, rng: np.random.Generator
) -> ReaderSample | None:
    prompt = training_ids(question.text, question.answer, shape.length)
    if prompt is None or view is None:
        return None
    height = legible_height(view.tokens, question.boxes) * page.type_share
    if height < _LEGIBLE and (height >= _HARD or rng.random() > _TOLD):
        return None
    named = legible_height(view.tokens, question.named) * page.type_share
    if named < _HARD and rng.random() > _GUESSED:
        return None
    boxes = _some_boxes(question.boxes)
    if height < _LEGIBLE or not page.readable:
        prompt, boxes = training_ids(question.text, ILLEGIBLE, shape.length), _NO_BOXES
        assert prompt is not None
    own = (view.tokens, view.segment, view.magnified)
    label = _some_boxes(question.named) if named >= _HARD and page.readable else _NO_BOXES
    return ReaderSample(*own, *prompt, _EVERYWHERE, _NO_MARKS, boxes, label, question.kind)


def _some_boxes(boxes: Sequence[Box]) -> Floats:
    return np.array(boxes[:_MOST_BOXES], np.float32).reshape(-1, 4)


def _line(
    page: ReaderPage, boxes: NDArray[np.float64], lines: Sequence[TextLine], shape: Shape, rng: np.random.Generator
) -> ReaderSample | None:
    """A few words of a line, their neighbours hidden."""
    line = lines[int(rng.integers(len(lines)))]
    first = int(rng.integers(len(line)))
    end = min(len(line), first + int(rng.choice((1, 1, 1, 2, 2, 3, 4, 6))))
    chosen = line[first:end]
    around, height = _around(boxes[chosen]), float((boxes[chosen, 3] - boxes[chosen, 1]).max())
    before = boxes[line[first - 1], 2] if first else -1e9
    after = boxes[line[end], 0] if end < len(line) else 1e9
    margin, above, below = height * rng.uniform(0.05, 0.5), *(height * rng.uniform(0.02, 0.35, 2))
    left, right = max(around[0] - margin, (around[0] + before) / 2), min(around[2] + margin, (around[2] + after) / 2)
    keep = (left, around[1] - above, right, around[3] + below)
    return _crop(page, chosen, around, height, keep, shape, rng, "line")


def _block(
    page: ReaderPage, boxes: NDArray[np.float64], lines: Sequence[TextLine], shape: Shape, rng: np.random.Generator
) -> ReaderSample | None:
    """All words within a rectangle."""
    line = lines[int(rng.integers(len(lines)))]
    x0, y0, _, y1 = boxes[line[int(rng.integers(len(line)))]]
    height = y1 - y0
    wide, tall = height * rng.uniform(3, 28), height * rng.uniform(0.6, 6)
    centre = (boxes[:, :2] + boxes[:, 2:]) / 2
    inside = ((centre > (x0, y0)) & (centre < (x0 + wide, y0 + tall))).all(1)
    for _ in range(3):  # until no word is cut
        if not inside.any():
            return None
        around = _around(boxes[inside])
        shared = np.minimum(boxes[:, 2:], around[2:]) - np.maximum(boxes[:, :2], around[:2])
        touching = (shared > np.array([0.2, 0.3]) * (boxes[:, 2:] - boxes[:, :2])).all(1)
        if not (touching & ~inside).any():
            break
        inside |= touching
    else:
        return None
    chosen = np.flatnonzero(inside)
    heights = boxes[chosen, 3] - boxes[chosen, 1]
    if len(chosen) > 24 or heights.min() < 0.4 * height:
        return None
    keep = (around[0] - 2, around[1] - 1, around[2] + 2, around[3] + 1)
    order = reading_order(boxes, chosen.tolist())
    return _crop(page, order, around, float(np.median(heights)), keep, shape, rng, "block")


def _crop(
    page: ReaderPage,
    chosen: Sequence[int],
    around: tuple[float, float, float, float],
    height: float,
    keep: tuple[float, float, float, float],
    shape: Shape,
    rng: np.random.Generator,
    kind: str,
) -> ReaderSample | None:
    """A full grid of equal tokens over a box, at a random legible scale; None if there is none, or too much text."""
    text = " ".join(page.words[index][0] for index in chosen) if page.readable else ILLEGIBLE
    prompt = training_ids("", text, shape.length)
    if prompt is None or height > _TALLEST:
        return None
    height *= page.type_share
    x0, y0, x1, y1 = around
    for number in rng.permutation(len(shape.grids)):
        rows, columns = shape.grids[number]
        across, down = (x1 - x0 + 4) / (TOKEN_SIDE * columns - 2), (y1 - y0 + 4) / (TOKEN_SIDE * rows - 2)
        coarsest = max(across, down)  # that holds the box
        if height / coarsest < _LEGIBLE:
            continue
        step = height / min(height / coarsest, np.exp(rng.uniform(np.log(_LEGIBLE), np.log(34))))
        wide, tall = TOKEN_SIDE * columns * step, TOKEN_SIDE * rows * step
        left, top = rng.uniform(x1 + 1 - wide, x0 - 1), rng.uniform(y1 + 1 - tall, y0 - 1)
        column, row = np.meshgrid(np.arange(columns) + 0.5, np.arange(rows) + 0.5)
        centre = np.stack([left + column * TOKEN_SIDE * step, top + row * TOKEN_SIDE * step], -1).reshape(-1, 2)
        tokens = np.concatenate([centre, np.full_like(centre, step)], 1).astype(np.float32)
        segment = np.zeros(len(tokens), np.int8)  # all tokens of a crop attend to one another
        marks = letter_marks(page, chosen) if page.readable else _NO_MARKS
        return ReaderSample(tokens, segment, 1.0, *prompt, keep, marks, _NO_BOXES, _NO_BOXES, kind)
    return None


def letter_marks(page: ReaderPage, chosen: Sequence[int]) -> Floats:
    """About where each letter of words joined by blanks stands: (letters, 2), by usual widths of letters."""
    marks: list[tuple[float, float]] = []
    for index in chosen:
        text, (x0, y0, x1, y1) = page.words[index]
        signs = [chr(code + 16) for code in encode_text(text)]  # as many as there are ids
        widths = np.array([_WIDTH.get(sign, 0.53) for sign in signs])
        ends = widths.cumsum()
        if marks:
            marks.append((_FAR, _FAR))
        marks += [
            (float(x0 + (end - width / 2) / ends[-1] * (x1 - x0)), (y0 + y1) / 2) for end, width in zip(ends, widths)
        ]
    return np.array(marks, np.float32).reshape(-1, 2)


def _around(boxes: NDArray[np.float64]) -> tuple[float, float, float, float]:
    (x0, y0), (x1, y1) = boxes[:, :2].min(0), boxes[:, 2:].max(0)
    return float(x0), float(y0), float(x1), float(y1)


def sample_fields(name: str) -> dict[str, tuple[tuple[int, ...], type]]:
    """The arrays that hold one sample of a shape: their shapes and types."""
    shape = SHAPES[name]
    marks, boxes = (shape.length, 0) if shape.grids else (0, _MOST_BOXES)
    return {
        "tokens": ((shape.tokens, 4), np.float32),
        "segment": ((shape.tokens,), np.int8),
        "used": ((), np.int16),  # tokens
        "magnified": ((), np.float32),
        "ids": ((shape.length,), np.uint8),
        "before": ((), np.int16),
        "length": ((), np.int16),  # 0 where there is no sample
        "keep": ((4,), np.float32),
        "marks": ((marks, 2), np.float32),
        "boxes": ((boxes, 4), np.float32),
        "named": ((boxes, 4), np.float32),
    }


def as_arrays(name: str, samples: Sequence[ReaderSample]) -> dict[str, np.ndarray[Any, Any]]:
    """Samples of one shape, repeated to its count; if there are none, a token each, and nothing to say."""
    count = SHAPES[name].per_page
    arrays: dict[str, np.ndarray[Any, Any]] = {
        field: np.zeros((count, *shape), kind) for field, (shape, kind) in sample_fields(name).items()
    }
    arrays["tokens"][..., 2:], arrays["magnified"][:], arrays["used"][:] = 1, 1, 1  # sizes of 0 would give NaN
    for number in range(count if samples else 0):
        one = samples[number % len(samples)]
        used = len(one.tokens)
        arrays["tokens"][number] = one.tokens[np.arange(SHAPES[name].tokens) % used]  # unused ones repeat others
        arrays["segment"][number, :used], arrays["used"][number] = one.segment, used
        arrays["magnified"][number] = one.magnified
        arrays["ids"][number, : len(one.ids)], arrays["length"][number] = one.ids, len(one.ids)
        arrays["before"][number], arrays["keep"][number] = one.before, one.keep
        arrays["boxes"][number, : len(one.boxes)] = one.boxes
        arrays["named"][number, : len(one.named)] = one.named
        if len(arrays["marks"][number]):
            arrays["marks"][number] = _FAR
            arrays["marks"][number, : len(one.marks)] = one.marks
    return arrays
