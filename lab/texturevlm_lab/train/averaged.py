"""A running mean of a module's weights over the last steps.

Weights that are still being trained are noisy: their mean is better than any of them, and costs one more copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class AveragedWeights:
    """An exponential mean of the trained parameters.

    kept: the share of the mean that a step keeps. Early steps keep less, so that the start is soon forgotten
    """

    def __init__(self, module: nn.Module, kept: float) -> None:
        self.kept = kept
        self._trained = {name: one for name, one in module.named_parameters() if one.requires_grad}
        self._mean = {name: one.detach().clone() for name, one in self._trained.items()}

    @torch.no_grad()
    def update(self, steps: int) -> None:
        """Take in the weights after so many steps."""
        kept = min(self.kept, steps / (steps + 10))
        torch._foreach_lerp_(list(self._mean.values()), list(self._trained.values()), 1 - kept)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The module has the mean weights meanwhile."""
        own = {name: one.detach().clone() for name, one in self._trained.items()}
        self._copy(self._mean)
        try:
            yield
        finally:
            self._copy(own)

    def restore(self, weights: dict[str, Tensor]) -> None:
        """Go on from a mean that was saved."""
        for name, one in self._mean.items():
            one.copy_(weights[name])

    @torch.no_grad()
    def _copy(self, weights: dict[str, Tensor]) -> None:
        torch._foreach_copy_(list(self._trained.values()), [weights[name] for name in self._trained])
