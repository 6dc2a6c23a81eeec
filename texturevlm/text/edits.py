"""The Levenshtein distance of two texts, without a package that must be installed for it."""

from __future__ import annotations

import numpy as np


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
