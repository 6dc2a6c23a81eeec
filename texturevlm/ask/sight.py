"""One image, prepared once for any number of questions: its mip levels, its maps, its words.

What the image says by itself does not change with the question, so it is found out when it is first needed and kept.
"""

from __future__ import annotations

from typing import Any

import torch

from texturevlm.relevance import Prepared, Relevance, Scorer
from texturevlm.types import COLOURS, Texture

LEAST_CHANCE = 0.1  # of any image that comes with a question


class Sight:
    """An image as a model with tokens of `patch` × `patch` samples will look at it.

    source: a path, a PIL image, an array, a tensor, or a Texture; one image
    """

    def __init__(self, source: Any, *, patch: int, device: torch.device) -> None:
        texture = source.to(device) if isinstance(source, Texture) else Texture.open(source, device=device)
        if texture.batch != 1:
            raise ValueError(f"see: each image must be one image, got a batch of {texture.batch}; give a list")
        if texture.names == ("grey",):
            texture = Texture(tuple(level.expand(-1, 3, -1, -1) for level in texture.levels), COLOURS)
        if not set(COLOURS) <= set(texture.names):
            raise ValueError(f"see: image must be grey or red, green and blue, got {', '.join(texture.names)}")
        self.texture = texture.to(dtype=torch.float32).mipmapped()
        self.patch = patch
        self.prepared = Prepared(self.texture, patch=patch)

    @property
    def most_tokens(self) -> int:
        """The tokens that show the image at its own resolution; more would show nothing more."""
        height, width = self.texture.size
        return -(-height // self.patch) * -(-width // self.patch)

    def relevance(self, question: str, *, relevance: str | Scorer = "auto") -> Relevance:
        """How much each cell matters for a question, without doing anything twice; relevance: as in `choose_tokens`."""
        return self.prepared.find(question, scorer=relevance)

    def chance(self, question: str, relevance: Relevance) -> float:
        """The chance (LEAST_CHANCE to 1) that a question to several images is about this one, as far as words tell."""
        if relevance.scorer not in ("words", "scout"):
            return 1.0
        query = self.prepared.query(question, relevance.scorer)[0]
        return 1.0 if query is None else max(LEAST_CHANCE, float(query.sum()))

    def on(self, device: torch.device) -> None:
        """Follow a model that was moved."""
        if self.texture.device == device:
            return
        self.texture = self.texture.to(device)
        self.prepared = self.prepared.moved(self.texture)
