"""A pyramid whose fine levels are pages in a pool, found through a page table, as in virtual texturing.

The coarse levels are whole. A texel whose page is missing is read from the next coarser level that has it, so sampling
never fails and never waits; what was missing is reported, for a second pass. `PagedLevels` is the specification of the
kernel (paged.cu).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

from texturevlm.check import check_shapes
from texturevlm.cuda import Layout, constants, launch, scalar_bits
from texturevlm.ops.backend import MAX_EXTENT
from texturevlm.ops.lookup_kernel import patch_parts
from texturevlm.ops.lookup_reference import FlatLevels, Where
from texturevlm.ops.mip import level_extents

_JOB = Layout("paged.cu", "PagedJob")
(CHANNELS,) = constants("paged.cu", "CHANNELS")
BYTE = 255  # the value of a page's texel that stands for 1


class PagedLevels(FlatLevels):
    """What `sample_patches` reads instead of levels.

    size:   (height, width) of level 0
    coarse: the levels that are whole, finest of them first, each (1, C, H_l, W_l) float32, to the coarsest
    pool:   (S, P, P, C) uint8, pages of P × P texels; a page at the right or lower edge is padded
    table:  (N,) int32, the slot of every page of the levels that are finer than `coarse`, -1 where there is none:
            level by level, finest first, row by row
    wanted: (N,) float32 after `watch`: how much of the samples' weight fell on each page
    """

    def __init__(self, size: tuple[int, int], coarse: Sequence[Tensor], pool: Tensor, table: Tensor) -> None:
        sizes = check_shapes("PagedLevels", coarse=(coarse[0], "1 C H W"), pool=(pool, "S P P C"), table=(table, "N"))
        extents = level_extents(*size)
        self.base, self.page = len(extents) - len(coarse), sizes["P"]
        if self.base < 0 or tuple(coarse[0].shape[2:]) != extents[self.base]:
            got = f"{len(coarse)} from {tuple(coarse[0].shape[2:])}"
            raise ValueError(f"PagedLevels: coarse must be the last levels of an image of {size}, got {got}")
        self.size, self.coarse, self.pool, self.table = size, tuple(coarse), pool, table
        self.texels, self.dtype = torch.cat([level[0].flatten(1).T for level in coarse]), torch.float32  # (T, C)
        self.lay_out(extents)
        self.extents, self.columns = extents, -(-self.width // self.page)
        pages = [-(-height // self.page) * -(-width // self.page) for height, width in extents[: self.base]]
        if sum(pages) != len(table):
            raise ValueError(f"PagedLevels: table must have one entry per page, {sum(pages)}, got {len(table)}")
        self.first_pages = tuple(accumulate(pages[:-1], initial=0)) if pages else ()
        # By level; whole levels have no pages, and their entries are never used.
        self.first = torch.tensor([*self.first_pages, *[0] * len(coarse)], device=table.device)
        self._most = torch.full((), float(BYTE), device=table.device)  # see image._scaled
        self.weight: Tensor | None = None
        self._of_samples: Tensor | None = None
        self._used = torch.ones((), dtype=torch.bool, device=table.device)
        self.wanted = torch.zeros(len(table), device=table.device)

    def watch(self, weight: Tensor | None, patch: int) -> None:
        """Add to `wanted`, from now on, what samples of footprints with these weights (1, K) read; None: no longer."""
        self.weight = None if weight is None else weight.float().contiguous()
        self._of_samples = None if self.weight is None else self.weight.repeat_interleave(patch * patch, 1)

    def begin_probe(self, used: Tensor) -> None:
        """As in FlatLevels: what a sample has no probe for is not wanted."""
        self._used = used

    @cached_property
    def job(self) -> Layout:
        """What the kernel is started with; pool and table stay where they are."""
        height, width = zip(*self.extents)
        whole = self.extents[self.base :]
        texels = [sum(h * w for h, w in whole[:index]) for index in range(len(whole))]
        memory = {"pool": self.pool, "table": self.table, "coarse": self.texels, "wanted": self.wanted}
        sizes = {"levels": len(self.extents), "side": self.page, "base": self.base}
        return _JOB.fix(**memory, **sizes, height=list(height), width=list(width), first=[*self.first_pages, *texels])

    def no_kernel_because(self, patch: int | None) -> str | None:
        """Why the kernel cannot sample this, for any device; None if it can."""
        if patch is None:
            return "the kernel for pages samples patches, not points"
        if self.pool.shape[3] != CHANNELS:
            return f"the kernel for pages takes {CHANNELS} channels, not {self.pool.shape[3]}"
        if max(self.size) >= MAX_EXTENT:
            return f"the kernels take extents below {MAX_EXTENT}, not {max(self.size)}"
        return None

    def read(self, level: Tensor, y: Tensor, x: Tensor) -> Tensor:
        """As in FlatLevels, through the page table."""
        if self._of_samples is not None:
            paged = (level < self.base) & self._used
            self.wanted.index_add_(0, self._entry(level, y, x)[paged], self._of_samples.expand(level.shape)[paged])
        slot = self._slot(level, y, x)
        for _ in range(self.base):
            missing = slot < 0
            if not bool(missing.any()):
                break
            level = level + missing.long()
            y = torch.where(missing, torch.minimum(y // 2, self.height[level] - 1), y)
            x = torch.where(missing, torch.minimum(x // 2, self.width[level] - 1), x)
            slot = self._slot(level, y, x)
        paged = level < self.base
        inside = (slot.clamp(min=0) * self.page + y % self.page) * self.page + x % self.page
        fine = self.pool.view(-1, self.pool.shape[3])[torch.where(paged, inside, 0)].to(self.dtype) / self._most
        index = torch.where(paged, 0, self.start[level] - self.start[self.base] + y * self.width[level] + x)
        return torch.where(paged[..., None], fine, self.texels[index])

    def _entry(self, level: Tensor, y: Tensor, x: Tensor) -> Tensor:
        """The entries of the page table."""
        return self.first[level] + y // self.page * self.columns[level] + x // self.page

    def _slot(self, level: Tensor, y: Tensor, x: Tensor) -> Tensor:
        """Where the page of each texel is; -1: missing; 0 for texels of whole levels."""
        if self.base == 0:
            return torch.zeros_like(level)
        paged = level < self.base
        found = self.table[torch.where(paged, self._entry(level, y, x), 0)].long()
        return torch.where(paged, found, 0)


def sample_paged_cuda(levels: PagedLevels, where: Where, patch: int, max_anisotropy: int) -> Tensor:
    """(1, K, 3, P, P); adds to `wanted` if the levels are watched. Positions are float32."""
    centre, ddx, ddy = (tensor.float().contiguous() for tensor in where if tensor is not None)
    count = centre.shape[1]
    pixels = torch.empty((1, count, CHANNELS, patch, patch), device=centre.device)
    if count:
        given = {"weight": levels.weight, "centre": centre, "ddx": ddx, "ddy": ddy, "pixels": pixels}
        parameters = levels.job.pack(**given, patch=patch, max_anisotropy=max_anisotropy)
        grid = (count, patch_parts(count, patch))
        launch("paged.cu", "sample_paged", centre.device, grid, parameters, SCALAR=scalar_bits(torch.float32))
    return pixels
