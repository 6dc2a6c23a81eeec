"""A question as the scout takes it: words to search, traits of each word, and the kind of answer asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from texturevlm.scout.letters import LONGEST, letter_codes
from texturevlm.text.frequency import load_commonness
from texturevlm.text.strings import ALIASES, ASKED, STOP, asked_kinds, terms

WORDS = 24  # of a question are searched
TRAITS = 7


class Question(NamedTuple):
    """A batch of questions.

    letters: (B, WORDS, LONGEST) int64, from `letter_codes`; −1 where there is no word
    traits:  (B, WORDS, TRAITS): exists, commonness, emphasis, is a number, length, is a stop word, is a synonym
    asked:   (B, len(ASKED)), the kinds of answer asked for
    """

    letters: Tensor
    traits: Tensor
    asked: Tensor


def encode(questions: Sequence[str]) -> Question:
    """Encode any texts; "" asks nothing."""
    common_words = load_commonness()
    letters = torch.full((len(questions), WORDS, LONGEST), -1)
    traits = torch.zeros(len(questions), WORDS, TRAITS)
    for row, question in enumerate(questions):
        found = search_words(question)
        if not found:
            continue
        letters[row, : len(found)] = letter_codes([word for word, _, _ in found])
        for slot, (word, emphasis, synonym) in enumerate(found):
            common, stop = common_words.get(word, 0.0), float(word in STOP)
            number, length = float(word.isdigit()), min(len(word), LONGEST) / 10
            traits[row, slot] = torch.tensor([1.0, common, emphasis - 1, number, length, stop, float(synonym)])
    kinds = np.stack([asked_kinds(question) for question in questions]) if questions else np.zeros((0, len(ASKED)))
    return Question(letters, traits, torch.from_numpy(kinds.astype(np.float32)))


def search_words(question: str) -> list[tuple[str, float, bool]]:
    """Words to search: the word, its emphasis, and whether it is a synonym of a word of the question; rarest first."""
    common_words = load_commonness()
    kept: dict[str, tuple[float, bool]] = {}
    for word, emphasis in terms(question):
        kept[word] = (max(emphasis, kept.get(word, (0.0, False))[0]), False)
    for word, (emphasis, _) in list(kept.items()):
        for other in (*ALIASES.get(word, ()), *_inflected(word)):
            kept.setdefault(other, (emphasis, True))
    # long questions lose stop words first, then synonyms, then common words
    order = sorted(kept, key=lambda word: (word in STOP, kept[word][1], common_words.get(word, 0.0)))
    return [(word, *kept[word]) for word in order[:WORDS]]


def _inflected(word: str) -> tuple[str, ...]:
    """The singular or plural of a noun."""
    if len(word) < 4 or not word.isalpha() or word in STOP:
        return ()
    return (word[:-1],) if word.endswith("s") else (word + "s",)
