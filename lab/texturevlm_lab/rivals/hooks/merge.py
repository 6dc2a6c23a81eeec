"""How much each child counts in a merged token: by its relevance.

A token whose content is not legible at its scale is a parent: what it could show lies in its children, half as wide. A
token that is legible, or as fine as the image, is shown as it is.
"""

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.allocate.search import NATIVE
from texturevlm.check import check_count
from texturevlm.relevance.maps import Relevance
from texturevlm.types import Allocation, check_allocation

_ROUNDING = 1e-5  # of a level: a token at the legible scale itself is legible
_EVEN = 0.05  # of the mean child's mass, which each child has at least: a parent shows all of its area


def child_shares(allocation: Allocation, relevance: Relevance, patches: int) -> Tensor:
    """(B, K, n, n), n = 2 · patches: the share of each child in its patch, row by row; 0 for tokens that have none.

    allocation: upright footprints
    patches:    of the tower along the side of a token. The four children of each share 1, by their mass
    """
    check_allocation("child_shares", allocation)
    check_count("child_shares", "patches", patches, 1)
    mass = relevance.mass.double()
    scale = relevance.legible_scale.double().clamp(min=1e-6).log2()
    child = _integral(mass, allocation, 2 * patches)
    fine = _integral(mass * scale, allocation, 1) / _integral(mass, allocation, 1).clamp(min=1e-30)
    child = child + _EVEN * child.mean((-1, -2), keepdim=True) + torch.finfo(torch.float32).tiny
    four = child.unflatten(-1, (patches, 2)).unflatten(-3, (patches, 2))
    shares = (four / four.sum((-1, -3), keepdim=True)).flatten(-2).flatten(-3, -2)
    wide = torch.stack([allocation.ddx.norm(dim=-1), allocation.ddy.norm(dim=-1)]).amin(0)
    parent = (wide > NATIVE) & (wide.log2() > fine[..., 0, 0] + _ROUNDING) & allocation.valid
    found: Tensor = shares.float() * parent[..., None, None]
    return found


def _integral(values: Tensor, allocation: Allocation, parts: int) -> Tensor:
    """(B, K, parts, parts): a map (B, h, w) of amounts per cell, summed over the parts of each footprint's box.

    A summed-area table of cells of constant density is bilinear within a cell, so reading it so is exact.
    """
    table = functional.pad(values.cumsum(1).cumsum(2), (1, 0, 1, 0))
    low, high = allocation.boxes.double().split(2, -1)
    at = torch.linspace(0, 1, parts + 1, dtype=torch.float64, device=values.device)
    edges = low[..., None] + (high - low)[..., None] * at  # (B, K, 2, parts + 1), x then y
    height, width = allocation.size
    x, y = edges[:, :, 0] / width * 2 - 1, edges[:, :, 1] / height * 2 - 1
    shape = (*x.shape, parts + 1)
    points = torch.stack([x[:, :, None].expand(shape), y[..., None].expand(shape)], -1).flatten(1, 2)
    read = functional.grid_sample(table[:, None], points, align_corners=True, padding_mode="border")
    return read.view(shape).diff(dim=-1).diff(dim=-2)
