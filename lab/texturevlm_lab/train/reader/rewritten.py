"""Answers on real pages, written anew.

There are a few hundred real pages, and training shows each of them a hundred times: a reader would recite their
answers. Here the words of an answer are wiped out and others are printed in their place: the labels, the layout and the
noise of a scan stay, only the answer is new.
"""

from __future__ import annotations

import random
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from texturevlm.allocate.footprints import Box
from texturevlm_lab.train.reader.pages import ReaderPage
from texturevlm_lab.train.reader.questions import ReaderQuestion, reading_order
from texturevlm_lab.train.render.fonts import Face, cached_face
from texturevlm_lab.train.render.sheet import FINE, PlacedWord

_BASELINE = 0.8  # of the height of a box of OCR
_STRETCHES = (0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3)  # of letters: few, so that drawn letters are used again
_OVERFULL = 1.05  # a word may be so much wider than its box
_DARKEST_PAPER = 110  # below it is white on black
_SLACK = 2.0  # pixels between a box of an annotation and a word of OCR within it
_MADE_UP = 0.2  # share of words that are letters at random
_SMALLEST = 6  # pixels of a box that can be written into
_DECOYS = 0.2  # at most this share of the other words is replaced as well
_BILEVEL = 0.25  # share of words that are printed in black and white, as old scanners saw them
_DRAWN = ("funsd", "sroie")  # data sets whose boxes were drawn by people, around the whole answer


class _Rewrite(NamedTuple):
    """A question of a page, and the words that replace its answer.

    places: the words of the page that are the answer, at every place where it stands; if there are none, OCR read
            something else there: `texts` are printed as one line over the question's only box
    """

    question: int
    places: list[list[int]]
    texts: list[str]


class AnswerWriter:
    """Replaces answers on pages by similar words.

    fonts:  files of fonts
    words:  that letters are replaced by
    """

    def __init__(self, fonts: Sequence[Path], words: Sequence[str]) -> None:
        self.fonts = list(fonts)
        self._by_length: dict[int, list[str]] = {}
        for word in sorted({word for word in words if word.isalpha()}):
            self._by_length.setdefault(len(word), []).append(word)

    def rewrite(self, page: ReaderPage, generator: np.random.Generator, share: float) -> ReaderPage:
        """The page with other answers to about `share` of the questions that allow it."""
        rng = random.Random(int(generator.integers(1 << 62)))
        asked_for = [_inside(page, question.boxes) for question in page.questions]
        planned = [one for one in self._plan(page, asked_for, rng) if rng.random() < share]
        if not planned:
            return page
        image, words, questions = page.image.copy(), list(page.words), list(page.questions)
        for at in self._decoys(page, asked_for, rng):
            text, box = words[at]
            other = similar_word(text, rng, self._by_length)
            face = _fitting(rng.choice(self.fonts), other, box)
            if face is not None:
                words[at] = (other, _print(image, other, box, face, rng))
        hidden: set[int] = set()  # words under a line that was printed over them
        for one in planned:
            asked = questions[one.question]
            everywhere = [at for place in one.places for at in place]
            spots = [words[at][1] for at in everywhere] or [asked.boxes[0]]
            texts = one.texts * len(one.places) or [" ".join(one.texts)]
            font = rng.choice(self.fonts)
            faces = [_fitting(font, text, box) for text, box in zip(texts, spots)]
            fitting = [face for face in faces if face is not None]
            if len(fitting) < len(faces):
                continue
            boxes = [_print(image, text, box, face, rng) for text, box, face in zip(texts, spots, fitting)]
            for at, text, box in zip(everywhere, texts, boxes):
                words[at] = (text, box)
            if not one.places:
                hidden.update(asked_for[one.question])
                words += _split(one.texts, boxes[0], fitting[0])
                boxes = [box for _, box in words[-len(one.texts) :]]
            questions[one.question] = asked._replace(answer=" ".join(one.texts), boxes=tuple(boxes[: len(one.texts)]))
        kept = [word for number, word in enumerate(words) if number not in hidden]
        return page._replace(image=image, words=kept, questions=questions)

    def _decoys(self, page: ReaderPage, asked_for: Sequence[list[int]], rng: random.Random) -> list[int]:
        """Words that no question asks for or names: if only answers were printed anew, the print would tell them."""
        asked = {number for own in asked_for for number in own}
        named = {_plain(part) for question in page.questions for part in f"{question.text} {question.answer}".split()}
        free = [at for at, (text, _) in enumerate(page.words) if at not in asked and _plain(text) not in named]
        return rng.sample(free, int(len(free) * rng.uniform(0, _DECOYS)))

    def _plan(self, page: ReaderPage, asked_for: Sequence[list[int]], rng: random.Random) -> list[_Rewrite]:
        """The questions whose answer can be told from everything else on the page.

        Where OCR reads it as annotated, every place where it stands is one that no other question asks for. Elsewhere a
        person drew one box around it, which no other question shares. What questions name stays as it is.

        asked_for: for each question the words in its boxes
        """
        asked = np.zeros(len(page.words), np.int64)
        for own in asked_for:
            asked[own] += 1
        asked[[at for question in page.questions for at in _inside(page, question.named)]] += 2  # no question's own
        text = [_plain(word) for word, _ in page.words]
        found = []
        for number, (question, own) in enumerate(zip(page.questions, asked_for)):
            at, parts = _words_of_answer(page, question, own), question.answer.split()
            texts = [similar_word(part, rng, self._by_length) for part in parts]
            if at:
                places = [at, *_repeated([text[one] for one in at], text, at)]
                if all(asked[one] == (one in own) for place in places for one in place):
                    found.append(_Rewrite(number, places, texts))
            elif question.kind in _DRAWN and len(question.boxes) == 1 and parts:
                found += [_Rewrite(number, [], texts)] if (asked[own] == 1).all() else []
        return found


def similar_word(word: str, rng: random.Random, by_length: Mapping[int, Sequence[str]]) -> str:
    """Another word with as many letters, digits in the same places and the same signs and case."""
    letters = "".join(filter(str.isalpha, word))
    known = by_length.get(len(letters), ())
    made_up = not known or rng.random() < _MADE_UP
    fresh = iter(rng.choices(string.ascii_lowercase, k=len(letters)) if made_up else rng.choice(known))
    signs: list[str] = []
    for sign in word:
        if sign.isdigit():
            signs.append(rng.choice(string.digits[1:] if sign != "0" and not signs else string.digits))
        elif sign.isalpha():
            letter = next(fresh)
            signs.append(letter.upper() if sign.isupper() else letter.lower())
        else:
            signs.append(sign)
    return "".join(signs)


def _plain(text: str) -> str:
    return "".join(filter(str.isalnum, text.lower()))


def _words_of_answer(page: ReaderPage, question: ReaderQuestion, inside: Sequence[int]) -> list[int]:
    """The words `inside` its boxes that read as the answer does, in their order; none if OCR reads something else."""
    wanted = [_plain(part) for part in question.answer.split()]
    if not question.boxes or not page.words or not all(wanted):
        return []
    order = reading_order(np.array([box for _, box in page.words]), inside)
    read = [_plain(page.words[number][0]) for number in order]
    for first in range(len(read) - len(wanted) + 1):
        if read[first : first + len(wanted)] == wanted:
            return order[first : first + len(wanted)]
    return []


def _inside(page: ReaderPage, areas: Sequence[Box]) -> list[int]:
    """The words whose centre lies in one of the boxes."""
    boxes = np.array([box for _, box in page.words], np.float64).reshape(-1, 4)
    centre = (boxes[:, :2] + boxes[:, 2:]) / 2
    inside = np.zeros(len(boxes), bool)
    for box in areas:
        inside |= ((centre > np.array(box[:2]) - _SLACK) & (centre < np.array(box[2:]) + _SLACK)).all(1)
    found: list[int] = np.flatnonzero(inside).tolist()
    return found


def _repeated(wanted: Sequence[str], text: Sequence[str], at: Sequence[int]) -> list[list[int]]:
    """The other places of a page, word after word as OCR lists them, that read `wanted`."""
    count = len(wanted)
    runs = [list(range(first, first + count)) for first in range(len(text) - count + 1)]
    return [run for run in runs if [text[one] for one in run] == list(wanted) and not set(run) & set(at)]


def _split(texts: Sequence[str], box: Box, face: Face) -> list[PlacedWord]:
    """The words of a printed line, each with its part of the line's box."""
    x0, y0, x1, y1 = box
    line, found, signs = " ".join(texts), [], 0
    for text in texts:
        start, end = (x0 + face.width(line[:to]) / FINE for to in (signs, signs + len(text)))
        found.append((text, (start, y0, min(end, x1), y1)))
        signs += len(text) + 1
    return found


def _fitting(font: Path, text: str, box: Box) -> Face | None:
    """The face in which a text fills a box; None if there is none, or the box is too small."""
    width, height = box[2] - box[0], box[3] - box[1]
    if height < _SMALLEST:
        return None
    size = max(8, round(height * FINE * 0.84))  # capitals are .7 of a size, and .6 of a box
    natural = cached_face(font, size, 1.0).width(text) / FINE
    stretch = min(_STRETCHES, key=lambda one: abs(one - width / max(natural, 1)))
    face = cached_face(font, size, stretch)
    return face if face.width(text) / FINE <= width * _OVERFULL else None


def _print(image: NDArray[np.uint8], text: str, box: Box, face: Face, rng: random.Random) -> Box:
    """Wipe a box out and print a text there; returns the box of the text."""
    x0, y0, x1, y1 = box
    end = x0 + face.width(text) / FINE
    left, top = max(0, int(x0) - 1), max(0, int(y0))
    right, bottom = min(image.shape[1], int(np.ceil(max(x1, end))) + 1), min(image.shape[0], int(np.ceil(y1)))
    spot = image[top:bottom, left:right]
    paper, ink = (float(np.percentile(spot, part)) for part in (80, 3))
    if paper < _DARKEST_PAPER:
        paper, ink = ink, paper
    ink = min(ink, paper - 60)
    bare = spot[spot >= paper - 25] if (spot >= paper - 25).any() else np.array([paper])
    seed = np.random.default_rng(rng.getrandbits(32))
    wiped = seed.choice(bare, spot.shape).astype(np.float32)
    cover = np.zeros((spot.shape[0] * FINE, spot.shape[1] * FINE), np.uint8)
    place, line = (x0 - left) * FINE, round((y0 + (y1 - y0) * _BASELINE - top) * FINE)
    for sign in text:
        glyph = face[sign]
        _stamp(cover, glyph.ink, round(place) + glyph.left, line + glyph.top)
        place += glyph.advance
    share = cover.reshape(spot.shape[0], FINE, spot.shape[1], FINE).mean((1, 3)) / 255
    if rng.random() < _BILEVEL:
        share = (share > rng.uniform(0.3, 0.55)).astype(np.float64)
    fade = rng.uniform(0.8, 1.0)
    spot[:] = np.clip(wiped + (ink - wiped) * share * fade, 0, 255).astype(np.uint8)
    return (x0, y0, end, y1)


def _stamp(cover: NDArray[np.uint8], ink: NDArray[np.uint8], x: int, y: int) -> None:
    """Lay a glyph over a cover, cut at its edges."""
    x_cut, y_cut = max(0, -x), max(0, -y)
    spot = cover[y + y_cut : y + ink.shape[0], x + x_cut : x + ink.shape[1]]
    np.maximum(spot, ink[y_cut : y_cut + spot.shape[0], x_cut : x_cut + spot.shape[1]], out=spot)
