"""Information: what a coarser look would lose, cell by cell, from the mip levels alone.

A mip texel is the mean of what it stands for, so the variance that is gone at a level is the mean square of level 0
less that of the level: no filter, no second image. Where the whole of it is no more than noise, the image is blank. How
the loss grows from level to level says how fine the content is: small print is gone at level 2, a headline at level 4.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.channels.structure import box_mean, highest, luma
from texturevlm.ops.mip import mipmap
from texturevlm.types import COLOURS, Texture

COARSEST = 6  # levels above the finest: a detail of 64 pixels
WINDOW = 5  # cells: what a cell's losses are averaged with, so that the gap between two words is not another world
LOST = 0.6  # of the variance: where that is gone, half of the words are no longer read (measured, docs/experiments.md)
BLANK = (0.012, 0.03)  # standard deviations: what is blank on the cleanest page and on the noisiest
NOISE_SHARE, NOISE_TIMES = 0.2, 3.0  # of the cells are blank on nearly any page; so much above them is not
QUIET_STEPS = 255  # between those two, in which noise is told: a GPU counts the cells of each step and needs no sort


def grey_levels(texture: Texture) -> list[Tensor]:
    """(B, 1, H_l, W_l): brightness, with all mip levels."""
    if set(COLOURS) <= set(texture.names):
        levels = texture.levels
        if texture.names[:3] == COLOURS:  # without a list of indices, which would be copied to a GPU
            colour = [level[:, :3] for level in levels]
        else:
            colour = [level[:, [texture.names.index(name) for name in COLOURS]] for level in levels]
        return [luma(level) for level in colour] if len(levels) > 1 else mipmap(luma(colour[0]))
    return mipmap(texture.levels[0][:, :1].float())


def losses(levels: Sequence[Tensor], cell: int) -> Tensor:
    """The variance of each cell that is gone at each level.

    levels: grey, finest first, each (B, 1, H_l, W_l)
    cell:   the level whose texels are the cells, (h, w)
    returns (B, COARSEST + 1, h, w), never falling from level to level; nothing is gone at level 0
    """
    squares = [_down(level.square(), cell - index) for index, level in enumerate(levels[: cell + 1])]
    gone = [squares[0] - square for square in squares[: COARSEST + 1]]
    cells = levels[cell]
    for index in range(cell + 1, COARSEST + 1):
        coarse = levels[min(index, len(levels) - 1)]
        within = _down(cells.square(), min(index, len(levels) - 1) - cell) - coarse.square()
        gone.append(gone[cell] + functional.interpolate(within, cells.shape[2:], mode="nearest"))
    return torch.cat(gone, 1).clamp(min=0).cummax(1).values


def information(levels: Sequence[Tensor], cell: int) -> tuple[Tensor, Tensor, Tensor]:
    """How much there is to see, how fine it is, and whether there is anything.

    levels, cell: as in `losses`
    returns bits, the information of a sample above the noise, and half and ink as in Relevance, each (B, h, w)
    """
    gone = losses(levels, cell)
    deviation = gone[:, min(max(cell, 1), COARSEST)].sqrt()  # a cell that is one pixel varies with its neighbours
    blank = (_quiet(deviation) * NOISE_TIMES).clamp(*BLANK)[:, None, None]
    ink = highest((deviation > blank).to(gone.dtype)[:, None], 3, 3)[:, 0] > 0
    around = box_mean(gone, WINDOW, WINDOW)
    bits = 0.5 * torch.log2(1 + around[:, -1] / blank.square())
    return bits, _legible_scale(around), ink


def _quiet(deviation: Tensor) -> Tensor:
    """(B, h, w) → (B,): the deviation of the quietest fifth of the cells, down to a step between the two of BLANK."""
    cells = deviation.flatten(1)
    found = cells.kthvalue(1 + int(NOISE_SHARE * (cells.shape[1] - 1)), 1).values
    low, high = (edge / NOISE_TIMES for edge in BLANK)
    step = (high - low) / QUIET_STEPS
    return low + ((found - low) / step).floor().clamp(0, QUIET_STEPS) * step


def _legible_scale(gone: Tensor) -> Tensor:
    """The scale at which LOST of the variance is gone, between two levels by interpolation in the level."""
    share = gone / gone[:, -1:].clamp(min=1e-12)
    below = (share < LOST).sum(1, keepdim=True).clamp(1, share.shape[1] - 1)  # the first level that has lost as much
    low, high = share.gather(1, below - 1), share.gather(1, below)
    level = below - 1 + ((LOST - low) / (high - low).clamp(min=1e-6)).clamp(0, 1)
    return torch.exp2(level.squeeze(1).to(gone.dtype))


def _down(texels: Tensor, levels: int) -> Tensor:
    return mipmap(texels, levels=levels + 1)[-1] if levels > 0 else texels
