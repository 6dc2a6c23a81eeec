"""lookup, lookup_grad and sample_patches on the GPU: forward by our kernels or the texture units, backward by kernels.

All three are samples of a pyramid and share one autograd function. The kernel gives the gradient of each sample's
own five numbers (x, y, lod and the probes' spread); the small step from there to points or footprints is PyTorch's.
Gradients of texels are added by float atomics, in any order, so their last bits vary from run to run.
"""

import itertools
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from texturevlm.cuda.launch import MAX_LEVELS, THREADS, launch, pack_pyramid, scalar_bits
from texturevlm.cuda.struct import Layout, address
from texturevlm.ops.device_texture import DeviceTexture
from texturevlm.ops.lookup import probes, widened
from texturevlm.ops.patches import lattice
from texturevlm.ops.sampling import Call

CHANNELS_PER_THREAD = 4
PAIR_BYTES = 8  # of x and y
BUSY = 1200  # blocks
_LOOKUP = Layout("lookup.cu", "Lookup")
_PATCHES = Layout("patches.cu", "PatchJob")
_GRADIENT = Layout("lookup.cu", "Gradient")

# How lookup_texels and lookup_backward are compiled and started, measured best on an H200: for one group of channels
# per point, and for more.
ONE_GROUP = {"threads": 64, "POINTS": 32, "SHARE": 0}
MORE_GROUPS = {"threads": 128, "POINTS": 16, "SHARE": 1}
COPIES = 64  # of the gradient of a level of one texel; in all, a small level gets as many texels


class _Where(NamedTuple):
    """What the caller gave: points and lod, points and axes, or centres and axes."""

    points: Tensor
    lod: Tensor | None
    ddx: Tensor | None
    ddy: Tensor | None


def probe(
    call: Call,
    hardware: bool,
    levels: Sequence[Tensor],
    points: Tensor,
    lod: Tensor | None = None,
    ddx: Tensor | None = None,
    ddy: Tensor | None = None,
) -> Tensor:
    """Sample levels at points and lod, over footprints about points, or in patches about centres.

    call:     checked for tensors like these
    hardware: by a texture that is made for this one call
    """
    where = _Where(points, lod, ddx, ddy)
    if torch.is_grad_enabled():
        for tensor in (*where, *levels):
            if tensor is not None and tensor.requires_grad:
                return _Probe.apply(call, hardware, *where, *levels)  # type: ignore[no-any-return,no-untyped-call]
    return _forward(call, hardware, levels, where)


def _plain(where: _Where) -> _Where:
    """As the kernels read it: contiguous float32, on a multiple of eight bytes, since x and y are one load."""
    plain = [None if tensor is None else tensor.float().contiguous() for tensor in where]
    points, *others = (None if t is None else t if t.data_ptr() % PAIR_BYTES == 0 else t.clone() for t in plain)
    assert points is not None
    return _Where(points, *others)


class _Plan(NamedTuple):
    """How the forward kernel is started for one combination of shapes; all but addresses is fixed."""

    shape: tuple[int, ...]  # of the values
    plain: bool  # points, lod and axes are as the kernels read them
    pack_levels: Callable[..., bytes]
    between: bytes  # the parameters after the levels' addresses,
    pack_where: Callable[..., bytes]
    after: bytes  # and after the other addresses
    source: str
    kernel: str
    grid: tuple[int, int]
    options: dict[str, Any]
    misaligned: int  # bits that are 0 in the addresses of all levels, if four channels are one load
    padded: bool  # such a load goes beyond the last channel
    other: "_Plan | None"  # for levels where that is not so


def _forward(call: Call, hardware: bool, levels: Sequence[Tensor], where: _Where) -> Tensor:
    if hardware:
        half = levels[0].dtype == torch.float16 and not call.nearest
        texture = DeviceTexture(levels, half=half, nearest=call.nearest)
        return texture.fetch(*where, call.patch, call.max_anisotropy)
    plan: _Plan = call.plan
    if plan is None:
        plan = call.plan = _plan(call, levels, where)
    addresses = [level.data_ptr() for level in levels]
    if plan.misaligned:
        bits = 0
        for one in addresses:
            bits |= one
        if bits & plan.misaligned or (plan.padded and not _padding_is_there(levels)):
            assert plan.other is not None
            plan = plan.other
    given = [0 if tensor is None else tensor.data_ptr() for tensor in where]
    if not plan.plain or (given[0] | given[2] | given[3]) % PAIR_BYTES:
        where = _plain(where)
        given = [0 if tensor is None else tensor.data_ptr() for tensor in where]
    values = levels[0].new_empty(plan.shape)
    if plan.grid[0]:
        parameters = (
            plan.pack_levels(*addresses) + plan.between + plan.pack_where(*given, values.data_ptr()) + plan.after
        )
        launch(plan.source, plan.kernel, values.device, plan.grid, parameters, **plan.options)
    return values


def _plan(call: Call, levels: Sequence[Tensor], where: _Where, *, by_fours: bool = True) -> _Plan:
    batch, count = where.points.shape[:2]
    channels = levels[0].shape[1]
    groups = -(-channels // CHANNELS_PER_THREAD)
    plain = all(t is None or (t.dtype is torch.float32 and t.is_contiguous()) for t in where)
    fixed: dict[str, Any] = {"pyramid": pack_pyramid(levels, call.nearest), "gradient": None}
    options: dict[str, Any] = {"SCALAR": scalar_bits(levels[0].dtype)}
    misaligned, other = 0, None
    if call.patch is not None:
        shape: tuple[int, ...] = (batch, count, channels, call.patch, call.patch)
        blocks = batch * count * groups
        grid = (blocks, patch_parts(blocks, call.patch) if blocks else 1)
        source, kernel, layout = "patches.cu", "sample_patches", _PATCHES
        names: tuple[str, ...] = ("centre", "ddx", "ddy", "pixels")
        fixed |= {"per_image": count, "patch": call.patch, "groups": groups, "max_anisotropy": call.max_anisotropy}
        pack_where: Callable[..., bytes] = _without_lod
    else:
        shape, source, layout = (batch, count, channels), "lookup.cu", _LOOKUP
        by_fours = by_fours and _strided_by_fours(levels)
        kernel, grid, chosen = _lookup_kernel(levels, batch * count, by_fours)
        options |= {"FOOTPRINTS": int(where.lod is None), "NEAREST": int(bool(call.nearest)), **chosen}
        if by_fours:
            misaligned = 4 * levels[0].element_size() - 1
            other = _plan(call, levels, where, by_fours=False)
        fixed |= {"samples": batch * count, "per_image": count, "max_anisotropy": call.max_anisotropy}
        fixed["aligned"] = int(channels % 4 == 0)  # new memory is
        names, pack_where = ("points", "lod", "ddx", "ddy", "values"), struct.Struct("=5Q").pack
        fixed["copies"] = ()
    template = layout.pack(**fixed, **dict.fromkeys(names))
    offsets = {field.name: field.offset for field in layout.fields}
    levels_end, start, end = 8 * MAX_LEVELS, offsets[names[0]], offsets[names[-1]] + 8
    pack_levels = struct.Struct(f"={len(levels)}Q{levels_end - 8 * len(levels)}x").pack
    return _Plan(
        shape, plain, pack_levels, template[levels_end:start], pack_where, template[end:],
        source, kernel, grid, options, misaligned, channels % 4 != 0, other,
    )  # fmt: skip


_four_addresses = struct.Struct("=4Q")


def _without_lod(points: int, lod: int, ddx: int, ddy: int, values: int) -> bytes:
    return _four_addresses.pack(points, ddx, ddy, values)


def _lookup_kernel(
    levels: Sequence[Tensor], samples: int, by_fours: bool
) -> tuple[str, tuple[int, int], dict[str, int]]:
    """Which kernel of lookup.cu reads such levels, its grid, and how it is compiled and started."""
    channels = levels[0].shape[1]
    groups = -(-channels // CHANNELS_PER_THREAD)
    options = {"CHANNELS": min(channels, CHANNELS_PER_THREAD)}
    if channels == 1 or any(level.stride(1) != 1 for level in levels):
        return "lookup", (-(-samples // THREADS), groups), options
    tuned = ONE_GROUP if groups == 1 else MORE_GROUPS
    per_block = tuned["POINTS"] * tuned["threads"] // 32
    return "lookup_texels", (-(-samples // per_block), 1), {**options, "VECTOR": int(by_fours), **tuned}


def patch_parts(blocks: int, patch: int) -> int:
    """Into how many parts the pixels of a patch are split, so that few patches keep a large GPU busy, too."""
    return max(1, min(BUSY // blocks, -(-patch * patch // THREADS)))


def _strided_by_fours(levels: Sequence[Tensor]) -> bool:
    """Whether the strides let four contiguous channels be one aligned load; what lies beyond the last is padding."""
    room = -(-levels[0].shape[1] // 4) * 4
    for level in levels:
        image, channel, row, column = level.stride()
        if channel != 1 or (image | row | column) & 3 or column < room:
            return False
    return True


def _padding_is_there(levels: Sequence[Tensor]) -> bool:
    """Whether the padding of the last texel belongs to the memory of each level."""
    room = -(-levels[0].shape[1] // 4) * 4
    for level in levels:
        last = sum((extent - 1) * stride for extent, stride in zip(level.shape, level.stride()) if stride != 1) + room
        if (level.storage_offset() + last) * level.element_size() > level.untyped_storage().nbytes():
            return False
    return True


class _Probe(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, call: Call, hardware: bool, points: Any, lod: Any, ddx: Any, ddy: Any, *levels: Tensor
    ) -> Tensor:
        ctx.call = call
        ctx.save_for_backward(points, lod, ddx, ddy, *levels)
        return _forward(call, hardware, levels, _Where(points, lod, ddx, ddy))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        where, levels = _Where(*ctx.saved_tensors[:4]), ctx.saved_tensors[4:]
        return (None, None, *probe_gradients(ctx.call, levels, where, upstream[0], ctx.needs_input_grad[2:]))


def probe_gradients(
    call: Call, levels: Sequence[Tensor], where: Sequence[Any], upstream: Tensor, wanted: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients of points, lod, ddx, ddy and each level, where wanted; `upstream` is that of the values."""
    where = _Where(*where)
    arriving = upstream.to(levels[0].dtype).contiguous()
    of_levels = _zeros_like_levels(levels, planar=call.patch is not None) if any(wanted[4:]) else []
    of_samples = None
    if any(wanted[:4]):
        samples = arriving.numel() // levels[0].shape[1]
        of_samples = torch.zeros(samples, 5, dtype=torch.float32, device=arriving.device)
    if arriving.numel():
        _launch_backward(call, levels, _plain(where), arriving, of_levels, of_samples)
    of_where: list[Tensor | None] = [None] * 4
    if of_samples is not None:
        of_where = _gradient_of_where(call, of_samples, where, wanted[:4])
    dtype = levels[0].dtype
    if dtype is not torch.float32:
        of_levels = [gradient.to(dtype) for gradient in of_levels]
    found: list[Tensor | None] = [*of_levels] if of_levels else [None] * len(levels)
    return [*of_where, *found]


def _launch_backward(
    call: Call,
    levels: Sequence[Tensor],
    where: _Where,
    upstream: Tensor,
    of_levels: Sequence[Tensor],
    of_samples: Tensor | None,
) -> None:
    batch, count = where.points.shape[:2]
    channels = levels[0].shape[1]
    groups = -(-channels // CHANNELS_PER_THREAD)
    common: dict[str, Any] = {
        "pyramid": pack_pyramid(levels, call.nearest),
        "gradient": _GRADIENT.pack(data=of_levels, sample=of_samples),
        "per_image": count,
        "max_anisotropy": call.max_anisotropy,
    }
    scalar = scalar_bits(levels[0].dtype)
    if call.patch is not None:
        footprints: Any = {"centre": where.points, "ddx": where.ddx, "ddy": where.ddy, "pixels": upstream}
        parameters = _PATCHES.pack(**common, **footprints, patch=call.patch, groups=groups)
        blocks = batch * count * groups
        return launch("patches.cu", "sample_patches_backward", upstream.device, blocks, parameters, SCALAR=scalar)
    fours = channels % 4 == 0 and address(upstream) % (4 * upstream.element_size()) == 0
    samples, copies = batch * count, [_copies(level) for level in levels] if of_levels else [1]
    given: Any = {**where._asdict(), "values": upstream, "samples": samples, "aligned": int(fours), "copies": copies}
    parameters = _LOOKUP.pack(**common, **given)
    tuned = ONE_GROUP if groups == 1 else MORE_GROUPS
    blocks = -(-samples // (tuned["POINTS"] * tuned["threads"] // 32))
    options: Any = {"FOOTPRINTS": int(where.lod is None), "NEAREST": int(bool(call.nearest)), **tuned}
    options["OF_SAMPLES"] = int(of_samples is not None)
    launch("lookup.cu", "lookup_backward", upstream.device, blocks, parameters, SCALAR=scalar, **options)
    if copies[-1] > 1:
        largest = max(level.numel() // channels for level in levels if _copies(level) > 1) * groups * 4
        grid = (-(-largest // THREADS), len(levels))
        options["threads"] = THREADS
        launch("lookup.cu", "fold_copies", upstream.device, grid, parameters, SCALAR=scalar, **options)


def _copies(level: Tensor) -> int:
    """How many copies of a level's gradient lookup_backward adds into."""
    return max(1, COPIES // (level.shape[2] * level.shape[3]))


def _zeros_like_levels(levels: Sequence[Tensor], *, planar: bool) -> list[Tensor]:
    """Float gradients of all levels, in one allocation zeroed at once: planar, or as lookup.cu adds into them.

    There each is the first of its copies.
    """
    batch, channels = levels[0].shape[:2]
    room = channels if planar else -(-channels // 4) * 4
    copies = [1 if planar else _copies(level) for level in levels]
    sizes = [batch * room * level.shape[2] * level.shape[3] * count for level, count in zip(levels, copies)]
    starts = list(itertools.accumulate((-(-size // 4) * 4 for size in sizes), initial=0))
    flat = torch.zeros(starts[-1], dtype=torch.float32, device=levels[0].device)
    gradients = []
    for level, start in zip(levels, starts):
        height, width = level.shape[2:]
        strides = (height * width, width, 1) if planar else (1, width * room, room)
        gradients.append(flat.as_strided(level.shape, (room * height * width, *strides), start))
    return gradients


def _gradient_of_where(call: Call, of_samples: Tensor, where: _Where, wanted: Sequence[bool]) -> list[Tensor | None]:
    """From the samples' five numbers to the tensors that the caller gave."""
    with torch.enable_grad():
        leaves = [None if t is None else t.detach().requires_grad_(want) for t, want in zip(where, wanted)]
        numbers = _sample_numbers(call, *leaves)
    needed = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
    upstream = of_samples.view(*where.points.shape[:2], -1, 5).to(numbers.dtype)
    found = iter(torch.autograd.grad(numbers, needed, upstream, allow_unused=True))
    return [next(found) if leaf is not None and leaf.requires_grad else None for leaf in leaves]


def _sample_numbers(call: Call, points: Any, lod: Any, ddx: Any, ddy: Any) -> Tensor:
    """x, y, lod and spread of every sample, (B, N or K, 1 or P², 5), as the kernel computes them from its inputs."""
    points, lod, ddx, ddy = (None if t is None else widened(t) for t in (points, lod, ddx, ddy))
    if lod is not None:
        return torch.cat([points, lod[..., None], torch.zeros_like(points)], -1)[:, :, None]
    level, spread, _ = probes(ddx, ddy, call.max_anisotropy)
    shape = torch.cat([level[..., None], spread], -1)[:, :, None]
    if call.patch is None:
        return torch.cat([points[:, :, None], shape], -1)
    where = lattice(points, ddx, ddy, call.patch).flatten(2, 3)
    return torch.cat([where, shape.expand(-1, -1, where.shape[2], -1)], -1)
