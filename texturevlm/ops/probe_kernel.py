"""lookup, lookup_grad and sample_patches on the GPU: forward by our kernels or the texture units, backward by kernels.

All three are samples of a pyramid and share one autograd function. The kernel gives the gradient of each sample's
own five numbers (x, y, lod and the probes' spread); the small step from there to points or footprints is PyTorch's.
Gradients of texels are added by float atomics, in any order, so their last bits vary from run to run.
"""

import itertools
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from texturevlm.cuda.launch import MAX_LEVELS, THREADS, address, launch, pack_pyramid, padded, scalar_bits
from texturevlm.ops.device_texture import DeviceTexture
from texturevlm.ops.lookup import probes, widened
from texturevlm.ops.patches import lattice

CHANNELS_PER_THREAD = 4
BUSY = 1200  # blocks
_GRADIENT = struct.Struct(f"={MAX_LEVELS}QQ")
_NO_GRADIENT = bytes(_GRADIENT.size)
_LOOKUP = struct.Struct("=5Qq2if4x")
_PATCHES = struct.Struct("=4Q3if")


class Job(NamedTuple):
    """What does not change between forward and backward."""

    patch: int | None  # None: points, not patches
    max_anisotropy: int
    nearest: tuple[int, ...]
    hardware: bool


class _Where(NamedTuple):
    """What the caller gave: points and lod, points and axes, or centres and axes."""

    points: Tensor
    lod: Tensor | None
    ddx: Tensor | None
    ddy: Tensor | None


def probe(
    job: Job,
    levels: Sequence[Tensor],
    points: Tensor,
    lod: Tensor | None = None,
    ddx: Tensor | None = None,
    ddy: Tensor | None = None,
) -> Tensor:
    """Sample levels at points and lod, over footprints about points, or in patches about centres."""
    where = _Where(points, lod, ddx, ddy)
    if torch.is_grad_enabled():
        for tensor in (*where, *levels):
            if tensor is not None and tensor.requires_grad:
                return _Probe.apply(job, *where, *levels)
    return _forward(job, levels, where)


def _plain(where: _Where) -> _Where:
    """As the kernels read it: contiguous float32, which it nearly always is."""
    for tensor in where:
        if tensor is not None and not (tensor.dtype is torch.float32 and tensor.is_contiguous()):
            break
    else:
        return where
    points, *others = (None if tensor is None else tensor.float().contiguous() for tensor in where)
    assert points is not None
    return _Where(points, *others)


def _forward(job: Job, levels: Sequence[Tensor], where: _Where) -> Tensor:
    if job.hardware:
        half = levels[0].dtype == torch.float16 and not job.nearest
        texture = DeviceTexture(levels, half=half, nearest=job.nearest)
        return texture.fetch(*where, job.patch, job.max_anisotropy)
    where = _plain(where)
    batch, count = where.points.shape[:2]
    channels = levels[0].shape[1]
    shape = (batch, count, channels) if job.patch is None else (batch, count, channels, job.patch, job.patch)
    values = levels[0].new_empty(shape)
    if values.numel():
        _launch(job, "", levels, where, values, _NO_GRADIENT)
    return values


def _launch(job: Job, suffix: str, levels: Sequence[Tensor], where: _Where, values: Tensor, gradient: bytes) -> None:
    """Start the forward kernel (suffix "") or the backward one ("_backward")."""
    batch, count = where.points.shape[:2]
    channels = levels[0].shape[1]
    groups = -(-channels // CHANNELS_PER_THREAD)
    parameters = pack_pyramid(levels, job.nearest) + gradient
    scalar = scalar_bits(levels[0].dtype)
    if job.patch is not None:
        footprints = (address(where.points), address(where.ddx), address(where.ddy))
        parameters += _PATCHES.pack(*footprints, address(values), count, job.patch, groups, job.max_anisotropy)
        grid = (batch * count * groups, 1 if suffix else patch_parts(batch * count * groups, job.patch))
        return launch("patches.cu", "sample_patches" + suffix, values.device, grid, parameters, SCALAR=scalar)
    fours = channels % CHANNELS_PER_THREAD == 0 and values.data_ptr() % (4 * values.element_size()) == 0
    pointers = (address(where.points), address(where.lod), address(where.ddx), address(where.ddy), address(values))
    parameters += _LOOKUP.pack(*pointers, batch * count, count, fours, job.max_anisotropy)
    name, threads, define = "lookup" + suffix, THREADS, {"FOOTPRINTS": int(where.lod is None), "NEAREST": int(bool(job.nearest))}
    if suffix:
        define["OF_SAMPLES"] = int(any(gradient[-8:]))
    else:
        define["CHANNELS"] = min(channels, CHANNELS_PER_THREAD)
    blocks = (-(-batch * count // THREADS), groups)
    if suffix or (channels > 1 and all([level.stride(1) == 1 for level in levels])):
        vector = not suffix and readable_by_fours(levels)
        tuned = TUNED_BACKWARD if suffix else TUNED_VECTOR if vector else TUNED_SCALAR
        define = {**define, **(tuned["one"] if groups == 1 else tuned["more"]), **({} if suffix else {"VECTOR": int(vector)})}
        name, threads = "lookup_texels" if not suffix else name, define.pop("threads")
        blocks = (-(-batch * count // (define["POINTS"] * threads // 32)), 1)
    launch("lookup.cu", name, values.device, blocks, parameters, threads=threads, SCALAR=scalar, **define)


# How lookup_texels and lookup_backward are compiled and started: one group of channels per point, or more.
TUNED_VECTOR = {
    "one": {"threads": 128, "POINTS": 32, "SHARE": 0, "STREAM": 0},
    "more": {"threads": 128, "POINTS": 16, "SHARE": 1, "STREAM": 1},
}
TUNED_SCALAR = TUNED_BACKWARD = TUNED_VECTOR


def readable_by_fours(levels: Sequence[Tensor]) -> bool:
    """Whether four contiguous channels are one aligned load on every level; what lies beyond the last is padding."""
    channels, size = levels[0].shape[1], levels[0].element_size()
    room = -(-channels // 4) * 4
    for level in levels:
        image, channel, row, column = level.stride()
        if channel != 1 or (image | row | column) & 3 or level.data_ptr() % (4 * size):
            return False
        if room != channels:  # the last texel's padding must belong to the tensor's memory, too
            shape = level.shape
            last = (shape[0] - 1) * image + (shape[2] - 1) * row + (shape[3] - 1) * column + room
            if column < room or (level.storage_offset() + last) * size > level.untyped_storage().nbytes():
                return False
    return True


def patch_parts(blocks: int, patch: int) -> int:
    """Into how many parts the pixels of a patch are split, so that few patches keep a large GPU busy, too."""
    return max(1, min(BUSY // blocks, -(-patch * patch // THREADS)))


class _Probe(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, job: Job, points: Any, lod: Any, ddx: Any, ddy: Any, *levels: Tensor) -> Tensor:
        ctx.job = job
        ctx.save_for_backward(points, lod, ddx, ddy, *levels)
        return _forward(job, levels, _Where(points, lod, ddx, ddy))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        where, levels = _Where(*ctx.saved_tensors[:4]), ctx.saved_tensors[4:]
        wanted = ctx.needs_input_grad
        arriving = upstream[0].to(levels[0].dtype).contiguous()
        level_gradients = _zeros_like_levels(levels, ctx.job.patch is not None) if any(wanted[5:]) else []
        of_samples = None
        if any(wanted[1:5]):
            samples = arriving.numel() // levels[0].shape[1]
            of_samples = torch.zeros(samples, 5, dtype=torch.float32, device=arriving.device)
        if arriving.numel():
            packed = _GRADIENT.pack(*padded([g.data_ptr() for g in level_gradients]), address(of_samples))
            _launch(ctx.job, "_backward", levels, _plain(where), arriving, packed)
        of_where: list[Tensor | None] = [None] * 4
        if of_samples is not None:
            of_where = _gradient_of_where(ctx.job, of_samples, where, wanted[1:5])
        of_levels: list[Tensor | None] = [gradient.to(levels[0].dtype) for gradient in level_gradients]
        return (None, *of_where, *(of_levels or [None] * len(levels)))


def _zeros_like_levels(levels: Sequence[Tensor], planar: bool) -> list[Tensor]:
    """Float gradients of all levels, in one allocation zeroed at once: planar, or as lookup.cu adds into them."""
    batch, channels = levels[0].shape[:2]
    room = channels if planar else -(-channels // 4) * 4
    sizes = [batch * room * level.shape[2] * level.shape[3] for level in levels]
    starts = list(itertools.accumulate((-(-size // 4) * 4 for size in sizes), initial=0))
    flat = torch.zeros(starts[-1], dtype=torch.float32, device=levels[0].device)
    gradients = []
    for level, start in zip(levels, starts):
        height, width = level.shape[2:]
        strides = (height * width, width, 1) if planar else (1, width * room, room)
        gradients.append(flat.as_strided(level.shape, (room * height * width, *strides), start))
    return gradients


def _gradient_of_where(job: Job, of_samples: Tensor, where: _Where, wanted: Sequence[bool]) -> list[Tensor | None]:
    """From the samples' five numbers to the tensors that the caller gave."""
    with torch.enable_grad():
        leaves = [None if t is None else t.detach().requires_grad_(want) for t, want in zip(where, wanted)]
        numbers = _sample_numbers(job, *leaves)
    needed = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
    upstream = of_samples.view(*where.points.shape[:2], -1, 5).to(numbers.dtype)
    found = iter(torch.autograd.grad(numbers, needed, upstream, allow_unused=True))
    return [next(found) if leaf is not None and leaf.requires_grad else None for leaf in leaves]


def _sample_numbers(job: Job, points: Any, lod: Any, ddx: Any, ddy: Any) -> Tensor:
    """x, y, lod and spread of every sample, (B, N or K, 1 or P², 5), as the kernel computes them from its inputs."""
    points, lod, ddx, ddy = (None if t is None else widened(t) for t in (points, lod, ddx, ddy))
    if lod is not None:
        return torch.cat([points, lod[..., None], torch.zeros_like(points)], -1)[:, :, None]
    level, spread, _ = probes(ddx, ddy, job.max_anisotropy)
    shape = torch.cat([level[..., None], spread], -1)[:, :, None]
    if job.patch is None:
        return torch.cat([points[:, :, None], shape], -1)
    where = lattice(points, ddx, ddy, job.patch).flatten(2, 3)
    return torch.cat([where, shape.expand(-1, -1, where.shape[2], -1)], -1)
