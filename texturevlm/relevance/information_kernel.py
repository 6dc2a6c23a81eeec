"""Relevance maps from an image alone by our kernels (information.cu): legible scale, ink, worth."""

from collections.abc import Sequence

import torch
from torch import Tensor

from texturevlm.cuda.launch import launch
from texturevlm.cuda.struct import Layout, constants
from texturevlm.ops.mip import mipmap

_MOST_CELL, _COARSEST, COUNTS, _SIDE = constants("information.cu", "MOST_CELL", "COARSEST", "COUNTS", "SIDE")
_LOSSES, _MAPS = Layout("information.cu", "Losses"), Layout("information.cu", "Maps")
_COARSER = Layout("information.cu", "Coarser").in_order("squares", "colour", "height", "width")


def information_cuda(
    levels: Sequence[Tensor], cell: int, found: Tensor, *, quiet: float, page: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Worth, legible_scale and ink, each (B, h, w), and whether an image is a photograph, (B,).

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
    blocks = -(-rows // _SIDE) * -(-columns // _SIDE) * batch
    finer = levels[: cell + 1]
    parameters = _LOSSES.pack(
        level=finer, squares=squares, gone=gone, histogram=histogram, height=[level.shape[2] for level in finer],
        width=[level.shape[3] for level in finer], batch=batch, cell=cell,
    )  # fmt: skip
    launch("information.cu", "information_losses", squares.device, blocks, parameters)
    means = mipmap(squares[:, None], levels=_COARSEST - cell + 1, backend="cuda")
    coarser = []
    for above in (min(level, len(means) - 1) for level in range(1, _COARSEST)):
        colour = levels[cell + above]
        coarser.append(_COARSER(means[above].data_ptr(), colour.data_ptr(), *colour.shape[2:]))
    cells = rows * columns
    parameters = _MAPS.pack(
        gone=gone, histogram=histogram, found=found, legible_scale=legible_scale, worth=worth, ink=ink,
        photograph=photograph, coarser=coarser, batch=batch, cell=cell, rows=rows, columns=columns,
        quiet_rank=int(quiet * (cells - 1)), page=page * cells,
    )  # fmt: skip
    launch("information.cu", "information_maps", squares.device, blocks, parameters)
    return worth, legible_scale, ink, photograph
