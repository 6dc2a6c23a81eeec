"""A question as the scout takes it: the words to look for, how much each is worth, and what is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from texturevlm.scout.letters import LONGEST, codes
from texturevlm.text.frequency import commonness
from texturevlm.text.strings import ALIASES, ASKED, STOP, asked, terms

WORDS = 24  # of a question are looked for
TRAITS = 7


class Question(NamedTuple):
    """A batch of questions.

    letters: (B, WORDS, LONGEST) int64, from `letters.codes`; −1 where there is no word
    traits:  (B, WORDS, TRAITS) of each word: there is one, how common, emphasis, number, length, stop word, stand-in
    asked:   (B, len(ASKED)), what kind of answer is asked for
    """

    letters: Tensor
    traits: Tensor
    asked: Tensor


def encode(questions: Sequence[str]) -> Question:
    """Any texts; "" asks nothing."""
    common_words = commonness()
    letters = torch.full((len(questions), WORDS, LONGEST), -1)
    traits = torch.zeros(len(questions), WORDS, TRAITS)
    for row, question in enumerate(questions):
        found = sought(question)
        if not found:
            continue
        letters[row, : len(found)] = codes([word for word, _, _ in found])
        for slot, (word, emphasis, stands_in) in enumerate(found):
            common, stop = common_words.get(word, 0.0), float(word in STOP)
            number, length = float(word.isdigit()), min(len(word), LONGEST) / 10
            traits[row, slot] = torch.tensor([1.0, common, emphasis - 1, number, length, stop, float(stands_in)])
    kinds = np.stack([asked(question) for question in questions]) if questions else np.zeros((0, len(ASKED)))
    return Question(letters, traits, torch.from_numpy(kinds.astype(np.float32)))


def sought(question: str) -> list[tuple[str, float, bool]]:
    """Words to look for, with their emphasis and whether they stand in for a word of the question; the rarest first."""
    common_words = commonness()
    kept: dict[str, tuple[float, bool]] = {}
    for word, emphasis in terms(question):
        kept[word] = (max(emphasis, kept.get(word, (0.0, False))[0]), False)
    for word, (emphasis, _) in list(kept.items()):
        for other in (*ALIASES.get(word, ()), *_inflected(word)):
            kept.setdefault(other, (emphasis, True))
    # what is cut off where a question is long: stop words, then stand-ins, then common words
    order = sorted(kept, key=lambda word: (word in STOP, kept[word][1], common_words.get(word, 0.0)))
    return [(word, *kept[word]) for word in order[:WORDS]]


def _inflected(word: str) -> tuple[str, ...]:
    """The other number of a noun."""
    if len(word) < 4 or not word.isalpha() or word in STOP:
        return ()
    return (word[:-1],) if word.endswith("s") else (word + "s",)
