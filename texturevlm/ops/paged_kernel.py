"""sample_patches through a page table by our kernel (paged.cu); ops/paged.py is the specification."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from texturevlm.cuda.launch import launch, scalar_bits
from texturevlm.cuda.struct import Layout, constants
from texturevlm.ops.lookup_kernel import patch_parts
from texturevlm.ops.lookup_reference import Where

if TYPE_CHECKING:
    from texturevlm.ops.paged import PagedLevels

_JOB = Layout("paged.cu", "PagedJob")
(CHANNELS,) = constants("paged.cu", "CHANNELS")


def geometry_of(levels: PagedLevels) -> Layout:
    """The job with all that is the same for every call."""
    height, width = zip(*levels.extents)
    whole = levels.extents[levels.base :]
    texels = [sum(h * w for h, w in whole[:index]) for index in range(len(whole))]
    return _JOB.fix(
        pool=levels.pool,
        table=levels.table,
        coarse=levels.texels,
        wanted=levels.wanted,
        levels=len(levels.extents),
        side=levels.page,
        base=levels.base,
        height=list(height),
        width=list(width),
        first=[*levels.first_pages, *texels],
    )


def sample_paged_cuda(levels: PagedLevels, where: Where, patch: int, max_anisotropy: int) -> Tensor:
    """(1, K, 3, P, P); adds to `wanted` if the levels are watched. Positions are float32."""
    centre, ddx, ddy = (one.float().contiguous() for one in (where.points, where.ddx, where.ddy) if one is not None)
    count = centre.shape[1]
    pixels = torch.empty((1, count, CHANNELS, patch, patch), device=centre.device)
    if count:
        given = {"weight": levels.weight, "centre": centre, "ddx": ddx, "ddy": ddy, "pixels": pixels}
        parameters = levels.job.pack(**given, patch=patch, max_anisotropy=max_anisotropy)
        grid = (count, patch_parts(count, patch))
        launch("paged.cu", "sample_paged", centre.device, grid, parameters, SCALAR=scalar_bits(torch.float32))
    return pixels
