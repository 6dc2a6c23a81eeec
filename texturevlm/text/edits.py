"""How far two texts are apart: the Levenshtein distance, without a package that must be installed for it."""

from __future__ import annotations

import numpy as np

LEAST_SIMILAR = 0.5  # a similarity below this counts as nothing read


def edit_distance(said: str, true: str) -> int:
    """How many letters must be inserted, removed or replaced to turn one text into the other."""
    if len(said) < len(true):  # the loop runs over the shorter text
        said, true = true, said
    letters = np.array([ord(letter) for letter in said], dtype=np.int64)
    steps = np.arange(len(said) + 1)
    row = steps.copy()
    for number, letter in enumerate(true, 1):
        changed = np.minimum(row[1:] + 1, row[:-1] + (letters != ord(letter)))
        # Removing letters one after another: the lowest of row[i] + (j - i) over all i up to j.
        row = np.minimum.accumulate(np.concatenate([[number], changed]) - steps) + steps
    return int(row[-1])


def similarity(text: str, answer: str) -> float:
    """Letters and digits only: 1 if the answer is contained, else normalised Levenshtein similarity, 0 if under 0.5."""
    read, wanted = letters_and_digits(text), letters_and_digits(answer)
    if not wanted:  # an answer such as "?" cannot be judged by letters and digits
        return 0.0
    if wanted in read:
        return 1.0
    close = 1 - edit_distance(read, wanted) / max(len(read), len(wanted))
    return close if close >= LEAST_SIMILAR else 0.0


def letters_and_digits(text: str) -> str:
    """Keep the letters and digits of a text, in lower case."""
    return "".join(letter for letter in text.lower() if letter.isalnum())
