"""PixelPrune: drop what a lossless predictor finds redundant, before the tower.

Published, as far as we know it: patches are dropped that the predictor of LOCO-I (the median edge detector of JPEG-LS)
predicts from their neighbours.
Ours: the unit is a token, predicted sample by sample from the tokens to the left, above, and above to the left; where
one of those is missing, from the others. The paper has a threshold; here the best predicted ones leave until the budget
is reached. A token without neighbours is unpredictable.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from texturevlm_lab.rivals.context import Context
from texturevlm_lab.rivals.method import Method, ReduceStage
from texturevlm_lab.rivals.reduction import Reduction


def least_predictable(context: Context, keep: int) -> Reduction:
    """Keep the tokens with the largest error of prediction. Needs pixels."""
    return Reduction.keeping(context.best(prediction_error(context), keep), len(context))


def prediction_error(context: Context) -> Tensor:
    """(N,): mean absolute error of the prediction; inf without neighbours."""
    pixels = context.need("pixels").float()
    cells = torch.cat([context.image[:, None].to(context.position), context.position], -1).round().long()
    left, above, corner = (_neighbours(cells, offset) for offset in ((0, -1), (-1, 0), (-1, -1)))
    error = torch.full((len(context),), math.inf, device=pixels.device)
    plain = {"left": (left >= 0) & (above < 0), "above": (above >= 0) & (left < 0)}
    for own, source in ((plain["left"], left), (plain["above"], above)):
        error[own] = (pixels[own] - pixels[source[own]]).abs().mean((1, 2, 3))
    both = (left >= 0) & (above >= 0)
    west, north = pixels[left[both]], pixels[above[both]]
    north_west = torch.where((corner[both] >= 0).view(-1, 1, 1, 1), pixels[corner[both]], west)
    error[both] = (pixels[both] - median_edge(west, north, north_west)).abs().mean((1, 2, 3))
    return error


def median_edge(west: Tensor, north: Tensor, north_west: Tensor) -> Tensor:
    """LOCO-I's predictor: the median of west, north, and west + north − north_west."""
    return torch.stack([west, north, west + north - north_west]).median(0).values


def _neighbours(cells: Tensor, offset: tuple[int, int]) -> Tensor:
    """(N,): the token whose cell (N, 4: image, moment, row, column) is one such step away; −1: none."""
    step = cells.new_tensor([0, 0, *offset])
    every, member = torch.cat([cells, cells + step]).unique(dim=0, return_inverse=True)
    holder = cells.new_full((len(every),), -1)
    holder[member[: len(cells)]] = torch.arange(len(cells), device=cells.device)
    return holder[member[len(cells) :]]


PIXELPRUNE = Method((ReduceStage(least_predictable, "pixels", ("pixels",)),))
