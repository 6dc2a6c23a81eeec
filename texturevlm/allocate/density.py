"""Density: tokens tile the whole image, smaller where the relevance is higher; nothing is left out.

For photographs: they have no blank parts, and what looks like background may be asked for.
"""

from __future__ import annotations

from torch import Tensor

from texturevlm.allocate.allocator import allocator
from texturevlm.allocate.footprints import allocation_of_tokens
from texturevlm.allocate.plain import fits_whole, resize
from texturevlm.allocate.tiling import capped, cutting_rounds, no_finer_than_pixels, tile
from texturevlm.ops import backend as backends
from texturevlm.relevance.maps import Relevance
from texturevlm.types import Allocation, Texture

EVEN = 0.25  # of the mean density goes everywhere


@allocator(capture="always")
def density(
    texture: Texture, relevance: Relevance, *, budget: int, patch: int, even: float = EVEN, backend: str = "auto"
) -> Allocation:
    """Tile the image by the density of relevance.

    even: density that every position gets, in units of the mean density; it bounds how coarse a token can be
    """
    check_even("density", even)
    return density_of(texture, relevance, budget, patch, even, backend)


def check_even(function: str, even: float) -> None:
    """A density above 0."""
    if not 0 < even < float("inf"):
        raise ValueError(f"{function}: even must be above 0 and finite, got {even!r}")


def density_of(
    texture: Texture,
    relevance: Relevance,
    budget: int,
    patch: int,
    even: float = EVEN,
    backend: str = "auto",
    wanted: Tensor | None = None,
) -> Allocation:
    """`density`; wanted: (B,) bool, images whose tokens are used: the kernels skip the others."""
    height, width = texture.size
    if fits_whole(texture, budget, patch):
        return resize(texture, relevance, budget=budget, patch=patch)
    if backends.choose("density", relevance.mass, backend) == "cuda":
        from texturevlm.allocate.density_kernel import MOST_TOKENS, density_cuda

        if budget <= MOST_TOKENS:
            tokens = density_cuda(
                relevance.mass.detach(),
                cutting_rounds(budget),
                size=texture.size,
                budget=budget,
                patch=patch,
                even=even,
                wanted=wanted,
            )
            return allocation_of_tokens(tokens, texture.size, patch)
        if backend == "cuda":
            raise ValueError(f"density: backend 'cuda' cannot run here: the kernels take up to {MOST_TOKENS} tokens")
    rows, columns = relevance.grid
    spread = relevance.mass.double() * (rows * columns) + even
    per_cell = capped(spread, height * width / (rows * columns), 1 / patch**2, budget)
    boxes = no_finer_than_pixels(tile(per_cell, height, width, budget), patch, height, width)
    centre = ((boxes[..., :2] + boxes[..., 2:]) / 2).float()
    x = (centre[..., 0] / (width / columns)).long().clamp(0, columns - 1)
    y = (centre[..., 1] / (height / rows)).long().clamp(0, rows - 1)
    score = relevance.mass.flatten(1).gather(1, y * columns + x).float()
    return Allocation.of_boxes(boxes, texture.size, patch, score)
