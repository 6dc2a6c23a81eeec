"""The gist: a glance at a photograph, and every spot of it says which words fit.

A small convolutional network sees any photograph squashed to 144×144 pixels and gives each of 18×18 spots an embedding;
each word of a closed vocabulary has one too. Their product says how well the word fits there; the mean of its
exponential over the spots says whether the photograph holds it, and the share of each spot in that mean is where.
Trained on captions and on a few boxes (`texturevlm.train.matching`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from texturevlm.channels.structure import colour_levels
from texturevlm.scout.layer import Block, Layer
from texturevlm.scout.weights import fill_module, read_weights
from texturevlm.train.vocabulary import Vocabulary
from texturevlm.types import Texture

SIDE = 144  # pixels of a photograph as it is seen
SPOT = 8  # pixels on a side
STEM = 2
EMBEDDING = 64
WIDTHS = (48, 96, 160)
BLOCKS = (1, 3)  # after the second and the third of the widths
LENGTH = 20.0  # what a word's numbers are multiplied by, so that they move as far in a step as they must
BEGIN = 0.005  # the spread of a word's numbers before anything was learned
SOUGHT = 8  # words of a question are looked for
LEAST_WORTH = 0.5
LEAST_BEFORE = 0.1  # of an even share: a spot that does not stand out may still be what is named


class Words(NamedTuple):
    """Words to look for, K an image.

    vectors: (B, K, EMBEDDING); zero where there is no word
    bias:    (B, K), added to how well a word fits before it is a logit
    prior:   (B, K), the logit of a word fitting any photograph
    worth:   (B, K), how much each counts in the question; sums to 1, or to 0 where no word is known
    """

    vectors: Tensor
    bias: Tensor
    prior: Tensor
    worth: Tensor


class Gist(nn.Module):
    """Photograph → embeddings of spots, and a question's words → where they fit."""

    def __init__(self, vocabulary: Vocabulary, widths: tuple[int, int, int] = WIDTHS, *, drop: float = 0.0) -> None:
        super().__init__()
        fine, middle, wide = widths
        self.vocabulary = vocabulary
        self.stem = Layer(3 * STEM * STEM, fine)
        self.enter = nn.ModuleList([Layer(fine, middle, stride=2), Layer(middle, wide, stride=2)])
        self.inner = nn.ModuleList(
            nn.ModuleList(Block(width, (1, 1)) for _ in range(blocks)) for width, blocks in zip(widths[1:], BLOCKS)
        )
        self.drop = nn.Dropout2d(drop)
        self.head = nn.Conv2d(wide, EMBEDDING, 1)
        self.words = nn.Parameter(torch.randn(len(vocabulary), EMBEDDING) * BEGIN)
        self.bias = nn.Parameter(torch.zeros(len(vocabulary)))
        self.prior: Tensor
        self.register_buffer("prior", torch.zeros(len(vocabulary)))
        # the words themselves, as numbers that half precision holds exactly, so that a file of weights is complete
        self.register_buffer("spelling", spelled(vocabulary))

    def forward(self, colour: Tensor) -> Tensor:
        """colour: (B, 3, H, W), 0 to 1, sides multiples of SPOT → (B, EMBEDDING, H / SPOT, W / SPOT), of length 1."""
        values = functional.pixel_unshuffle(2 * colour - 1, STEM).contiguous(memory_format=torch.channels_last)
        values = self.stem(values)
        for enter, blocks in zip(self.enter, self.inner):
            values = enter(values)
            for block in blocks:  # type: ignore[attr-defined]
                values = block(values)
        return functional.normalize(self.head(self.drop(values)), dim=1)

    @property
    def vectors(self) -> Tensor:
        """(V, EMBEDDING): the embedding of every word, as long as it is sharp."""
        return LENGTH * self.words

    def sought(self, numbers: Tensor) -> Words:
        """numbers: (B, K) of the vocabulary, −1 for none, on this module's device."""
        here = (numbers >= 0).to(self.words.dtype)
        chosen = numbers.clamp(min=0)
        prior = self.prior[chosen]
        # what is rare says more of where to look
        worth = (-prior).clamp(min=LEAST_WORTH) * here
        worth = worth / worth.sum(1, keepdim=True).clamp(min=1e-6)
        return Words(self.vectors[chosen] * here[..., None], self.bias[chosen], prior, worth)

    @torch.inference_mode()
    def where(self, spots: Tensor, numbers: Tensor, before: Tensor | None = None) -> Tensor:
        """The chance that what a question names is in each spot; what is missing to 1 is "not in this photograph".

        spots:   (B, EMBEDDING, h, w), from `forward`
        numbers: (B, K) or (1, K), from `encode`
        before:  (B, h, w), how likely each spot was asked for before the question came, in any unit; all alike if None
        returns  (B, h, w) float32; zero where no word of the question is known
        """
        batch, _, rows, columns = spots.shape
        words = self.sought(numbers.to(spots.device, non_blocking=True))
        fits = (words.vectors.to(spots.dtype) @ spots.flatten(2)).float()
        if before is not None:
            even = before.flatten(1).mean(1, keepdim=True)
            fits = fits + (before.flatten(1) / even.clamp(min=1e-30)).clamp(min=LEAST_BEFORE).log()[:, None]
        evidence = fits.logsumexp(2) - math.log(rows * columns) + words.bias.float()
        # a question names what is likely to be there: before the glance it is as likely there as not
        there = (evidence - words.prior.float()).sigmoid()
        share = (words.worth.float() * there)[..., None] * fits.softmax(2)
        return share.sum(1).view(batch, rows, columns)

    def encode(self, questions: Sequence[str]) -> Tensor:
        """(B, SOUGHT) int64: the first words of each question that are known; on the host, for any device."""
        rows = torch.full((len(questions), SOUGHT), -1)
        for row, question in enumerate(questions):
            found = self.vocabulary.find(question)[:SOUGHT]
            rows[row, : len(found)] = torch.tensor(found, dtype=torch.int64)
        return rows


def glimpse(texture: Texture, *, side: int = SIDE) -> Tensor:
    """(B, 3, side, side): the images of a texture in colour, whatever their shape, as the gist sees them."""
    levels = colour_levels(texture)
    fine = [level for level in levels if min(level.shape[2:]) >= side]
    return functional.interpolate(
        (fine or levels[:1])[-1].float(), (side, side), mode="bilinear", antialias=True, align_corners=False
    ).clamp(0, 1)


def spelled(vocabulary: Vocabulary) -> Tensor:
    """(L,): the letters of all entries, a line each."""
    return torch.tensor(list("\n".join(vocabulary.entries).encode("ascii")), dtype=torch.float32)


def load_gist(path: Path | str, *, prefix: str = "") -> Gist:
    """The gist of a file of weights: that of a training run, or one that holds others too, their names by prefix."""
    tensors = read_weights(path)
    names = ["spelling", "stem.convolution.weight", *(f"enter.{index}.convolution.weight" for index in (0, 1))]
    if missing := [name for name in names if f"{prefix}{name}" not in tensors]:
        raise ValueError(f"load_gist: {path} must hold the weights of Gist, lacks {prefix}{missing[0]}")
    letters, *layers = (tensors[f"{prefix}{name}"] for name in names)
    fine, middle, wide = (len(layer) for layer in layers)
    vocabulary = Vocabulary(bytes(int(code) for code in letters.tolist()).decode("ascii").split("\n"))
    return fill_module(Gist(vocabulary, (fine, middle, wide)), tensors, str(path), prefix=prefix).eval()
