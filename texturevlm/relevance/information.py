"""Information: what coarser sampling would lose in each cell, from the mip levels alone.

A mip texel is a mean, so the variance lost at a level is the mean square of level 0 minus that of the level. A cell
whose variance does not exceed the noise is blank. The growth of the loss from level to level tells how fine the content
is: small print is lost at level 2, a headline at level 4.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.channels.structure import box_mean, highest
from texturevlm.ops.mip import mipmap

COARSEST = 6  # levels above the finest: a detail of 64 pixels
WINDOW = 5  # cells over which losses are averaged, so that the gaps between words do not differ from the words
LOST = 0.6  # of the variance: with this loss, half of the words are no longer legible (measured)
BLANK = (0.012, 0.03)  # standard deviation of a blank cell on the cleanest page and on the noisiest
NOISE_SHARE, NOISE_TIMES = (
    0.2,
    3.0,
)  # a fifth of nearly any page is blank; content exceeds three times its noise
QUIET_STEPS = 255  # of noise between the two of BLANK: a GPU counts the cells per step and needs no sort


def losses(levels: Sequence[Tensor], cell: int) -> Tensor:
    """The variance of each cell that is lost at each level.

    levels: grey, finest first, each (B, 1, H_l, W_l)
    cell:   the level whose texels are the cells, (h, w)
    returns (B, COARSEST + 1, h, w), never falling from level to level; 0 at level 0
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
    """How much content each cell has, how fine it is, and whether there is any.

    levels, cell: as in `losses`
    returns bits, the information of a sample above the noise, and legible_scale and ink as in Relevance; all (B, h, w)
    """
    gone = losses(levels, cell)
    deviation = gone[:, min(max(cell, 1), COARSEST)].sqrt()  # a cell that is one pixel varies with its neighbours
    blank = (_quiet(deviation) * NOISE_TIMES).clamp(*BLANK)[:, None, None]
    ink = highest((deviation > blank).to(gone.dtype)[:, None], 3, 3)[:, 0] > 0
    around = box_mean(gone, WINDOW, WINDOW)
    bits = 0.5 * torch.log2(1 + around[:, -1] / blank.square())
    return bits, _legible_scale(around), ink


def _quiet(deviation: Tensor) -> Tensor:
    """(B, h, w) → (B,): the deviation below which a fifth of the cells lies, rounded down to a step."""
    cells = deviation.flatten(1)
    found = cells.kthvalue(1 + int(NOISE_SHARE * (cells.shape[1] - 1)), 1).values
    low, high = (edge / NOISE_TIMES for edge in BLANK)
    step = (high - low) / QUIET_STEPS
    return low + ((found - low) / step).floor().clamp(0, QUIET_STEPS) * step


def _legible_scale(gone: Tensor) -> Tensor:
    """The scale at which LOST of the variance is lost, interpolated between two levels."""
    share = gone / gone[:, -1:].clamp(min=1e-12)
    below = (share < LOST).sum(1, keepdim=True).clamp(1, share.shape[1] - 1)  # the first level that has lost as much
    low, high = share.gather(1, below - 1), share.gather(1, below)
    level = below - 1 + ((LOST - low) / (high - low).clamp(min=1e-6)).clamp(0, 1)
    return torch.exp2(level.squeeze(1).to(gone.dtype))


def _down(texels: Tensor, levels: int) -> Tensor:
    return mipmap(texels, levels=levels + 1)[-1] if levels > 0 else texels
