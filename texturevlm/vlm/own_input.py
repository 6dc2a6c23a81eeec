"""An image as a model's own image processor gives it: what the unmodified model would get."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class OwnInput:
    """Pixel inputs, and how many tokens they are."""

    inputs: dict[str, Tensor]
    tokens: int
