"""Words as numbers: which letters a word has, whereabouts in it, and which stand side by side.

The spotter learns to see these numbers in an image of the word; so any word of a question can be looked for on a page,
also one that was never seen in training. Near spellings give near numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from texturevlm.text.strings import plain

ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789%#"
OTHER = len(ALPHABET)  # any other letter
SYMBOLS = len(ALPHABET) + 1
LONGEST = 24  # letters are looked at
PARTS = 6  # of a word, from its beginning to its end
PAIRS = 256  # slots that pairs of neighbours share
NUMBERS = SYMBOLS * PARTS + PAIRS + 1
_PLACES = {letter: index for index, letter in enumerate(ALPHABET)}


def codes(words: Sequence[str]) -> Tensor:
    """(N, LONGEST) int64: the letters of each word as `strings.plain` leaves them, −1 after the last."""
    rows = torch.full((len(words), LONGEST), -1)
    for row, word in enumerate(words):
        found = [_PLACES.get(letter, OTHER) for letter in plain(word)[:LONGEST]]
        rows[row, : len(found)] = torch.tensor(found, dtype=torch.int64)
    return rows


def numbers(letters: Tensor) -> Tensor:
    """(N, LONGEST) from `codes` → (N, NUMBERS) float32."""
    here = letters >= 0
    length = here.sum(1, keepdim=True)
    steps = torch.arange(LONGEST, device=letters.device)
    middle = (steps + 0.5) / length.clamp(min=1) * PARTS
    parts = torch.arange(PARTS, device=letters.device) + 0.5
    # a letter between the middles of two parts counts for both
    share = (1 - (middle[..., None] - parts).abs()).clamp(min=0) * here[..., None]
    share = share / share.sum(2, keepdim=True).clamp(min=1e-6)
    where = share.new_zeros(len(letters), SYMBOLS, PARTS)
    where.scatter_add_(1, letters.clamp(min=0)[..., None].expand(-1, -1, PARTS), share)
    pair = (letters[:, :-1] * SYMBOLS + letters[:, 1:]) * 40503 % 65536 * PAIRS // 65536
    beside = share.new_zeros(len(letters), PAIRS)
    beside.scatter_add_(1, pair.clamp(min=0), (here[:, :-1] & here[:, 1:]).to(share))
    return torch.cat([where.flatten(1), beside, length / LONGEST], 1)
