"""What an image says of its cells by our kernels (information.cu): how fine they are, which are blank, their worth."""

import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from texturevlm.cuda.launch import launch
from texturevlm.ops.mip import mipmap

MOST_CELL, COARSEST, COUNTS, SIDE = 5, 6, 256 + 32, 16  # as in information.cu
_LOSSES = struct.Struct(f"={MOST_CELL + 4}Q{2 * MOST_CELL + 4}i")
_MAPS = struct.Struct("=7Q")
_COARSER = struct.Struct("=2Q2i")
_CELLS = struct.Struct("=5if")


def information_cuda(
    levels: Sequence[Tensor], cell: int, found: Tensor, *, quiet: float, page: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Worth, half and ink, each (B, h, w), and whether an image is a photograph, (B,).

    levels: red, green and blue, finest first, each (B, 3, H_l, W_l) float32, contiguous, to the coarsest
    cell:   the level whose texels are the cells, 1 to MOST_CELL
    found:  (B, 2, h, w), text and saliency on the cells, contiguous
    quiet:  the share of the cells that are blank on nearly any page
    page:   the share of them that have the ground's brightness on a page
    """
    batch, _, rows, columns = levels[cell].shape
    memory = levels[0].new_empty((cell + 3, batch, rows, columns))
    squares, gone, legible_scale, worth = memory[0], memory[1 : cell + 1], memory[cell + 1], memory[cell + 2]
    histogram = torch.zeros((batch, COUNTS), dtype=torch.int32, device=squares.device)
    marks = torch.empty(batch * (rows * columns + 1), dtype=torch.bool, device=squares.device)
    ink, photograph = marks[batch:].view(batch, rows, columns), marks[:batch]
    blocks = -(-rows // SIDE) * -(-columns // SIDE) * batch
    missing = (0,) * (MOST_CELL - cell)
    finer = levels[: cell + 1]
    parameters = _LOSSES.pack(
        *(level.data_ptr() for level in finer),
        *missing,
        squares.data_ptr(),
        gone.data_ptr(),
        histogram.data_ptr(),
        *(level.shape[2] for level in finer),
        *missing,
        *(level.shape[3] for level in finer),
        *missing,
        batch,
        cell,
    )
    launch("information.cu", "information_losses", squares.device, blocks, parameters, SCALAR=32)
    means = mipmap(squares[:, None], levels=COARSEST - cell + 1, backend="cuda")
    parameters = _MAPS.pack(
        *(tensor.data_ptr() for tensor in (gone, histogram, found, legible_scale, worth, ink, photograph))
    )
    for level in range(1, COARSEST):
        above = min(level, len(means) - 1)
        colour = levels[cell + above]
        parameters += _COARSER.pack(means[above].data_ptr(), colour.data_ptr(), *colour.shape[2:])
    cells = rows * columns
    parameters += _CELLS.pack(batch, cell, rows, columns, int(quiet * (cells - 1)), page * cells)
    launch("information.cu", "information_maps", squares.device, blocks, parameters, SCALAR=32)
    return worth, legible_scale, ink, photograph
