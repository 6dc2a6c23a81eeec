"""Balance: how far to trust the question and how far the image, by three weights.

explore       the share of the probability that goes to salience although the question points elsewhere
focus         above 1 the likeliest cells gain on the others, below 1 they lose
particularise above 1 content counts as finer than it looks, so that fewer cells are sampled more finely
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from texturevlm.relevance.maps import ImageMaps, Relevance
from texturevlm.relevance.salience import normalised


@dataclass(frozen=True)
class Balance:
    """The three weights: numbers, or tensors without dimensions that can be trained."""

    explore: float | Tensor = 0.1
    focus: float | Tensor = 1.0
    particularise: float | Tensor = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.explore, Tensor) and not 0 <= self.explore <= 1:  # a tensor's value would wait for a GPU
            raise ValueError(f"Balance: explore must be between 0 and 1, got {self.explore!r}")
        for name, value in (("focus", self.focus), ("particularise", self.particularise)):
            if not isinstance(value, Tensor) and not 0 < value < math.inf:
                raise ValueError(f"Balance: {name} must be above 0, got {value!r}")

    def weigh(self, query: Tensor | None, maps: ImageMaps, size: tuple[int, int], scorer: str = "none") -> Relevance:
        """One Relevance from the question's query and the image's maps.

        query:  (B, h, w), at least 0; its sum, at most 1, is the scorer's confidence; None without a question
        size, scorer: as in Relevance
        """
        if query is None:
            unchanged = isinstance(self.focus, float) and self.focus == 1
            mass = maps.salience if unchanged else normalised(maps.salience**self.focus)
        else:
            confidence = query.sum((1, 2), keepdim=True).clamp(max=1) * (1 - self.explore)
            mass = normalised(query**self.focus) * confidence + maps.salience * (1 - confidence)
        unchanged = isinstance(self.particularise, float) and self.particularise == 1
        legible_scale = maps.legible_scale if unchanged else maps.legible_scale / self.particularise
        return Relevance(mass, legible_scale, maps.ink, size, scorer, maps.photograph)
