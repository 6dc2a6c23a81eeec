"""Balance: what the question says, what the image says, and how far to trust either, as three opposed pulls.

explore      against exploit: how much of the chance goes to what the question did not point at
focus        against diversify: above 1 the likeliest spots gain on the others, below 1 they lose
particularise against compress: above 1 content is thought finer than it looks, so that fewer spots are seen sharper
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from texturevlm.relevance.maps import Relevance
from texturevlm.relevance.salience import normalised


@dataclass(frozen=True)
class Balance:
    """The three weights; numbers, or tensors of no dimension that learn."""

    explore: float | Tensor = 0.1
    focus: float | Tensor = 1.0
    particularise: float | Tensor = 1.0

    def weigh(
        self,
        query: Tensor | None,
        salience: Tensor,
        legible_scale: Tensor,
        ink: Tensor,
        size: tuple[int, int],
        scorer: str = "none",
        photograph: Tensor | None = None,
    ) -> Relevance:
        """One Relevance from what the question points at and what stands out.

        query:    (B, h, w), at least 0; its sum, at most 1, is how sure the question is; None without a question
        salience: (B, h, w), summing to 1
        half, ink, size, scorer, scene: as in Relevance
        """
        if query is None:
            plain = isinstance(self.focus, float) and self.focus == 1
            mass = salience if plain else normalised(salience**self.focus)
        else:
            sure = query.sum((1, 2), keepdim=True).clamp(max=1) * (1 - self.explore)
            mass = normalised(query**self.focus) * sure + salience * (1 - sure)
        return Relevance(mass, self._finer(legible_scale), ink, size, scorer, photograph)

    def _finer(self, legible_scale: Tensor) -> Tensor:
        unchanged = isinstance(self.particularise, float) and self.particularise == 1
        return legible_scale if unchanged else legible_scale / self.particularise
