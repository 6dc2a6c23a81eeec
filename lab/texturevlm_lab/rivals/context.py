"""What a reduction knows of the visual tokens of one prompt."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import torch
from torch import Tensor

from texturevlm.check import check_shapes


@dataclass(frozen=True, eq=False)
class Context:
    """N visual tokens of one prompt, in the order in which the language model reads them.

    features: (N, D), the tokens: embeddings behind the projector, hidden states between two blocks or layers, pixels
              before the tower, keys while an answer is decoded
    position: (N, 3), moment, row and column, in tokens of the full image's grid; fractions are allowed
    size:     (N,), how many tokens were merged into each; 1 for one that was not merged
    weight:   (N,), factor that its embedding was multiplied with
    image:    (N,), which image of the prompt each belongs to
    keys, queries: (H, N, d), of the vision tower's last whole attention, of the block before, or of a layer of the
              language model
    received: (N,), attention that each token gets in the tower's last whole attention: from the class token if there is
              one, else the mean over all patches. 1 is an even share of its picture's, so that pictures of different
              sizes can be compared
    shallow:  (N,), the same in the tower's first whole attention
    asked:    (T, N), attention of each token of the question to each visual one, mean over the heads of a layer
    question: (T, D), the question's tokens: embeddings, or hidden states, like `features`
    pixels:   (N, C, S, S), the normalised samples of each token; channels of all frames that it shows
    What a place or a model cannot give is None.
    """

    features: Tensor
    position: Tensor
    size: Tensor
    weight: Tensor
    image: Tensor
    keys: Tensor | None = None
    queries: Tensor | None = None
    received: Tensor | None = None
    shallow: Tensor | None = None
    asked: Tensor | None = None
    question: Tensor | None = None
    pixels: Tensor | None = None

    def __post_init__(self) -> None:
        patterns = {"features": "N D", "position": "N 3", "size": "N", "weight": "N", "image": "N"}
        patterns |= {"keys": "H N d", "queries": "H N d", "received": "N", "shallow": "N"}
        patterns |= {"asked": "T N", "question": "T D", "pixels": "N C S S"}
        given = {name: (getattr(self, name), pattern) for name, pattern in patterns.items()}
        check_shapes("Context", **{name: pair for name, pair in given.items() if pair[0] is not None})

    def __len__(self) -> int:
        return len(self.features)

    @property
    def given(self) -> set[str]:
        """The names of what is not None."""
        return {one.name for one in fields(self) if getattr(self, one.name) is not None}

    def need(self, name: str) -> Tensor:
        """A field that a method declared to need."""
        found: Tensor | None = getattr(self, name)
        if found is None:
            raise ValueError(f"reduce: {name} must be in the context, got None")
        return found

    @cached_property
    def raster(self) -> Tensor:
        """(N,): the tokens image by image, then by moment, row and column, whatever their order in the prompt.

        Methods that count tokens off (every other one, one of eight) count in this order.
        """
        order = torch.arange(len(self), device=self.features.device)
        for column in (*self.position.flip(-1).unbind(-1), self.image):
            order = order[column[order].argsort(stable=True)]
        return order

    def best(self, scores: Tensor, count: int) -> Tensor:
        """(count,): the tokens with the highest scores (N,); among equal ones the first in raster order."""
        return self.raster[scores[self.raster].argsort(descending=True, stable=True)[:count]]

    @cached_property
    def directions(self) -> Tensor:
        """(N, D): features of unit length, float32, so that a product is a cosine."""
        return unit(self.features)

    @cached_property
    def key_directions(self) -> Tensor:
        """(N, d): keys, mean over the heads, of unit length."""
        return unit(self.need("keys").float().mean(0))


def unit(vectors: Tensor) -> Tensor:
    """Vectors (..., D) of length 1 in float32; zero stays zero."""
    vectors = vectors.float()
    length: Tensor = vectors.norm(dim=-1, keepdim=True)
    return vectors / length.clamp(min=1e-12)
