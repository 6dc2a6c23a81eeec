"""A question as the scout takes it: words to search, traits of each word, and the kind of answer asked for.

A word is searched by features of its spelling: its letters, their places in the word, and pairs of neighbours. The
spotter learns to predict an embedding of these features from an image of the word, so any word can be searched, also
one that was not in the training data. Similar spellings give similar features.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from texturevlm.text import ALIASES, ASKED, STOP, asked_kinds, load_commonness, plain, terms

WORDS = 24  # of a question are searched
TRAITS = 7
ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789%#"
OTHER_LETTER = len(ALPHABET)  # code of any other letter
SYMBOLS = len(ALPHABET) + 1
LONGEST = 24  # letters of a word are used
NO_LETTER = -1  # code of a place without a letter
PARTS = 6  # bins from the beginning of a word to its end
PAIRS = 256  # hash slots of pairs of neighbours
LETTER_FEATURES = SYMBOLS * PARTS + PAIRS + 1
_CODES = {letter: index for index, letter in enumerate(ALPHABET)}


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
    # Tables that become tensors at once: the GPU waits for this, and assignments to parts of tensors are slow.
    letters = np.full((len(questions), WORDS, LONGEST), NO_LETTER)
    traits = np.zeros((len(questions), WORDS, TRAITS), dtype=np.float32)
    for row, question in enumerate(questions):
        found = search_words(question)
        if not found:
            continue
        letters[row, : len(found)] = [_codes(word) for word, _, _ in found]
        traits[row, : len(found)] = [
            (
                1.0,
                common_words.get(word, 0.0),
                emphasis - 1,
                word.isdigit(),
                min(len(word), LONGEST) / 10,
                word in STOP,
                synonym,
            )
            for word, emphasis, synonym in found
        ]
    kinds = np.stack([asked_kinds(question) for question in questions]) if questions else np.zeros((0, len(ASKED)))
    return Question(*(torch.from_numpy(one) for one in (letters, traits, kinds.astype(np.float32))))


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


def letter_codes(words: Sequence[str]) -> Tensor:
    """(N, LONGEST) int64: the letters of each word as `strings.plain` makes it, −1 after the last."""
    rows = [_codes(word) for word in words]
    return torch.from_numpy(np.stack(rows) if rows else np.zeros((0, LONGEST), dtype=np.int64))


@lru_cache(maxsize=1 << 15)
def _codes(word: str) -> np.ndarray:
    """(LONGEST,), of a word; kept, because corpora ask for the same words again and again."""
    found = np.full(LONGEST, NO_LETTER)
    letters = plain(word)[:LONGEST]
    found[: len(letters)] = [_CODES.get(letter, OTHER_LETTER) for letter in letters]
    found.flags.writeable = False
    return found


def letter_features(letters: Tensor) -> Tensor:
    """(N, LONGEST) from `letter_codes` → (N, LETTER_FEATURES) float32."""
    here = letters >= 0
    length = here.sum(1, keepdim=True)
    steps = torch.arange(LONGEST, device=letters.device)
    middle = (steps + 0.5) / length.clamp(min=1) * PARTS
    parts = torch.arange(PARTS, device=letters.device) + 0.5
    # a letter between the middles of two bins counts for both
    share = (1 - (middle[..., None] - parts).abs()).clamp(min=0) * here[..., None]
    share = share / share.sum(2, keepdim=True).clamp(min=1e-6)
    where = share.new_zeros(len(letters), SYMBOLS, PARTS)
    where.scatter_add_(1, letters.clamp(min=0)[..., None].expand(-1, -1, PARTS), share)
    pair = (letters[:, :-1] * SYMBOLS + letters[:, 1:]) * 40503 % 65536 * PAIRS // 65536
    beside = share.new_zeros(len(letters), PAIRS)
    beside.scatter_add_(1, pair.clamp(min=0), (here[:, :-1] & here[:, 1:]).to(share))
    return torch.cat([where.flatten(1), beside, length / LONGEST], 1)
