"""What matters in a stream's frame: asked with its question, by a function of the user's, or where someone pointed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from texturevlm.relevance import AttentionScorer, Balance, EmbeddingScorer, Relevance, Scorer, find_relevance
from texturevlm.types import Texture


@dataclass(frozen=True, eq=False)
class Asking:
    """query, patch, balance: as for `find_relevance`; way: a scorer, its name, or a function of a Texture."""

    query: str
    way: str | Scorer | Callable[[Texture], Relevance]
    patch: int
    balance: Balance
    models: dict[str, Any]

    @property
    def silent(self) -> bool:
        """Whether nothing is asked: what matters is what the image says by itself."""
        return self.way == "none" or (self.way == "auto" and not self.query.strip())

    def ask(self, texture: Texture, pointed: Tensor | None, grid: tuple[int, int]) -> Relevance:
        """pointed: a map of where someone pointed, if anyone did; grid: of cells that the answer must be on"""
        if callable(self.way):
            known = self.way(texture)
        else:
            scorer: str | Scorer = self.way if pointed is None else AttentionScorer(pointed)
            if scorer == "embedding" or (scorer == "auto" and self.models["encoder"] and self.query.strip()):
                scorer = EmbeddingScorer(**self.models)
            known = find_relevance(texture, self.query, patch=self.patch, relevance=scorer, balance=self.balance)
        if known.grid != grid:
            raise ValueError(f"Stream: relevance must be on a grid of {grid}, got {known.grid}")
        return known

    def look(self, texture: Texture) -> Relevance:
        """What the image says by itself."""
        return find_relevance(texture, patch=self.patch, relevance="none")
