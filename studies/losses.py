"""What soft tokens are trained for: each loss is a number an image, the smaller the better.

`overlap` needs no model, only boxes. `reconstruction` asks what the picture that the tokens deliver lacks, band by
band. `illegibility` goes by the curve of what can still be made out at a scale. `over_budget` and `roughness` are for
networks that are free to want too much, or to want neighbouring spots differently. (`answer.py` has the one that asks a
model.)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.check import check_shapes
from texturevlm.ops.legibility import legibility
from texturevlm.ops.pyramid import laplacian_pyramid
from studies.raster import covered, shown
from studies.soft import SoftTokens
from texturevlm.types import Texture

LETTERS = 5.5  # samples: text that tall, as a reader boxes it, is read half of the time (results/readable-height.md)


def overlap(tokens: SoftTokens, objects: Tensor) -> Tensor:
    """1 − IoU of what the tokens cover with what the boxes cover.

    objects: (B, h, w), the share of each cell that lies in some box (`raster.box_shares`)
    returns  (B,)
    """
    check_shapes("overlap", weight=(tokens.weight, "B N"), objects=(objects, "B h w"))
    return 1 - iou(covered(tokens, (objects.shape[1], objects.shape[2])), objects)


def iou(cover: Tensor, objects: Tensor) -> Tensor:
    """(B,): intersection over union of two maps of shares (B, h, w), taken as independent within a cell."""
    both = (cover * objects).sum((1, 2))
    return both / (cover.sum((1, 2)) + objects.sum((1, 2)) - both).clamp(min=1e-9)


def rebuilt(tokens: SoftTokens, texture: Texture, grid: tuple[int, int]) -> Tensor:
    """(B, C, h, w): the picture that the tokens deliver, each read between its own samples; gaps are the mean."""
    pixels = tokens.sample(texture).pixels
    batch, count, channels, side, _ = pixels.shape
    height, width = tokens.tiles.size
    y = (torch.arange(grid[0], device=pixels.device) + 0.5) * (height / grid[0])
    x = (torch.arange(grid[1], device=pixels.device) + 0.5) * (width / grid[1])
    half = tokens.step * (tokens.tiles.patch / 2)
    across = (x - tokens.centre[..., :1]) / half[..., :1]
    down = (y - tokens.centre[..., 1:]) / half[..., 1:]
    where = torch.stack(torch.broadcast_tensors(across[..., None, :], down[..., :, None]), -1)
    read = functional.grid_sample(
        pixels.reshape(batch * count, channels, side, side).float(),
        where.reshape(batch * count, *grid, 2).float(),
        padding_mode="border",
        align_corners=False,
    ).view(batch, count, channels, *grid)
    share = shown(tokens, grid)
    mean = texture.levels[0].detach().float().mean((2, 3))[..., None, None]
    return torch.einsum("bnhw,bnchw->bchw", share, read) + (1 - share.sum(1, keepdim=True)) * mean


def reconstruction(
    tokens: SoftTokens, texture: Texture, grid: tuple[int, int], *, bands: Sequence[float] = (1.0, 1.0, 1.0, 1.0)
) -> Tensor:
    """What the picture that the tokens deliver lacks, by band of a Laplacian pyramid.

    texture: with mip levels
    grid:    the raster (h, w) on which pictures are compared
    bands:   how much each band counts, the finest first, the last being what is left below them
    returns  (B,), the mean absolute difference of each band, weighted and added
    """
    delivered = rebuilt(tokens, texture, grid)
    wanted = functional.interpolate(texture.levels[0].detach().float(), grid, mode="area")
    lost = laplacian_pyramid(wanted - delivered, levels=len(bands))  # it is linear
    return torch.stack([weight * band.abs().mean((1, 2, 3)) for weight, band in zip(bands, lost)]).sum(0)


def illegibility(tokens: SoftTokens, mass: Tensor, half: Tensor) -> Tensor:
    """The chance that what matters cannot be made out, by the curve of `ops.readable`.

    mass: (B, h, w), the chance that what matters is in this cell, summing to 1 an image
    half: (B, h, w), the width of a sample at which half of what stands there can be made out (text: `half_of_height`)
    returns (B,)
    """
    check_shapes("illegibility", weight=(tokens.weight, "B N"), mass=(mass, "B h w"), half=(half, "B h w"))
    scale = tokens.step.amax(-1).clamp(min=1.0)[..., None, None]
    seen = (shown(tokens, (mass.shape[1], mass.shape[2])) * legibility(half[:, None], scale)).sum(1)
    return 1 - (mass * seen).sum((1, 2))


def half_of_height(height: Tensor) -> Tensor:
    """The width of a sample at which text of a height, both in pixels, is read half of the time."""
    return height / LETTERS


def over_budget(weight: Tensor, budget: float) -> Tensor:
    """(B, N) weights that nothing holds to a budget → (B,): the square of the share by which they exceed it."""
    return (weight.sum(1) / budget - 1).clamp(min=0).square()


def roughness(scores: Tensor) -> Tensor:
    """(B, h, w) → (B,): the mean squared difference between neighbouring cells."""
    across, down = scores[..., 1:] - scores[..., :-1], scores[..., 1:, :] - scores[..., :-1, :]
    return sum((part.square().mean((1, 2)) for part in (across, down) if part.numel()), scores.new_zeros(len(scores)))
