"""Maps over the cells of an image, which tokens are allocated by: how relevant a cell is, and how fine its content."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from texturevlm.check import check_floating, check_shapes, check_size
from texturevlm.ops.mip import level_extents

MOST_CELLS_ALONG = 288  # along the longer side


class ImageMaps(NamedTuple):
    """Maps of an image that do not depend on a question, on one grid of cells.

    salience: (B, h, w), how likely a question is about each cell; sums to 1 per image
    legible_scale, ink, photograph: as in Relevance
    """

    salience: Tensor
    legible_scale: Tensor
    ink: Tensor
    photograph: Tensor | None = None

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of cells."""
        return self.ink.shape[1], self.ink.shape[2]


@dataclass(frozen=True, eq=False)
class Relevance:
    """Maps over one grid of cells, which is a mip level of the image.

    mass:          (B, h, w), the probability that what matters is in this cell; at least 0, sums to 1 per image
    legible_scale: (B, h, w), the sample width in pixels at which half of the content is legible
    ink:           (B, h, w), whether there is any content; elsewhere the image is blank
    size:          (height, width) of the image
    scorer:        the name of the scorer that `mass` came from; "none" if nothing was asked
    photograph:    (B,), whether an image is a photograph rather than a page; None: not known
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
        if self.photograph is not None:
            check_shapes("Relevance", mass=(self.mass, "B h w"), photograph=(self.photograph, "B"))
            if self.photograph.dtype != torch.bool:
                raise TypeError(f"Relevance: photograph must be torch.bool, got {self.photograph.dtype}")
            if self.photograph.device != self.mass.device:
                wanted, got = self.mass.device, self.photograph.device
                raise ValueError(f"Relevance: photograph must be on {wanted} like mass, got {got}")
            object.__setattr__(self, "photograph", self.photograph.contiguous())  # kernels read it by its address

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of cells."""
        return self.mass.shape[1], self.mass.shape[2]

    @property
    def asked(self) -> bool:
        """Whether something was asked: whether `mass` is more than the image's own salience."""
        return self.scorer != "none"


def cell_level(size: tuple[int, int], patch: int) -> int:
    """The mip level whose texels are the cells: few enough to search, and never larger than half a token."""
    extents = level_extents(*size)
    few = next(level for level, extent in enumerate(extents) if max(extent) <= MOST_CELLS_ALONG)
    return min(few, max(0, patch.bit_length() - 2))
