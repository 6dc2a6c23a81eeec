"""What is known of each cell of an image when tokens are given out: how much it matters, how fine it must be seen."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from texturevlm.check import check_floating, check_shapes, check_size
from texturevlm.ops.mip import level_extents

MOST_CELLS = 288  # along the longer side


@dataclass(frozen=True, eq=False)
class Relevance:
    """Maps over one grid of cells, which is a mip level of the image.

    mass:  (B, h, w), the chance that what matters is in this cell; at least 0, sums to 1 an image
    half:  (B, h, w), the width of a sample, in pixels, at which half of what stands here can still be made out
    ink:   (B, h, w), whether there is anything to see; elsewhere the image is blank
    size:  (height, width) of the image
    scorer: what `mass` came from: words, scout, embedding, attention or none
    scene: (B,), whether an image is a photograph rather than a page; None: not known
    """

    mass: Tensor
    legible_scale: Tensor
    ink: Tensor
    size: tuple[int, int]
    scorer: str = "none"
    photograph: Tensor | None = None

    def __post_init__(self) -> None:
        check_shapes(
            "Relevance", mass=(self.mass, "B h w"), legible_scale=(self.legible_scale, "B h w"), ink=(self.ink, "B h w")
        )
        check_floating("Relevance", mass=self.mass, legible_scale=self.legible_scale)
        if self.ink.dtype != torch.bool:
            raise TypeError(f"Relevance: ink must be torch.bool, got {self.ink.dtype}")
        object.__setattr__(self, "size", check_size("Relevance", self.size))

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of cells."""
        return self.mass.shape[1], self.mass.shape[2]


def cell_level(size: tuple[int, int], patch: int) -> int:
    """The mip level whose texels are the cells: few enough to search, and never larger than half a token."""
    extents = level_extents(*size)
    few = next(level for level, extent in enumerate(extents) if max(extent) <= MOST_CELLS)
    return min(few, max(0, patch.bit_length() - 2))
