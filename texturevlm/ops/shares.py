"""Averaging pixels over equal cells of any width, along one axis."""

import torch
from torch import Tensor


def share_of_pixels(low: float, high: float, cells: int, first: int, last: int, like: Tensor) -> Tensor:
    """(cells, last − first): the share of each pixel in each of the equal cells between low and high."""
    edges = torch.linspace(low, high, cells + 1, dtype=torch.float64)
    start, stop = edges[:-1, None], edges[1:, None]
    pixel = torch.arange(first, last, dtype=torch.float64)
    overlap = (torch.minimum(stop, pixel + 1) - torch.maximum(start, pixel)).clamp(min=0)
    nearest = ((start + stop) / 2).floor().clamp(first, last - 1) == pixel
    overlap = torch.where(overlap.sum(1, keepdim=True) > 0, overlap, nearest.double())
    return (overlap / overlap.sum(1, keepdim=True)).to(like)
