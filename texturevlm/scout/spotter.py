"""The spotter: one pass over a page, and every spot carries a short embedding of the word that stands there.

A small fully convolutional network on a page of about a million pixels; a spot is 8×8 of them. Beside the embedding,
which a question's word is compared with by a dot product, a spot says whether there is text, how high it is, and what
kind of thing it is part of (a date, an amount, …). Trained on rendered pages without end (`texturevlm.train.spotting`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from texturevlm.scout.layer import Block, Layer
from texturevlm.scout.letters import NUMBERS, numbers
from texturevlm.text.strings import KINDS

SPOT = 8  # pixels on a side
PIXELS = 1100 * 850  # of a page as the spotter sees it: half of 200 dots an inch
EMBEDDING = 64
FINE, FINE_BLOCKS = 64, 3
WIDE = 160
REACHES = ((1, 2), (4, 1), (2, 4), (1, 1))  # how far apart the columns are that each convolution looks at
INNER = 256
STEM = 4
SAID = EMBEDDING + 2 + len(KINDS)  # numbers of each spot: its embedding, text, height, kinds
LONGEST = PIXELS // (2 * SPOT) ** 2 * 2 * SPOT  # pixels: a side of an image that is only two spots across


class Spots(NamedTuple):
    """What the spotter says of each spot of a page; h and w are a page's sides in spots.

    words: (B, EMBEDDING, h, w), of length 1
    text:  (B, h, w), logit of there being text
    kinds: (B, len(KINDS), h, w), logits of what the text is part of
    height: (B, h, w), logarithm of the text's height in pixels of what the spotter saw
    """

    words: Tensor
    text: Tensor
    kinds: Tensor
    height: Tensor


def input_size(size: tuple[int, int]) -> tuple[int, int]:
    """(height, width) at which an image of `size` is read: the nearest multiples of two spots, at most PIXELS or so."""
    height, width = size
    scale = min(1.0, math.sqrt(PIXELS / (height * width)))
    step = 2 * SPOT

    def fitted(side: int) -> int:
        return min(LONGEST, max(step, round(side * scale / step) * step))

    return fitted(height), fitted(width)


def as_spots(maps: Tensor) -> Spots:
    """What the maps of the head say, (B, at least SAID, h, w); its words are of any length."""
    words, text, height, kinds = maps[:, :SAID].split([EMBEDDING, 1, 1, len(KINDS)], 1)
    return Spots(words, text[:, 0], kinds, height[:, 0])


class Spotter(nn.Module):
    """Image → Spots, and a question's words → embeddings to compare with them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = Layer(STEM * STEM, FINE)
        self.fine = nn.ModuleList(Block(FINE, (1, 1)) for _ in range(FINE_BLOCKS))
        self.down = Layer(FINE, WIDE, stride=2)
        self.wide = nn.ModuleList(Block(WIDE, reach) for reach in REACHES)
        self.head = nn.Conv2d(WIDE, SAID, 1)
        self.letters = nn.Sequential(nn.Linear(NUMBERS, INNER), nn.ReLU(), nn.Linear(INNER, EMBEDDING))
        self.sharpness = nn.Parameter(torch.tensor(math.log(16.0)))
        self.doubt = nn.Parameter(torch.tensor(8.0))

    def forward(self, grey: Tensor) -> Spots:
        """grey: (B, 1, H, W), 0 to 1, sides a multiple of SPOT"""
        cells = functional.pixel_unshuffle(1 - 2 * grey, STEM).contiguous(memory_format=torch.channels_last)
        spots = as_spots(self.head(self.features(cells)))
        return spots._replace(words=functional.normalize(spots.words, dim=1))

    def features(self, cells: Tensor) -> Tensor:
        """What the head is given: cells of STEM · STEM pixels, each a map (B, 16, H / 4, W / 4) → (B, WIDE, h, w)."""
        values = self.stem(cells)
        for block in self.fine:
            values = block(values)
        values = self.down(values)
        for block in self.wide:
            values = block(values)
        made: Tensor = values
        return made

    def embed(self, words: Tensor) -> Tensor:
        """(N, NUMBERS) from `letters.numbers` → (N, EMBEDDING) of length 1."""
        return functional.normalize(self.letters(words), dim=-1)

    def question(self, letters: Tensor, traits: Tensor) -> Tensor:
        """The words of questions: letters (B, K, LONGEST), traits (B, K, TRAITS) → (B, K, EMBEDDING); zero for none."""
        found = numbers(letters.flatten(0, 1)).to(traits.dtype)
        return self.embed(found).view(*letters.shape[:2], EMBEDDING) * traits[..., :1]

    def hits(self, cosine: Tensor) -> Tensor:
        """Cosines of spots and words → logits of that word standing there."""
        return self.sharpness.exp() * cosine - self.doubt
