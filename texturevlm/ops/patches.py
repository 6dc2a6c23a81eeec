"""Sampling footprints into patches: the hot path.

A footprint is a centre and two axes; its patch is P × P samples on the lattice that the axes span, each filtered over
exactly one lattice cell. An ordinary patch at level l has axes (2^l, 0) and (0, 2^l), l may be fractional.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from texturevlm.ops.lookup import lookup_grad_reference, widened
from texturevlm.ops.sampling import MAX_ANISOTROPY, sample

if TYPE_CHECKING:
    from texturevlm.ops.device_texture import DeviceTexture


def sample_patches(
    levels: list[Tensor] | tuple[Tensor, ...] | DeviceTexture,
    centre: Tensor,
    ddx: Tensor,
    ddy: Tensor,
    *,
    patch: int,
    max_anisotropy: int = MAX_ANISOTROPY,
    nearest: Sequence[int] = (),
    backend: str = "auto",
) -> Tensor:
    """Sample a pyramid over footprints.

    levels:        finest first, each (B, C, H_l, W_l); or a DeviceTexture, filled once and sampled many times
    centre:        (B, K, 2), x then y in level-0 pixels
    ddx, ddy:      (B, K, 2), how far one step along the patch's own x and y axis moves in the image
    patch:         samples along each side of a patch
    max_anisotropy: how many times longer than wide a sample's footprint may be; longer ones are read too coarsely
    nearest:       channels that hold labels: the nearest texel, not filtered (a DeviceTexture has its own)
    backend:       auto, reference, cuda or texture
    returns        (B, K, C, P, P), differentiable in levels, centre, ddx and ddy
    """
    options: Any = {"patch": patch, "max_anisotropy": max_anisotropy, "nearest": nearest, "backend": backend}
    values = sample("sample_patches", levels, centre, None, ddx, ddy, **options)
    if values is None:
        return sample_patches_reference(levels, centre, ddx, ddy, patch, max_anisotropy, nearest)  # type: ignore[arg-type]
    return values


def lattice(centre: Tensor, ddx: Tensor, ddy: Tensor, patch: int) -> Tensor:
    """The P × P sample points of each footprint, (B, K, P, P, 2), rows along ddy."""
    step = torch.arange(patch, device=centre.device, dtype=centre.dtype) + 0.5 - patch / 2
    return (
        centre[:, :, None, None] + step[:, None] * ddx[:, :, None, None] + step[:, None, None] * ddy[:, :, None, None]
    )


def sample_patches_reference(
    levels: Sequence[Tensor],
    centre: Tensor,
    ddx: Tensor,
    ddy: Tensor,
    patch: int,
    max_anisotropy: int = MAX_ANISOTROPY,
    nearest: Sequence[int] = (),
) -> Tensor:
    """The specification: `lookup_grad` at every point of the lattice."""
    batch, count = centre.shape[:2]
    centre, ddx, ddy = widened(centre), widened(ddx), widened(ddy)
    points = lattice(centre, ddx, ddy, patch).reshape(batch, -1, 2)
    along, down = (axis.repeat_interleave(patch * patch, 1) for axis in (ddx, ddy))
    texels = lookup_grad_reference(levels, points, along, down, max_anisotropy, nearest)
    return texels.reshape(batch, count, patch, patch, texels.shape[-1]).permute(0, 1, 4, 2, 3).contiguous()
