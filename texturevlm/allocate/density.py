"""Density: tokens tile the whole image, the smaller where it matters more; nothing is dropped and nothing stands apart.

For photographs. A page has words that are read or not, and blank paper between them; a photograph has neither, and what
looks like ground may be asked for as well.
"""

from __future__ import annotations

from texturevlm.allocate.plain import resize
from texturevlm.allocate.tiling import capped, no_finer_than_pixels, tile
from texturevlm.check import check_count
from texturevlm.relevance.maps import Relevance
from texturevlm.types import Allocation, Texture

EVEN = 0.25  # of the mean density goes to every spot


def density(
    texture: Texture, relevance: Relevance, *, budget: int = 273, patch: int = 32, even: float = EVEN
) -> Allocation:
    """Tile the image by the density of relevance.

    even: how many times the mean density every spot gets, whatever it is worth: it bounds how coarse a token can be
    """
    check_count("density", "budget", budget, 1)
    check_count("density", "patch", patch, 1)
    if not 0 < even < float("inf"):
        raise ValueError(f"density: even must be above 0, got {even!r}")
    height, width = texture.size
    if budget * patch * patch >= height * width:  # all of it at its own resolution, and tokens to spare
        return resize(texture, relevance, budget=budget, patch=patch)
    rows, columns = relevance.grid
    wanted = relevance.mass.double() * (rows * columns) + even
    tokens = capped(wanted, height * width / (rows * columns), 1 / patch**2, budget)
    boxes = no_finer_than_pixels(tile(tokens, height, width, budget), patch, height, width)
    centre = ((boxes[..., :2] + boxes[..., 2:]) / 2).float()
    at = (centre / centre.new_tensor([width / columns, height / rows])).long()
    x, y = at[..., 0].clamp(0, columns - 1), at[..., 1].clamp(0, rows - 1)
    score = relevance.mass.flatten(1).gather(1, y * columns + x).float()
    return Allocation.of_boxes(boxes, texture.size, patch, score)
