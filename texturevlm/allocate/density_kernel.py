"""Cells of equal density by our kernels (density.cu): four launches, whatever the number of images and tokens."""

import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from texturevlm.cuda.launch import channel_table, launch
from texturevlm.ops.select import Tokens

MOST_TOKENS, MOST_ROUNDS, ROWS_A_BLOCK = 1024, 16, 8  # as in density.cu
_PARAMETERS = struct.Struct(f"=10Q3d8i{MOST_ROUNDS}i")

Rounds = Sequence[Sequence[tuple[int, int, int]]]


def density_cuda(
    mass: Tensor,
    rounds: Rounds,
    *,
    size: tuple[int, int],
    budget: int,
    patch: int,
    even: float,
    wanted: Tensor | None = None,
) -> Tokens:
    """`density` for all images at once: nothing is waited for.

    mass:   (B, h, w), summing to 1
    rounds: the cutting plan: which cell is cut, the tokens of its first part, and of the second, which is appended
    even:   how many times the mean density every spot gets
    wanted: (B,) bool, images to do; the others get no tokens
    """
    batch, rows, columns = mass.shape
    mass = mass.float().contiguous()
    # Uploaded once: a captured graph may point at it.
    plan = channel_table([number for cuts in rounds for cut in cuts for number in cut], torch.int32, mass.device)
    starts = [1]
    for cuts in rounds[:-1]:
        starts.append(starts[-1] + len(cuts))
    work = torch.empty(batch * (2 + (rows + 1) * (columns + 1)), dtype=torch.float64, device=mass.device)
    memory = mass.new_empty((7, batch, budget))
    centre, ddx, ddy = (memory[2 * part : 2 * part + 2].view(batch, budget, 2) for part in range(3))
    tokens = Tokens(centre, ddx, ddy, memory[6], torch.empty((batch, budget), dtype=torch.bool, device=mass.device))
    parameters = _PARAMETERS.pack(
        mass.data_ptr(),
        0 if wanted is None else wanted.data_ptr(),
        plan.data_ptr(),
        work.data_ptr(),
        work.data_ptr() + 16 * batch,
        *(tensor.data_ptr() for tensor in tokens),
        even,
        1 / patch**2,
        size[0] * size[1] / (rows * columns),
        *(batch, rows, columns, *size, patch, budget, len(rounds)),
        *starts,
        *[0] * (MOST_ROUNDS - len(starts)),
    )
    blocks: dict[str, int | tuple[int, int]] = {
        "density_scale": batch,
        "density_rows": -(-batch * (rows + 1) // ROWS_A_BLOCK),
        "density_table": (-(-(columns + 1) // 256), batch),
        "density_tiles": batch,
    }
    for name, grid in blocks.items():
        launch("density.cu", name, mass.device, grid, parameters, early=name != "density_scale", SCALAR=32)
    return tokens
