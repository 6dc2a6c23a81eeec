"""Cells of equal density by our kernels (density.cu): four launches, for any number of images and tokens."""

from collections.abc import Sequence

import torch
from torch import Tensor

from texturevlm.cuda.constants import device_constant
from texturevlm.cuda.launch import launch
from texturevlm.cuda.struct import Layout, constants
from texturevlm.ops.select import Footprints, empty_footprints

MOST_TOKENS, ROWS_PER_BLOCK = constants("density.cu", "MOST_TOKENS", "ROWS_PER_BLOCK")
_DENSITY = Layout("density.cu", "Density")

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
) -> Footprints:
    """`density` for all images at once, without waiting for the GPU.

    mass:   (B, h, w), sums to 1 per image
    rounds: the cutting plan: which cell is cut, the tokens of its first part, and of the second, which is appended
    even:   the density that every pixel gets, in units of the mean density
    wanted: (B,) bool, the images to tile; the others get no tokens
    """
    batch, rows, columns = mass.shape
    mass, wanted = mass.float().contiguous(), None if wanted is None else wanted.contiguous()
    starts = [1]
    for cuts in rounds[:-1]:
        starts.append(starts[-1] + len(cuts))
    work = torch.empty(batch * (2 + (rows + 1) * (columns + 1)), dtype=torch.float64, device=mass.device)
    tokens = empty_footprints(batch, budget, mass.device)
    parameters = _DENSITY.pack(
        mass=mass,
        wanted=wanted,
        plan=device_constant([number for cuts in rounds for cut in cuts for number in cut], torch.int32, mass.device),
        scale=work,
        table=work.data_ptr() + 16 * batch,
        **tokens._asdict(),
        even=even,
        cap=1 / patch**2,
        area=size[0] * size[1] / (rows * columns),
        batch=batch,
        rows=rows,
        columns=columns,
        height=size[0],
        width=size[1],
        patch=patch,
        budget=budget,
        rounds=len(rounds),
        start=starts,
    )
    blocks: dict[str, int | tuple[int, int]] = {
        "density_scale": batch,
        "density_rows": -(-batch * (rows + 1) // ROWS_PER_BLOCK),
        "density_table": (-(-(columns + 1) // 256), batch),
        "density_tiles": batch,
    }
    for name, grid in blocks.items():
        launch("density.cu", name, mass.device, grid, parameters, early=name != "density_scale")
    return tokens
