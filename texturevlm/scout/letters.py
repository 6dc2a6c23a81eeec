"""Features of a word's spelling: its letters, their places in the word, and pairs of neighbours.

The spotter learns to predict an embedding of these features from an image of the word, so any word of a question can be
searched on a page, also one that was not in the training data. Similar spellings give similar features.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from texturevlm.text.strings import plain

ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789%#"
OTHER_LETTER = len(ALPHABET)  # code of any other letter
SYMBOLS = len(ALPHABET) + 1
LONGEST = 24  # letters of a word are used
PARTS = 6  # bins from the beginning of a word to its end
PAIRS = 256  # hash slots of pairs of neighbours
LETTER_FEATURES = SYMBOLS * PARTS + PAIRS + 1
_CODES = {letter: index for index, letter in enumerate(ALPHABET)}


def letter_codes(words: Sequence[str]) -> Tensor:
    """(N, LONGEST) int64: the letters of each word as `strings.plain` makes it, −1 after the last."""
    rows = torch.full((len(words), LONGEST), -1)
    for row, word in enumerate(words):
        found = [_CODES.get(letter, OTHER_LETTER) for letter in plain(word)[:LONGEST]]
        rows[row, : len(found)] = torch.tensor(found, dtype=torch.int64)
    return rows


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
