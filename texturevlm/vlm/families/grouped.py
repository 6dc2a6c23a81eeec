"""Projected families whose token is a square of patches (pooling, pixel shuffle), between markers in the prompt.

Each token's own square of patches goes through the model's pooling or shuffle by itself: those act within a square.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from texturevlm.vlm.families.projected import ProjectedAdapter


class GroupedAdapter(ProjectedAdapter):
    """A subclass says what surrounds an image in the prompt, and how a square of patches becomes a token."""

    @property
    @abstractmethod
    def wrapper(self) -> tuple[str, str]:
        """The texts before and behind the placeholders of an image."""

    @abstractmethod
    def project_squares(self, squares: Tensor) -> Tensor:
        """(n, merge², D), the patches of each token row by row → (n, D')."""

    def placeholders(self, tokens: int) -> str:
        before, behind = self.wrapper
        return f"{before}{super().placeholders(tokens)}{behind}"

    def project(self, hidden: Tensor) -> Tensor:
        squares = hidden.unflatten(1, (-1, self.merge**2))
        tokens = self.project_squares(squares.flatten(0, 1))
        return tokens.view(len(hidden), -1, tokens.shape[-1])

    def returned(self, images: list[Tensor]) -> Any:
        """(all tokens, 1, D): every token is a block by itself, so that prompts may have any number of them."""
        return torch.cat(images)[:, None]
