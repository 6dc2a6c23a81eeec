"""Reading a pyramid between its texels and between its levels, as a texture unit does.

A point lies in level-0 pixels, texel centres at i + 0.5; on level l it scales by W_l / W_0. Beyond the border the
edge texel is repeated. `lookup` blends the two nearest levels (trilinear). `lookup_grad` takes the footprint of a
sample as two axes: the short axis sets the level, and several trilinear probes are spread along the long one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from texturevlm.ops.sampling import MAX_ANISOTROPY, sample

if TYPE_CHECKING:
    from texturevlm.ops.device_texture import DeviceTexture


class Probes(NamedTuple):
    """How a footprint is read: `number` trilinear probes at level `lod`, evenly over `spread` about its centre."""

    lod: Tensor  # (...)
    spread: Tensor  # (..., 2), from the first probe to the last
    number: Tensor  # (...), whole


def lookup(
    levels: list[Tensor] | tuple[Tensor, ...] | DeviceTexture,
    points: Tensor,
    lod: Tensor,
    *,
    nearest: Sequence[int] = (),
    backend: str = "auto",
) -> Tensor:
    """Read a mip pyramid at fractional positions and levels (trilinear, clamped).

    levels:  finest first, each (B, C, H_l, W_l); or a DeviceTexture, filled once and read many times
    points:  (B, N, 2), x then y in level-0 pixels
    lod:     (B, N), 0 is the finest; clamped to the levels there are
    nearest: channels that hold labels: the nearest texel of the nearest level, not filtered
    backend: auto, reference, cuda or texture (which makes a texture for this one call)
    returns  (B, N, C) in the levels' dtype, differentiable in levels, points and lod (not through `nearest`)
    """
    options: Any = {"patch": None, "max_anisotropy": 1, "nearest": nearest, "backend": backend}
    values = sample("lookup", levels, points, lod, None, None, **options)
    return lookup_reference(levels, points, lod, nearest) if values is None else values  # type: ignore[arg-type]


def lookup_grad(
    levels: list[Tensor] | tuple[Tensor, ...] | DeviceTexture,
    points: Tensor,
    ddx: Tensor,
    ddy: Tensor,
    *,
    max_anisotropy: int = MAX_ANISOTROPY,
    nearest: Sequence[int] = (),
    backend: str = "auto",
) -> Tensor:
    """Read a mip pyramid over footprints: anisotropic filtering, up to 16 times as long as wide.

    levels, nearest, backend: as for `lookup`
    points:   (B, N, 2), the centres, x then y in level-0 pixels
    ddx, ddy: (B, N, 2), the footprint's two axes in level-0 pixels, as `tex2DGrad` takes them
    returns   (B, N, C); for a square footprint of side s it is `lookup` at lod log2(s).
              Differentiable in levels, points, ddx and ddy (the number of probes is piecewise constant).
    """
    options: Any = {"patch": None, "max_anisotropy": max_anisotropy, "nearest": nearest, "backend": backend}
    values = sample("lookup_grad", levels, points, None, ddx, ddy, **options)
    if values is None:
        return lookup_grad_reference(levels, points, ddx, ddy, max_anisotropy, nearest)  # type: ignore[arg-type]
    return values


def widened(tensor: Tensor) -> Tensor:
    """Positions need float32 at least: half precision cannot tell neighbouring pixels apart beyond 2048."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def probes(ddx: Tensor, ddy: Tensor, max_anisotropy: int = MAX_ANISOTROPY) -> Probes:
    """How footprints with axes ddx, ddy (..., 2) are read.

    Each probe filters over a square as wide as the short axis (never finer than a texel), so the probes' centres
    spread over what is left of the long axis: their union is exactly as long as the footprint, at every ratio.
    """
    long_axis = torch.where((_length(ddx) >= _length(ddy))[..., None], ddx, ddy)
    long = torch.maximum(_length(ddx), _length(ddy))
    short = torch.minimum(_length(ddx), _length(ddy))
    width = torch.maximum(short, long / max_anisotropy).clamp(min=1.0)
    # A ratio that is whole but for rounding must not cost a probe more.
    count = (long / width - 1e-3).ceil().nan_to_num(1).clamp(1, max_anisotropy)
    spread = long_axis * ((long - width) / long.clamp(min=1e-20)).clamp(min=0.0)[..., None]
    return Probes(width.log2(), spread, count.detach())


def _length(axis: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(axis, dim=-1)
    return length


def lookup_reference(levels: Sequence[Tensor], points: Tensor, lod: Tensor, nearest: Sequence[int] = ()) -> Tensor:
    """The specification of `lookup`."""
    pyramid = _Flat(levels)
    points, lod = widened(points), widened(lod)
    return pyramid.with_labels(pyramid.trilinear(points, lod), points, lod, nearest).to(levels[0].dtype)


def lookup_grad_reference(
    levels: Sequence[Tensor],
    points: Tensor,
    ddx: Tensor,
    ddy: Tensor,
    max_anisotropy: int = MAX_ANISOTROPY,
    nearest: Sequence[int] = (),
) -> Tensor:
    """The specification of `lookup_grad`."""
    pyramid = _Flat(levels)
    points = widened(points)
    lod, spread, count = probes(widened(ddx), widened(ddy), max_anisotropy)
    total = torch.zeros((), dtype=pyramid.dtype, device=points.device)
    for probe in range(int(count.max()) if count.numel() else 1):
        share = (probe < count) / count
        offset = (probe / (count - 1).clamp(min=1) - 0.5) * (count > 1)
        total = total + pyramid.trilinear(points + offset[..., None] * spread, lod) * share[..., None]
    return pyramid.with_labels(total, points, lod, nearest).to(levels[0].dtype)


class _Flat:
    """All levels of a pyramid behind one another, so that points on different levels are read by one gather."""

    def __init__(self, levels: Sequence[Tensor]) -> None:
        device = levels[0].device
        self.texels = torch.cat([level.flatten(2) for level in levels], 2)
        self.dtype = torch.float64 if levels[0].dtype == torch.float64 else torch.float32
        self.last = len(levels) - 1
        extents = torch.tensor([level.shape[-2:] for level in levels], device=device)
        self.height, self.width = extents.unbind(-1)
        self.start = (self.height * self.width).cumsum(0) - self.height * self.width

    def trilinear(self, points: Tensor, lod: Tensor) -> Tensor:
        lod = lod.to(self.dtype).nan_to_num(0).clamp(0, self.last)
        fine = lod.detach().floor().long()
        coarse = (fine + 1).clamp(max=self.last)
        blend = (lod - fine)[..., None]
        return self.bilinear(points, fine) * (1 - blend) + self.bilinear(points, coarse) * blend

    def bilinear(self, points: Tensor, level: Tensor) -> Tensor:
        x0, x1, right = self._axis(points[..., 0], self.width, level)
        y0, y1, down = self._axis(points[..., 1], self.height, level)
        top = self._read(level, y0, x0) * (1 - right) + self._read(level, y0, x1) * right
        bottom = self._read(level, y1, x0) * (1 - right) + self._read(level, y1, x1) * right
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
        labels = self._read(level, y.clamp(zero, height - 1), x.clamp(zero, width - 1))
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

    def _read(self, level: Tensor, y: Tensor, x: Tensor) -> Tensor:
        index = self.start[level] + y * self.width[level] + x
        channels = self.texels.shape[1]
        texels = self.texels.gather(2, index[:, None].expand(-1, channels, -1))
        return texels.transpose(1, 2).to(self.dtype)
