"""lookup, lookup_grad and sample_patches on the GPU: forward by our kernels or the texture units, backward by kernels.

All three are samples of a pyramid and share one autograd function. The kernel gives the gradient of each sample's
own five numbers (x, y, lod and the probes' spread); the small step from there to points or footprints is PyTorch's.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from texturevlm.ops.cuda.launch import MAX_LEVELS, THREADS, address, launch, pack_pyramid, padded, scalar_bits
from texturevlm.ops.cuda.texture import DeviceTexture
from texturevlm.ops.lookup import probes
from texturevlm.ops.patches import lattice

CHANNELS_A_THREAD = 4
_GRADIENT = struct.Struct(f"={MAX_LEVELS}QQ")
_NO_GRADIENT = bytes(_GRADIENT.size)
_LOOKUP = struct.Struct("=5Qq2if4x")
_PATCHES = struct.Struct("=4Q3if")


@dataclass(frozen=True)
class _Job:
    """What does not change between forward and backward."""

    patch: int | None  # None: points, not patches
    max_anisotropy: int
    nearest: tuple[int, ...]
    hardware: bool


def lookup_cuda(
    levels: Sequence[Tensor], points: Tensor, lod: Tensor, nearest: tuple[int, ...], *, hardware: bool
) -> Tensor:
    return _run(_Job(None, 1, nearest, hardware), levels, points, lod, None, None)


def lookup_grad_cuda(
    levels: Sequence[Tensor],
    points: Tensor,
    ddx: Tensor,
    ddy: Tensor,
    max_anisotropy: int,
    nearest: tuple[int, ...],
    *,
    hardware: bool,
) -> Tensor:
    return _run(_Job(None, max_anisotropy, nearest, hardware), levels, points, None, ddx, ddy)


def sample_patches_cuda(
    levels: Sequence[Tensor],
    centre: Tensor,
    ddx: Tensor,
    ddy: Tensor,
    patch: int,
    max_anisotropy: int,
    nearest: tuple[int, ...],
    *,
    hardware: bool,
) -> Tensor:
    return _run(_Job(patch, max_anisotropy, nearest, hardware), levels, centre, None, ddx, ddy)


def _run(
    job: _Job, levels: Sequence[Tensor], points: Tensor, lod: Tensor | None, ddx: Tensor | None, ddy: Tensor | None
) -> Tensor:
    inputs = (points, lod, ddx, ddy)
    if torch.is_grad_enabled() and any([t.requires_grad for t in (*inputs, *levels) if t is not None]):
        return _Probe.apply(job, *inputs, *levels)
    return _forward(job, levels, *map(_plain, inputs))


def _plain(tensor: Tensor | None) -> Tensor | None:
    if tensor is None or (tensor.dtype is torch.float32 and tensor.is_contiguous()):
        return tensor
    return tensor.float().contiguous()


def _forward(job: _Job, levels: Sequence[Tensor], points: Any, lod: Any, ddx: Any, ddy: Any) -> Tensor:
    if job.hardware:
        texture = DeviceTexture(levels, half=levels[0].dtype == torch.float16, nearest=job.nearest)
        return texture.fetch(points, lod, ddx, ddy, job.patch, job.max_anisotropy)
    batch, count = points.shape[:2]
    channels = levels[0].shape[1]
    shape = (batch, count, channels) if job.patch is None else (batch, count, channels, job.patch, job.patch)
    values = levels[0].new_empty(shape)
    if values.numel():
        _launch(job, "", levels, points, lod, ddx, ddy, values, (), None)
    return values


def _launch(
    job: _Job,
    suffix: str,
    levels: Sequence[Tensor],
    points: Tensor,
    lod: Tensor | None,
    ddx: Tensor | None,
    ddy: Tensor | None,
    values: Tensor,
    level_gradients: Sequence[Tensor],
    sample_gradient: Tensor | None,
) -> None:
    """Start the forward kernel (suffix "") or the backward one ("_backward")."""
    batch, count = points.shape[:2]
    groups = -(-levels[0].shape[1] // CHANNELS_A_THREAD)
    parameters = pack_pyramid(levels, job.nearest)
    if suffix:
        parameters += _GRADIENT.pack(*padded([g.data_ptr() for g in level_gradients]), address(sample_gradient))
    else:
        parameters += _NO_GRADIENT
    scalar = scalar_bits(levels[0].dtype)
    if job.patch is None:
        together = levels[0].stride(1) == 1 and levels[0].shape[1] > 1
        parameters += _LOOKUP.pack(
            *(address(tensor) for tensor in (points, lod, ddx, ddy, values)),
            batch * count,
            count,
            together,
            job.max_anisotropy,
        )
        blocks = -(-batch * count * groups // THREADS)
        launch("lookup.cu", "lookup" + suffix, values.device, blocks, parameters, SCALAR=scalar)
    else:
        parameters += _PATCHES.pack(
            *(address(tensor) for tensor in (points, ddx, ddy, values)), count, job.patch, groups, job.max_anisotropy
        )
        blocks = batch * count * groups
        launch("patches.cu", "sample_patches" + suffix, values.device, blocks, parameters, SCALAR=scalar)


class _Probe(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, job: _Job, points: Any, lod: Any, ddx: Any, ddy: Any, *levels: Tensor) -> Tensor:
        ctx.job = job
        ctx.save_for_backward(points, lod, ddx, ddy, *levels)
        return _forward(job, levels, *(_plain(tensor) for tensor in (points, lod, ddx, ddy)))

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        points, lod, ddx, ddy, *levels = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        gradient = upstream[0].to(levels[0].dtype).contiguous()
        level_gradients = _zeros_like_levels(levels) if any(wanted[5:]) else []
        samples = gradient.numel() // levels[0].shape[1]
        sample_gradient = None
        if any(wanted[1:5]):
            sample_gradient = torch.zeros(samples, 5, dtype=torch.float32, device=gradient.device)
        if gradient.numel():
            plain = [_plain(tensor) for tensor in (points, lod, ddx, ddy)]
            _launch(ctx.job, "_backward", levels, *plain, gradient, level_gradients, sample_gradient)  # type: ignore[arg-type]
        of_inputs = _input_gradients(ctx.job, sample_gradient, (points, lod, ddx, ddy), wanted[1:5])
        of_levels = [g.to(levels[0].dtype) for g in level_gradients] or [None] * len(levels)
        return (None, *of_inputs, *of_levels)


def _zeros_like_levels(levels: Sequence[Tensor]) -> list[Tensor]:
    """Float gradients of all levels, in one allocation zeroed at once."""
    sizes = [level.numel() for level in levels]
    flat = torch.zeros(sum(sizes), dtype=torch.float32, device=levels[0].device)
    return [part.view(level.shape) for part, level in zip(flat.split(sizes), levels)]


def _input_gradients(
    job: _Job, of_samples: Tensor | None, inputs: Sequence[Tensor | None], wanted: Sequence[bool]
) -> list[Tensor | None]:
    """From the samples' five numbers to the tensors that the caller gave."""
    gradients: list[Tensor | None] = [None] * 4
    if of_samples is None:
        return gradients
    points = inputs[0]
    assert points is not None
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_(want) if t is not None else None for t, want in zip(inputs, wanted)]
        numbers = _sample_numbers(job, *leaves)
    needed = [i for i, leaf in enumerate(leaves) if leaf is not None and leaf.requires_grad]
    upstream = of_samples.view(*points.shape[:2], -1, 5)
    found = torch.autograd.grad(
        numbers,
        [leaves[i] for i in needed],
        upstream.to(numbers.dtype),
        allow_unused=True,  # type: ignore[misc]
    )
    for i, gradient in zip(needed, found):
        gradients[i] = gradient
    return gradients


def _sample_numbers(job: _Job, points: Any, lod: Any, ddx: Any, ddy: Any) -> Tensor:
    """x, y, lod and spread of every sample, (B, N or K, 1 or P², 5), as the kernel computes them from its inputs."""
    if lod is not None:
        return torch.cat([points, lod[..., None], torch.zeros_like(points)], -1)[:, :, None]
    level, spread, _ = probes(ddx, ddy, job.max_anisotropy)
    shape = torch.cat([level[..., None], spread], -1)[:, :, None]
    if job.patch is None:
        return torch.cat([points[:, :, None], shape], -1)
    where = lattice(points, ddx, ddy, job.patch).flatten(2, 3)
    return torch.cat([where, shape.expand(-1, -1, where.shape[2], -1)], -1)
