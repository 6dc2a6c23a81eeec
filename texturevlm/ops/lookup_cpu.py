"""lookup, lookup_grad and sample_patches on a CPU, where no gradient is wanted: the reference's values, bit for bit.

The reference copies the pyramid into one tensor and computes where each sample of each probe lies. Here footprints of
the same levels are read together, straight from these levels. An upright footprint has P columns and P rows, so 2 P
numbers say where its samples lie, not 2 P².
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from texturevlm.ops.lookup_reference import Options, Probes, Where, probes, widened

AT_ONCE = 1 << 18  # values computed together, so that what lies between two steps stays in the processor's cache


class Kind(NamedTuple):
    """How footprints are read: from `level`, and the next coarser one if `blended`; `upright`: by columns and rows."""

    level: int
    blended: bool
    upright: bool


class Footprints(NamedTuple):
    """N footprints of one image."""

    centre: Tensor  # (N, 2)
    ddx: Tensor
    ddy: Tensor
    lod: Tensor  # (N)
    spread: Tensor  # (N, 2), of the probes
    number: Tensor  # (N), of the probes

    def at(self, chosen: int | slice | Tensor) -> Footprints:
        return Footprints(*(column[chosen] for column in self))


@torch.no_grad()
def sample_cpu(levels: Sequence[Tensor], where: Where, options: Options) -> Tensor:
    """(B, N, C) or (B, K, C, P, P) in the levels' dtype."""
    points, lod, ddx, ddy = (None if tensor is None else widened(tensor) for tensor in where)
    assert points is not None
    if ddx is None or ddy is None:
        assert lod is not None
        ddx = ddy = torch.zeros_like(points)
        how = Probes(lod, ddx, torch.ones_like(lod))
    else:
        how = probes(ddx, ddy, options.max_anisotropy)
    patch, (batch, channels) = options.patch or 1, levels[0].shape[:2]
    found = levels[0].new_empty(batch, points.shape[1], channels, patch, patch)
    for image in range(batch):
        footprints = Footprints(points, ddx, ddy, *how).at(image)
        reader = LevelReader([level[image] for level in levels], patch, options.nearest)
        for kind, members in reader.by_kind(footprints):
            for some in members.split(max(1, AT_ONCE // (channels * patch * patch))):
                values = reader.patches(kind, footprints.at(some))
                found[image].index_copy_(0, some, values.transpose(0, 1).to(found.dtype))
    return found if options.patch is not None else found[..., 0, 0]


class LevelReader:
    """Reads patches of one image. levels: (C, H_l, W_l); nearest: channels that hold labels"""

    def __init__(self, levels: Sequence[Tensor], patch: int, nearest: Sequence[int]) -> None:
        self.texels = [level.flatten(1) for level in levels]  # no copy, unless a level was cut out of a larger tensor
        self.extents = [torch.tensor(level.shape[:0:-1]) for level in levels]  # width, height
        self.dtype = torch.float64 if levels[0].dtype == torch.float64 else torch.float32
        self.step = torch.arange(patch) + 0.5 - patch / 2
        self.nearest = list(nearest)

    def by_kind(self, footprints: Footprints) -> Iterator[tuple[Kind, Tensor]]:
        """Every kind, and which footprints are of it, those with the most probes first."""
        level, blend = self._levels(footprints.lod)
        upright = (footprints.ddx[:, 1] == 0) & (footprints.ddy[:, 0] == 0)
        code = level * 4 + (blend > 0) * 2 + upright
        for one in code.bincount().nonzero()[:, 0].tolist():
            members = (code == one).nonzero()[:, 0]
            most_first = footprints.number[members].argsort(descending=True, stable=True)
            yield Kind(one // 4, one % 4 >= 2, one % 2 == 1), members[most_first]

    def patches(self, kind: Kind, footprints: Footprints) -> Tensor:
        """(C, n, P, P), of footprints of one kind, those with the most probes first."""
        points = self._lattice(kind, footprints)
        total = self._probe(0, kind, footprints, points)
        for probe in range(1, int(footprints.number[0])):
            own = slice(int((footprints.number > probe).sum()))
            total[:, own] += self._probe(probe, kind, footprints.at(own), [axis[own] for axis in points])
        if self.nearest:
            total[self.nearest] = self._labels(footprints.lod, points).to(total.dtype)
        return total

    def _probe(self, probe: int, kind: Kind, footprints: Footprints, points: Sequence[Tensor]) -> Tensor:
        """What one probe adds to each sample, (C, n, P, P)."""
        if footprints.number[0] == 1:
            return self._trilinear(kind, points, footprints.lod)
        number, spread = footprints.number[:, None, None], footprints.spread[:, None, None]
        offset = (probe / (number - 1).clamp(min=1) - 0.5) * (number > 1)
        at = [axis + offset * spread[..., index] for index, axis in enumerate(points)]
        return self._trilinear(kind, at, footprints.lod) * (1 / number)

    def _trilinear(self, kind: Kind, points: Sequence[Tensor], lod: Tensor) -> Tensor:
        """(C, n, P, P)."""
        values = self._bilinear(kind.level, points)
        if not kind.blended:
            return values
        blend = self._levels(lod)[1][:, None, None]
        return values.mul_(1 - blend).add_(self._bilinear(kind.level + 1, points).mul_(blend))

    def _levels(self, lod: Tensor) -> tuple[Tensor, Tensor]:
        """The finer of the two levels that are blended, and the weight of the coarser."""
        lod = lod.to(self.dtype).nan_to_num(0).clamp(0, len(self.texels) - 1)
        fine = lod.floor()
        return fine.long(), lod - fine

    def _lattice(self, kind: Kind, footprints: Footprints) -> list[Tensor]:
        """x and y of the samples, (n, P, P), or what can be expanded to it; rows along ddy."""
        centre, ddx, ddy = (column.unbind(-1) for column in footprints[:3])
        across, down = self.step.to(footprints.centre.dtype), self.step.to(footprints.centre.dtype)[:, None]
        points = []
        for axis in (0, 1):
            at = centre[axis][:, None, None]
            if not kind.upright or axis == 0:
                at = at + across * ddx[axis][:, None, None]
            if not kind.upright or axis == 1:
                at = at + down * ddy[axis][:, None, None]
            points.append(at)
        return points

    def _bilinear(self, level: int, points: Sequence[Tensor]) -> Tensor:
        """(C, n, P, P)."""
        (x0, x1, right), (y0, y1, down) = (self._axis(level, axis, at) for axis, at in enumerate(points))

        def along(y: Tensor) -> Tensor:
            return self._read(level, x0, y).mul_(1 - right).add_(self._read(level, x1, y).mul_(right))

        first = y0.amin((1, 2), keepdim=True)
        rows = int((y1 - first).max()) + 1
        if y0.shape[2] == 1 and rows < 2 * y0.shape[1]:
            # Upright, and samples share rows of texels: each row is read and blended along x once.
            shared = along((first + torch.arange(rows)[:, None]).clamp(max=int(self.extents[level][1]) - 1))
            start = torch.arange(len(first))[:, None, None] * rows - first
            index, shape = [(start + y).flatten() for y in (y0, y1)], (len(shared), len(first), y0.shape[1], -1)
            top, bottom = (shared.flatten(1, 2).index_select(1, one).view(shape) for one in index)
        else:
            top, bottom = along(y0), along(y1)
        return top.mul_(1 - down).add_(bottom.mul_(down))

    def _axis(self, level: int, axis: int, position: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The two texels around positions along an axis, and how far they are from the first to the second."""
        extent, finest = self.extents[level][axis], self.extents[0][axis]
        texel = position.to(self.dtype) * (extent.to(self.dtype) / finest.to(self.dtype)) - 0.5
        texel = texel.nan_to_num(0).clamp(0, int(extent) - 1)
        first = texel.floor()
        return first.long(), (first.long() + 1).clamp(max=int(extent) - 1), texel - first

    def _read(self, level: int, x: Tensor, y: Tensor) -> Tensor:
        """The texels at whole positions, (C, n, P, P)."""
        index = y * self.extents[level][0] + x
        return self.texels[level].index_select(1, index.flatten()).to(self.dtype).view(-1, *index.shape)

    def _labels(self, lod: Tensor, points: Sequence[Tensor]) -> Tensor:
        """The nearest texels of the nearest level, of the channels that hold labels."""
        labels = torch.zeros(())
        nearest = (lod.nan_to_num(0).clamp(0, len(self.texels) - 1) + 0.5).floor().long()[:, None, None]
        for level in nearest.unique().tolist():
            extent = self.extents[level]
            shrink = extent / self.extents[0]
            texels = (at.nan_to_num(0) * part for at, part in zip(points, shrink))
            x, y = (texel.floor().clamp(0, most - 1).long() for texel, most in zip(texels, extent.tolist()))
            labels = torch.where(nearest == level, self._read(level, x, y)[self.nearest], labels)
        return labels
