"""What `lookup`, `lookup_grad` and `sample_patches` compute, in plain PyTorch: the specification of all backends.

A point lies in level-0 pixels, texel centres at i + 0.5; on level l it scales by W_l / W_0. Beyond the border the
edge texel is repeated. A footprint is a centre and two axes: the short axis sets the level, and several trilinear
probes are spread along the long one. A patch is P × P samples on the lattice that the axes of a footprint span, each
filtered over exactly one lattice cell.

`sample_cpu` gives the same values, bit for bit, where no gradient is wanted. The specification copies the pyramid into
one tensor and computes where each sample of each probe lies; `sample_cpu` reads footprints of the same levels together,
straight from these levels. An upright footprint has P columns and P rows, so 2 P numbers say where its samples lie.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

MAX_ANISOTROPY = 16


class Where(NamedTuple):
    """Where to sample: points and lod (`lookup`), points and axes (`lookup_grad`), centres and axes of patches."""

    points: Tensor  # (B, N, 2)
    lod: Tensor | None = None  # (B, N)
    ddx: Tensor | None = None  # (B, N, 2)
    ddy: Tensor | None = None


class Options(NamedTuple):
    """How to sample, as the caller of `function` asked for it; patch None: points, not patches."""

    function: str
    patch: int | None
    max_anisotropy: int
    nearest: tuple[int, ...]
    backend: str


class Probes(NamedTuple):
    """How a footprint is read: `number` trilinear probes at level `lod`, evenly over `spread` about its centre."""

    lod: Tensor  # (...)
    spread: Tensor  # (..., 2), from the first probe to the last
    number: Tensor  # (...), whole


def sample_reference(levels: Sequence[Tensor], where: Where, options: Options) -> Tensor:
    """(B, N, C) or (B, K, C, P, P) in the levels' dtype."""
    return sample_pyramid(FlatLevels(levels), where, options).to(levels[0].dtype)


def sample_pyramid(pyramid: FlatLevels, where: Where, options: Options) -> Tensor:
    """(B, N, C) or (B, K, C, P, P) in the pyramid's dtype."""
    points, lod, ddx, ddy = (None if tensor is None else widened(tensor) for tensor in where)
    assert points is not None
    batch, count, patch = *points.shape[:2], options.patch
    if lod is not None:
        total = pyramid.trilinear(points, lod)
    else:
        assert ddx is not None and ddy is not None
        if patch is not None:
            points = lattice(points, ddx, ddy, patch).reshape(batch, -1, 2)
            ddx, ddy = (axis.repeat_interleave(patch * patch, 1) for axis in (ddx, ddy))
        lod, spread, number = probes(ddx, ddy, options.max_anisotropy)
        total = torch.zeros((), dtype=pyramid.dtype, device=points.device)
        for probe in range(int(number.max()) if number.numel() else 1):
            share = (probe < number) / number
            offset = (probe / (number - 1).clamp(min=1) - 0.5) * (number > 1)
            pyramid.begin_probe(probe < number)
            total = total + pyramid.trilinear(points + offset[..., None] * spread, lod) * share[..., None]
    values = pyramid.with_labels(total, points, lod, options.nearest)
    if patch is None:
        return values
    return values.reshape(batch, count, patch, patch, values.shape[-1]).permute(0, 1, 4, 2, 3).contiguous()


def widened(tensor: Tensor) -> Tensor:
    """Positions need float32 at least: half precision cannot tell neighbouring pixels apart beyond 2048."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def lattice(centre: Tensor, ddx: Tensor, ddy: Tensor, patch: int) -> Tensor:
    """The P × P sample points of each footprint, (B, K, P, P, 2), rows along ddy."""
    step = torch.arange(patch, device=centre.device, dtype=centre.dtype) + 0.5 - patch / 2
    centre, ddx, ddy = (tensor[:, :, None, None] for tensor in (centre, ddx, ddy))
    return centre + step[:, None] * ddx + step[:, None, None] * ddy


def probes(ddx: Tensor, ddy: Tensor, max_anisotropy: int = MAX_ANISOTROPY) -> Probes:
    """How footprints with axes ddx, ddy (..., 2) are read.

    Each probe filters over a square as wide as the short axis (never finer than a texel), so the probes' centres
    spread over what is left of the long axis: their union is exactly as long as the footprint, at every ratio.
    """
    along, down = (torch.linalg.vector_norm(axis, dim=-1) for axis in (ddx, ddy))
    long_axis = torch.where((along >= down)[..., None], ddx, ddy)
    long, short = torch.maximum(along, down), torch.minimum(along, down)
    width = torch.maximum(short, long / max_anisotropy).clamp(min=1.0)
    # A ratio that is a whole number up to rounding must not take one more probe.
    count = (long / width - 1e-3).ceil().nan_to_num(1).clamp(1, max_anisotropy)
    spread = long_axis * ((long - width) / long.clamp(min=1e-20)).clamp(min=0.0)[..., None]
    return Probes(width.log2(), spread, count.detach())


class FlatLevels:
    """All levels of a pyramid behind one another, so that points on different levels are read by one gather."""

    def __init__(self, levels: Sequence[Tensor]) -> None:
        self.texels = torch.cat([level.flatten(2) for level in levels], 2)
        self.dtype = torch.float64 if levels[0].dtype == torch.float64 else torch.float32
        self.lay_out([(level.shape[2], level.shape[3]) for level in levels])

    def lay_out(self, extents: Sequence[tuple[int, int]]) -> None:
        """Say which level begins where, for levels of these extents, finest first."""
        self.last = len(extents) - 1
        self.height, self.width = torch.tensor(extents, device=self.texels.device).unbind(-1)
        self.start = (self.height * self.width).cumsum(0) - self.height * self.width

    def begin_probe(self, used: Tensor) -> None:
        """Called before each probe of all samples; used: (B, N), which of them have so many."""

    def trilinear(self, points: Tensor, lod: Tensor) -> Tensor:
        lod = lod.to(self.dtype).nan_to_num(0).clamp(0, self.last)
        fine = lod.detach().floor().long()
        coarse = (fine + 1).clamp(max=self.last)
        blend = (lod - fine)[..., None]
        return self.bilinear(points, fine) * (1 - blend) + self.bilinear(points, coarse) * blend

    def bilinear(self, points: Tensor, level: Tensor) -> Tensor:
        x0, x1, right = self._axis(points[..., 0], self.width, level)
        y0, y1, down = self._axis(points[..., 1], self.height, level)
        top = self.read(level, y0, x0) * (1 - right) + self.read(level, y0, x1) * right
        bottom = self.read(level, y1, x0) * (1 - right) + self.read(level, y1, x1) * right
        return top * (1 - down) + bottom * down

    def with_labels(self, texels: Tensor, points: Tensor, lod: Tensor, channels: Sequence[int]) -> Tensor:
        """Channels that hold labels, read at the nearest texel of the nearest level instead."""
        if not channels:
            return texels
        level = (lod.detach().nan_to_num(0).clamp(0, self.last) + 0.5).floor().long()
        width, height = self.width[level], self.height[level]
        x = (points[..., 0].detach().nan_to_num(0) * (width / self.width[0])).floor().long()
        y = (points[..., 1].detach().nan_to_num(0) * (height / self.height[0])).floor().long()
        zero = torch.zeros_like(x)
        labels = self.read(level, y.clamp(zero, height - 1), x.clamp(zero, width - 1))
        chosen = torch.zeros(texels.shape[-1], dtype=torch.bool, device=texels.device)
        chosen[list(channels)] = True
        return torch.where(chosen, labels, texels)

    def _axis(self, position: Tensor, extents: Tensor, level: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The two texels around a position along one axis, and how far it is from the first to the second."""
        extent = extents[level]
        texel = position.to(self.dtype) * (extent.to(self.dtype) / extents[0].to(self.dtype)) - 0.5
        # NaN reads the first texel, as in the kernels: never memory outside of the level.
        texel = texel.nan_to_num(0).clamp(torch.zeros_like(texel), (extent - 1).to(self.dtype))
        first = texel.detach().floor().long()
        return first, torch.minimum(first + 1, extent - 1), (texel - first)[..., None]

    def read(self, level: Tensor, y: Tensor, x: Tensor) -> Tensor:
        """The texels (B, N, C) at whole positions (B, N), each on a level of its own."""
        index = self.start[level] + y * self.width[level] + x
        channels = self.texels.shape[1]
        texels = self.texels.gather(2, index[:, None].expand(-1, channels, -1))
        return texels.transpose(1, 2).to(self.dtype)


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
