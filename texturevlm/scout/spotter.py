"""The spotter: one pass over a page gives every spot an embedding of the word there.

A small fully convolutional network on a page of about a million pixels; a spot is 8×8 of them. A question's word is
compared with the embedding by a dot product. A spot also says whether there is text, how high it is, and what kind of
thing it is part of (a date, an amount, …). Trained on an endless stream of rendered pages. Its layers (convolution,
batch normalisation, ReLU) are the ranker's, too; `folded` merges the normalisation into the weights after training.
"""

from __future__ import annotations

import math
from copy import deepcopy
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from texturevlm.scout.question import LETTER_FEATURES, letter_features
from texturevlm.text import KINDS

_Module = TypeVar("_Module", bound=nn.Module)


class ConvLayer(nn.Module):
    """A 3×3 convolution with a horizontal dilation, normalisation and ReLU; `added` comes before the ReLU."""

    def __init__(self, inputs: int, outputs: int, *, stride: int = 1, dilation: int = 1) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(
            inputs, outputs, 3, stride=stride, padding=(1, dilation), dilation=(1, dilation), bias=False
        )
        self.normalisation = nn.BatchNorm2d(outputs)

    def forward(self, values: Tensor, added: Tensor | None = None) -> Tensor:
        made = self.normalisation(self.convolution(values))
        return functional.relu(made if added is None else made + added)


class FoldedConv(nn.Module):
    """A ConvLayer whose normalisation is merged into its weights; on a GPU one call of cuDNN."""

    def __init__(self, layer: ConvLayer) -> None:
        super().__init__()
        before, after = layer.convolution, layer.normalisation
        assert after.running_mean is not None and after.running_var is not None
        scale = after.weight / (after.running_var + after.eps).sqrt()
        weight = (before.weight * scale.view(-1, 1, 1, 1)).detach()
        self.weight = nn.Parameter(weight.contiguous(memory_format=torch.channels_last), requires_grad=False)
        self.bias = nn.Parameter((after.bias - after.running_mean * scale).detach(), requires_grad=False)
        self.stride, self.dilation = before.stride, before.dilation

    def forward(self, values: Tensor, added: Tensor | None = None) -> Tensor:
        if values.is_cuda:
            geometry = (self.stride, self.dilation, self.dilation, 1)
            if added is None:
                return torch.cudnn_convolution_relu(values, self.weight, self.bias, *geometry)
            return torch.cudnn_convolution_add_relu(values, self.weight, added, 1.0, self.bias, *geometry)
        made = functional.conv2d(values, self.weight, self.bias, self.stride, self.dilation, self.dilation)
        return (made if added is None else made.add_(added)).relu_()


def widen(layer: FoldedConv, inputs: int) -> FoldedConv:
    """A copy with zero weights for more input maps, `inputs` in all: cuDNN is fastest with multiples of eight."""
    made = deepcopy(layer)
    weight = functional.pad(layer.weight, (0, 0, 0, 0, 0, inputs - layer.weight.shape[1]))
    made.weight = nn.Parameter(weight.contiguous(memory_format=torch.channels_last), requires_grad=False)
    return made


class ResidualBlock(nn.Module):
    """Two layers with a residual connection."""

    def __init__(self, width: int, dilation: tuple[int, int]) -> None:
        super().__init__()
        self.first = ConvLayer(width, width, dilation=dilation[0])
        self.second = ConvLayer(width, width, dilation=dilation[1])

    def forward(self, values: Tensor, page: Tensor | None = None) -> Tensor:
        """page: 1 on the page, 0 on its padding, which stays zero, so that padding does not change the result"""
        inner = keep_page(self.first(values), page)
        return keep_page(self.second(inner, values), page)


def keep_page(values: Tensor, page: Tensor | None) -> Tensor:
    """Set the padding to zero; there is none if `page` is None."""
    return values if page is None else values * page.to(values.dtype)


def folded(module: _Module) -> _Module:
    """Replace every ConvLayer in the module by its FoldedConv; for inference, not for training."""
    for name, child in module.named_children():
        if isinstance(child, ConvLayer):
            setattr(module, name, FoldedConv(child))
        else:
            folded(child)
    return module.eval().requires_grad_(False)


SPOT = 8  # pixels on a side
PIXELS = 1100 * 850  # of the spotter's input: half of 200 dots per inch
EMBEDDING = 64
FINE_WIDTH, FINE_BLOCKS = 64, 3
COARSE_WIDTH = 160
DILATIONS = ((1, 2), (4, 1), (2, 4), (1, 1))  # horizontal, of the two convolutions of each block
INNER = 256
STEM = 4
OUTPUTS = EMBEDDING + 2 + len(KINDS)  # per spot: embedding, text, height, kinds
LONGEST_SIDE = PIXELS // (2 * SPOT) ** 2 * 2 * SPOT  # pixels: the side of an image that is only two spots wide


class Spots(NamedTuple):
    """The spotter's output; h and w are a page's sides in spots.

    words:  (B, EMBEDDING, h, w), embeddings of length 1
    text:   (B, h, w), logit of there being text
    kinds:  (B, len(KINDS), h, w), logits of what the text is part of
    height: (B, h, w), logarithm of the text's height in pixels of the spotter's input
    """

    words: Tensor
    text: Tensor
    kinds: Tensor
    height: Tensor


def input_size(size: tuple[int, int]) -> tuple[int, int]:
    """The spotter's input (height, width) for an image of `size`: multiples of two spots, about PIXELS at most."""
    height, width = size
    scale = min(1.0, math.sqrt(PIXELS / (height * width)))
    step = 2 * SPOT

    def fitted(side: int) -> int:
        return min(LONGEST_SIDE, max(step, round(side * scale / step) * step))

    return fitted(height), fitted(width)


def as_spots(maps: Tensor) -> Spots:
    """Split the head's maps (B, at least OUTPUTS, h, w); the words are not normalised yet."""
    words, text, height, kinds = torch.split(maps[:, :OUTPUTS], [EMBEDDING, 1, 1, len(KINDS)], 1)
    return Spots(words, text[:, 0], kinds, height[:, 0])


class Spotter(nn.Module):
    """Image → Spots, and a question's words → embeddings to compare them with."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvLayer(STEM * STEM, FINE_WIDTH)
        self.fine = nn.ModuleList(ResidualBlock(FINE_WIDTH, (1, 1)) for _ in range(FINE_BLOCKS))
        self.down = ConvLayer(FINE_WIDTH, COARSE_WIDTH, stride=2)
        self.wide = nn.ModuleList(ResidualBlock(COARSE_WIDTH, dilation) for dilation in DILATIONS)
        self.head = nn.Conv2d(COARSE_WIDTH, OUTPUTS, 1)
        self.letters = nn.Sequential(nn.Linear(LETTER_FEATURES, INNER), nn.ReLU(), nn.Linear(INNER, EMBEDDING))
        self.sharpness = nn.Parameter(torch.tensor(math.log(16.0)))
        self.doubt = nn.Parameter(torch.tensor(8.0))

    def forward(self, grey: Tensor) -> Spots:
        """grey: (B, 1, H, W), 0 to 1, sides a multiple of SPOT"""
        cells = functional.pixel_unshuffle(1 - 2 * grey, STEM).contiguous(memory_format=torch.channels_last)
        spots = as_spots(self.head(self.features(cells)))
        return spots._replace(words=functional.normalize(spots.words, dim=1))

    def features(self, cells: Tensor) -> Tensor:
        """The input of the head: cells of STEM · STEM pixels (B, 16, H / 4, W / 4) → (B, COARSE_WIDTH, h, w)."""
        values = self.stem(cells)
        for block in self.fine:
            values = block(values)
        values = self.down(values)
        for block in self.wide:
            values = block(values)
        features: Tensor = values
        return features

    def embed(self, words: Tensor) -> Tensor:
        """(N, LETTER_FEATURES) from `letter_features` → (N, EMBEDDING) of length 1."""
        return functional.normalize(self.letters(words), dim=-1)

    def question(self, letters: Tensor, traits: Tensor) -> Tensor:
        """Embed words: letters (B, K, LONGEST), traits (B, K, TRAITS) → (B, K, EMBEDDING); zero where there is none."""
        found = letter_features(letters.flatten(0, 1)).to(traits.dtype)
        return self.embed(found).view(*letters.shape[:2], EMBEDDING) * traits[..., :1]

    def hits(self, cosine: Tensor) -> Tensor:
        """Cosines of spots and words → logits of the word being there."""
        return self.sharpness.exp() * cosine - self.doubt
