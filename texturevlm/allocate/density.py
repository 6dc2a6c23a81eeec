"""Density: tokens tile the whole image, the smaller where it matters more; nothing is dropped and nothing stands apart.

For photographs. A page has words that are read or not, and blank paper between them; a photograph has neither, and what
looks like ground may be asked for as well.
"""

from __future__ import annotations

from torch import Tensor

from texturevlm.allocate.footprints import allocation_of_tokens
from texturevlm.allocate.plain import resize
from texturevlm.allocate.tiling import capped, cutting_rounds, no_finer_than_pixels, tile
from texturevlm.check import check_count
from texturevlm.ops import backend as backends
from texturevlm.relevance.maps import Relevance
from texturevlm.types import Allocation, Texture

EVEN = 0.25  # of the mean density goes to every spot


def density(
    texture: Texture,
    relevance: Relevance,
    *,
    budget: int = 273,
    patch: int = 32,
    even: float = EVEN,
    backend: str = "auto",
    wanted: Tensor | None = None,
) -> Allocation:
    """Tile the image by the density of relevance.

    even:   how many times the mean density every spot gets, whatever it is worth: it bounds how coarse a token can be
    wanted: (B,) bool, images whose tokens will be looked at; a kernel spares the work for the others
    """
    check_count("density", "budget", budget, 1)
    check_count("density", "patch", patch, 1)
    if not 0 < even < float("inf"):
        raise ValueError(f"density: even must be above 0, got {even!r}")
    height, width = texture.size
    if budget * patch * patch >= height * width:  # all of it at its own resolution, and tokens to spare
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
    tokens_there = capped(spread, height * width / (rows * columns), 1 / patch**2, budget)
    boxes = no_finer_than_pixels(tile(tokens_there, height, width, budget), patch, height, width)
    centre = ((boxes[..., :2] + boxes[..., 2:]) / 2).float()
    x = (centre[..., 0] / (width / columns)).long().clamp(0, columns - 1)
    y = (centre[..., 1] / (height / rows)).long().clamp(0, rows - 1)
    score = relevance.mass.flatten(1).gather(1, y * columns + x).float()
    return Allocation.of_boxes(boxes, texture.size, patch, score)
