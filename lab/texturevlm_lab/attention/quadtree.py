"""The order of tokens along the quadtree of an image: neighbours in the list are neighbours in the image."""

import torch
from torch import Tensor

from texturevlm.check import check_shapes

BITS = 16  # of a row or a column


def quadtree_order(position: Tensor, level: Tensor | None = None, *, picture: Tensor | None = None) -> Tensor:
    """The order in which a walk through the quadtree meets tokens, a parent before its children.

    position: (..., n, 2), row and column of each token from the corner of its image, in tokens of the finest level;
              fractions are rounded down, and what is below 0 counts as 0
    level:    (..., n), 0 for the finest; a token of level l covers 2^l × 2^l of those. All 0 by default
    picture:  (..., n), which picture, or which frame; one after the other. All the same by default
    returns   (..., n), the indices of the tokens in that order; equal places keep their order
    """
    check_shapes("quadtree_order", position=(position.reshape(-1, position.shape[-1]), "n 2"))
    # The root is the corner of the image, not the first token: coarse tokens lie on multiples of their side from there.
    cell = position.detach().double().floor().long().clamp(0, 2**BITS - 1)
    code = _spread(cell[..., 0]) << 1 | _spread(cell[..., 1])
    coarse = torch.zeros_like(code) if level is None else level.detach().floor().long().clamp(0, BITS)
    code = code >> (2 * coarse) << (2 * coarse)  # the first cell that the token covers
    code = code * (BITS + 1) + (BITS - coarse)  # 2 · 16 bits and a level fit in 37 bits
    if picture is not None:
        code = code + (picture.detach().long() << 40)
    return code.argsort(dim=-1, stable=True)


def _spread(number: Tensor) -> Tensor:
    """A zero bit between any two bits of a number of 16 bits."""
    for shift, mask in ((8, 0x00FF00FF), (4, 0x0F0F0F0F), (2, 0x33333333), (1, 0x55555555)):
        number = (number | number << shift) & mask
    return number
