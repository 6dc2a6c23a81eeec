"""Relevance from a map that the caller has, such as a model's cross-attention."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from texturevlm.relevance.maps import ImageMaps
from texturevlm.scout.question import Question
from texturevlm.types import Texture


class AttentionScorer:
    """The map itself is the relevance; the question is not read.

    attention: (B, h', w'), at least 0, of any extent
    """

    name, description, capturable = "attention", "the model's attention", False

    def __init__(self, attention: Tensor | None = None) -> None:
        if attention is None:
            raise ValueError("choose_tokens: relevance 'attention' needs a map: relevance=tv.SCORERS['attention'](map)")
        self.attention = attention

    def prepare(self, texture: Texture) -> None:
        """Check that there is one map per image."""
        shape = tuple(self.attention.shape)
        if len(shape) != 3 or shape[0] != texture.batch:
            raise ValueError(f"AttentionScorer: attention must be ({texture.batch}, h, w), got {shape}")

    def score(self, prepared: None, question: str | Question, maps: ImageMaps) -> tuple[Tensor, ImageMaps]:
        """The map on the grid of cells, summing to 1 (to 0 where it is zero)."""
        wide = self.attention.to(maps.ink.device).float()[:, None]
        resized = functional.interpolate(wide, maps.grid, mode="bilinear", antialias=True)[:, 0].clamp(min=0)
        return resized / resized.sum((1, 2), keepdim=True).clamp(min=1e-30), maps
