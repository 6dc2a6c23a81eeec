"""lookup, lookup_grad and sample_patches on the GPU: forward by our kernels or the texture units, backward by kernels.

All three are samples of a pyramid and share one autograd function. The kernel gives the gradient of each sample's
own five numbers (x, y, lod and the probes' spread); the small step from there to points or footprints is PyTorch's.
Gradients of texels are added by float atomics, in any order, so their last bits vary from run to run.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from texturevlm.cuda import THREADS, Layout, launch, scalar_bits
from texturevlm.ops.device_texture import DeviceTexture
from texturevlm.ops.lookup_reference import MAX_ANISOTROPY, Options, Where, lattice, probes, widened
from texturevlm.ops.packed import Marks, pack_pyramid

if TYPE_CHECKING:
    from texturevlm.ops.lookup import Request

CHANNELS_PER_THREAD = 4
PAIR_BYTES = 8  # of x and y
BUSY = 1200  # blocks
_LOOKUP, _PATCHES, _REFRESH = (
    Layout("lookup.cu", "Lookup"),
    Layout("patches.cu", "PatchJob"),
    Layout("patches.cu", "Refresh"),
)

# How lookup_texels and lookup_backward are compiled and started, measured best on an H200: for one group of channels
# per point, and for more.
ONE_GROUP = {"threads": 64, "POINTS": 32, "SHARE": 0}
MORE_GROUPS = {"threads": 128, "POINTS": 16, "SHARE": 1}
COPIES = 64  # of the gradient of a level of one texel; in all, a small level gets as many texels


def sample_cuda(request: Request, hardware: bool, levels: Sequence[Tensor], where: Where) -> Tensor:
    """Sample levels; `request` was checked for tensors like these.

    hardware: by a texture that is made for this one call
    """
    if torch.is_grad_enabled():
        for tensor in (*where, *levels):
            if tensor is not None and tensor.requires_grad:
                return _Sample.apply(request, hardware, *where, *levels)  # type: ignore[no-any-return,no-untyped-call]
    return _forward(request, hardware, levels, where)


class _Sample(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, request: Request, hardware: bool, *tensors: Any) -> Tensor:
        ctx.request = request
        ctx.save_for_backward(*tensors)
        return _forward(request, hardware, tensors[4:], Where(*tensors[:4]))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        where, levels = Where(*ctx.saved_tensors[:4]), ctx.saved_tensors[4:]
        return None, None, *_backward(ctx.request, levels, where, upstream[0], ctx.needs_input_grad[2:])


_Launch = tuple[str, int | tuple[int, int], dict[str, Any]]  # kernel, grid, options
_Place = tuple[torch.Size, tuple[int, ...], int]  # shape, strides and start of a level's gradient


class _Plan(NamedTuple):
    """How kernels are started for one combination of shapes and options: all but pointers is fixed."""

    plain: bool  # points, lod and axes are as the kernels read them
    template: bytes  # the parameters, to be filled with pointers
    pack_levels: Callable[..., None]
    start: int  # where in them the pointers to the samples' gradients, points …, and values lie
    pack_where: Callable[..., None]
    source: str
    launches: tuple[_Launch, ...]
    shape: tuple[int, ...] = ()  # forward: of the values
    misaligned: int = 0  # bits that are 0 in the addresses of all levels, if four channels are one load
    padded: bool = False  # such a load goes beyond the last channel
    other: _Plan | None = None  # for levels where that is not so
    room: int = 0  # backward: of the gradients of all levels, in floats
    places: tuple[_Place, ...] = ()

    def fill(self, levels: Sequence[int], gradients: Sequence[int], where: Sequence[int]) -> bytes:
        """The parameters, from addresses."""
        parameters = bytearray(self.template)
        self.pack_levels(parameters, 0, *levels)
        if gradients:
            self.pack_levels(parameters, _GRADIENTS, *gradients)
        self.pack_where(parameters, self.start, *where)
        return bytes(parameters)

    def pointers(self, where: Where) -> tuple[Where, list[int]]:
        """Points, lod and axes as the kernels read them: float32, contiguous, x and y aligned for one load."""
        given = [tensor.data_ptr() for tensor in where if tensor is not None]
        pairs = given[0] if where.lod is not None else given[0] | given[1] | given[2]
        if self.plain and not pairs % PAIR_BYTES:
            return where, given
        plain = [None if tensor is None else tensor.float().contiguous() for tensor in where]
        moved = [t if t is None or t.data_ptr() % PAIR_BYTES == 0 else t.clone() for t in plain]
        return Where(*moved), [tensor.data_ptr() for tensor in moved if tensor is not None]  # type: ignore[arg-type]


_OFFSETS = {field.name: field.offset for layout in (_LOOKUP, _PATCHES) for field in layout.fields}
_GRADIENTS = _OFFSETS["gradient"]  # the same in both


def _plan(
    options: Options, levels: Sequence[Tensor], where: Where, launches: Sequence[_Launch], fixed: Any, **more: Any
) -> _Plan:
    """fixed: the fields of the struct that only this plan knows; `more`: those of the plan."""
    fixed |= {"pyramid": pack_pyramid(levels, options.nearest), "gradient": None, "per_image": where.points.shape[1]}
    fixed |= {"max_anisotropy": options.max_anisotropy}
    if options.patch is None:
        source, layout, names = "lookup.cu", _LOOKUP, ["points", "lod", "ddx", "ddy", "values"]
        codes = "".join("8x" if tensor is None else "Q" for tensor in where)
    else:
        source, layout, names, codes = "patches.cu", _PATCHES, ["centre", "ddx", "ddy", "pixels"], "3Q"
    template = layout.pack(**fixed, **dict.fromkeys(names))
    plain = all(t is None or (t.dtype is torch.float32 and t.is_contiguous()) for t in where)
    pack_levels, pack_where = struct.Struct(f"={len(levels)}Q").pack_into, struct.Struct(f"=Q{codes}Q").pack_into
    start = _OFFSETS[names[0]] - 8
    started = tuple(launches) if where.points.numel() else ()
    return _Plan(plain, template, pack_levels, start, pack_where, source, started, **more)


def _forward(request: Request, hardware: bool, levels: Sequence[Tensor], where: Where) -> Tensor:
    if hardware:
        options = request.options
        half = levels[0].dtype == torch.float16 and not options.nearest
        texture = DeviceTexture(levels, half=half, nearest=options.nearest)
        return texture.fetch(where, options.patch, options.max_anisotropy)
    plan: _Plan = request.forward
    if plan is None:
        plan = request.forward = _plan_forward(request.options, levels, where)
    addresses = [level.data_ptr() for level in levels]
    if plan.misaligned:
        bits = 0
        for one in addresses:
            bits |= one
        if bits & plan.misaligned or (plan.padded and not _padding_is_there(levels)):
            assert plan.other is not None
            plan = plan.other
    where, given = plan.pointers(where)
    values = levels[0].new_empty(plan.shape)
    for kernel, grid, defined in plan.launches:
        parameters = plan.fill(addresses, (), (0, *given, values.data_ptr()))
        launch(plan.source, kernel, values.device, grid, parameters, **defined)
    return values


def _plan_forward(options: Options, levels: Sequence[Tensor], where: Where, *, by_fours: bool = True) -> _Plan:
    batch, count = where.points.shape[:2]
    channels, scalar = levels[0].shape[1], scalar_bits(levels[0].dtype)
    groups = -(-channels // CHANNELS_PER_THREAD)
    if options.patch is not None:
        blocks = batch * count * groups
        grid = (blocks, patch_parts(blocks, options.patch))
        shape = (batch, count, channels, options.patch, options.patch)
        fixed: Any = {"patch": options.patch, "groups": groups}
        return _plan(options, levels, where, [("sample_patches", grid, {"SCALAR": scalar})], fixed, shape=shape)
    samples = batch * count
    defined = _defines(options, where, scalar) | {"CHANNELS": min(channels, CHANNELS_PER_THREAD)}
    more: dict[str, Any] = {}
    if by_fours := by_fours and _strided_by_fours(levels):
        other = _plan_forward(options, levels, where, by_fours=False)
        more = {"misaligned": 4 * levels[0].element_size() - 1, "padded": channels % 4 != 0, "other": other}
    if channels == 1 or any(level.stride(1) != 1 for level in levels):
        started: _Launch = ("lookup", (-(-samples // THREADS), groups), defined)
    else:
        blocks, tuned = _blocks_of_points(samples, groups)
        started = ("lookup_texels", blocks, {**defined, "VECTOR": int(by_fours), **tuned})
    fixed = {"samples": samples, "aligned": int(channels % 4 == 0), "copies": ()}  # new memory is aligned
    return _plan(options, levels, where, [started], fixed, shape=(batch, count, channels), **more)


def _defines(options: Options, where: Where, scalar: int) -> dict[str, Any]:
    """What the kernels of lookup.cu are compiled with."""
    return {"SCALAR": scalar, "FOOTPRINTS": int(where.lod is None), "NEAREST": int(bool(options.nearest))}


def _blocks_of_points(samples: int, groups: int) -> tuple[int, dict[str, int]]:
    tuned = ONE_GROUP if groups == 1 else MORE_GROUPS
    return -(-samples // (tuned["POINTS"] * tuned["threads"] // 32)), tuned


def patch_parts(blocks: int, patch: int) -> int:
    """Into how many parts the pixels of a patch are split, so that few patches keep a large GPU busy, too."""
    return max(1, min(BUSY // max(blocks, 1), -(-patch * patch // THREADS)))


def _strided_by_fours(levels: Sequence[Tensor]) -> bool:
    """Whether the strides let four contiguous channels be one aligned load; what lies beyond the last is padding."""
    room = -(-levels[0].shape[1] // 4) * 4
    strides = [level.stride() for level in levels]
    return all(channel == 1 and not (i | y | x) & 3 and x >= room for i, channel, y, x in strides)


def _padding_is_there(levels: Sequence[Tensor]) -> bool:
    """Whether the padding of the last texel belongs to the memory of each level."""
    room = -(-levels[0].shape[1] // 4) * 4
    for level in levels:
        last = sum((extent - 1) * stride for extent, stride in zip(level.shape, level.stride()) if stride != 1) + room
        if (level.storage_offset() + last) * level.element_size() > level.untyped_storage().nbytes():
            return False
    return True


def _backward(
    request: Request, levels: Sequence[Tensor], where: Where, upstream: Tensor, wanted: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients of points, lod, ddx, ddy and each level, where wanted; `upstream` is that of the values."""
    dtype, device = levels[0].dtype, upstream.device
    upstream = upstream.to(dtype).contiguous()
    address = upstream.data_ptr()
    kind = (any(wanted[4:]), any(wanted[:4]), address % (4 * upstream.element_size()) == 0)
    plan: _Plan | None = request.backwards.get(kind)
    if plan is None:
        plan = request.backwards[kind] = _plan_backward(request.options, levels, where, *kind)
    of_levels: list[Tensor | None] = [None] * len(levels)
    of_where: list[Tensor | None] = [None] * 4
    gradients: list[int] = []
    samples = None
    if plan.places:  # all in one allocation, zeroed at once
        flat = torch.zeros(plan.room, dtype=torch.float32, device=device)
        of_levels = [flat.as_strided(*place) for place in plan.places]
        start = flat.data_ptr()
        gradients = [start + 4 * place[2] for place in plan.places]
    if kind[1]:
        samples = torch.zeros(upstream.numel() // levels[0].shape[1], 5, dtype=torch.float32, device=device)
    if plan.launches:
        kept, given = plan.pointers(where)
        addresses = (0 if samples is None else samples.data_ptr(), *given, address)
        parameters = plan.fill([level.data_ptr() for level in levels], gradients, addresses)
        for kernel, grid, defined in plan.launches:
            launch(plan.source, kernel, device, grid, parameters, **defined)
        del kept  # what the kernels read must live until they are launched
    if samples is not None:
        of_where = _gradient_of_where(request.options, samples, where, wanted[:4])
    if dtype is not torch.float32:
        of_levels = [None if gradient is None else gradient.to(dtype) for gradient in of_levels]
    return [*of_where, *of_levels]


def _plan_backward(
    options: Options, levels: Sequence[Tensor], where: Where, of_levels: bool, of_samples: bool, aligned: bool
) -> _Plan:
    batch, count = where.points.shape[:2]
    channels, scalar, samples = levels[0].shape[1], scalar_bits(levels[0].dtype), batch * count
    groups, planar = -(-channels // CHANNELS_PER_THREAD), options.patch is not None
    shapes = [level.shape for level in levels]
    copies = [1 if planar or not of_levels else max(1, COPIES // (shape[2] * shape[3])) for shape in shapes]
    if planar:
        launches: list[_Launch] = [("sample_patches_backward", samples * groups, {"SCALAR": scalar})]
        fixed: Any = {"patch": options.patch, "groups": groups}
    else:
        blocks, tuned = _blocks_of_points(samples, groups)
        defined = {**_defines(options, where, scalar), **tuned, "OF_SAMPLES": int(of_samples)}
        launches = [("lookup_backward", blocks, defined)]
        if copies[-1] > 1:
            largest = max(height * width for (*_, height, width), many in zip(shapes, copies) if many > 1)
            grid = (-(-batch * largest * groups * 4 // THREADS), len(levels))
            launches.append(("fold_copies", grid, {**defined, "threads": THREADS}))
        fixed = {"samples": samples, "aligned": int(aligned and channels % 4 == 0), "copies": copies}
    room, places = 0, []
    width_of_texel = channels if planar else groups * CHANNELS_PER_THREAD
    for shape, many in zip(shapes, copies) if of_levels else ():
        height, width = shape[2:]
        strides = (height * width, width, 1) if planar else (1, width * width_of_texel, width_of_texel)
        image = width_of_texel * height * width
        places.append((shape, (image, *strides), room))
        room += -(-batch * image * many // 4) * 4
    return _plan(options, levels, where, launches, fixed, room=room, places=tuple(places))


def _gradient_of_where(
    options: Options, of_samples: Tensor, where: Where, wanted: Sequence[bool]
) -> list[Tensor | None]:
    """From the samples' five numbers to the tensors that the caller gave."""
    with torch.enable_grad():
        leaves = [None if t is None else t.detach().requires_grad_(want) for t, want in zip(where, wanted)]
        numbers = _sample_numbers(options, *leaves)
    needed = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
    upstream = of_samples.view(*where.points.shape[:2], -1, 5).to(numbers.dtype)
    found = iter(torch.autograd.grad(numbers, needed, upstream, allow_unused=True))
    return [next(found) if leaf is not None and leaf.requires_grad else None for leaf in leaves]


def _sample_numbers(options: Options, *where: Any) -> Tensor:
    """x, y, lod and spread of every sample, (B, N or K, 1 or P², 5), as the kernel computes them from its inputs."""
    wide: list[Any] = [None if tensor is None else widened(tensor) for tensor in where]
    points, lod, ddx, ddy = wide
    if lod is not None:
        return torch.cat([points, lod[..., None], torch.zeros_like(points)], -1)[:, :, None]
    level, spread, _ = probes(ddx, ddy, options.max_anisotropy)
    shape = torch.cat([level[..., None], spread], -1)[:, :, None]
    if options.patch is None:
        return torch.cat([points[:, :, None], shape], -1)
    at = lattice(points, ddx, ddy, options.patch).flatten(2, 3)
    return torch.cat([at, shape.expand(-1, -1, at.shape[2], -1)], -1)


def refresh_patches_cuda(
    pixels: Tensor, levels: Sequence[Tensor], footprints: Sequence[Tensor], valid: Tensor, sampled: Tensor, marks: Marks
) -> None:
    """The patches of a stream: those that read a marked tile are sampled again, in place.

    pixels:  (1, K, C, P, P), contiguous, written in place
    levels:  finest first, each (1, C, H_l, W_l)
    footprints: centre, ddx and ddy, each (1, K, 2) float32, contiguous, as for `sample_patches`
    valid:   (1, K) bool, the slots that are used
    sampled: (K,) bool, gets which patches were written
    """
    count, patch, groups = pixels.shape[1], pixels.shape[4], -(-levels[0].shape[1] // CHANNELS_PER_THREAD)
    axes = dict(zip(("centre", "ddx", "ddy"), footprints))
    sizes = {"per_image": count, "patch": patch, "groups": groups, "max_anisotropy": MAX_ANISOTROPY}
    job = _PATCHES.pack(pyramid=pack_pyramid(levels, ()), gradient=None, **axes, pixels=pixels, **sizes)
    parameters = _REFRESH.pack(job=job, marks=marks.packed, valid=valid, sampled=sampled)
    blocks, scalar = (count * groups, patch_parts(count * groups, patch)), scalar_bits(levels[0].dtype)
    launch("patches.cu", "refresh_patches", pixels.device, blocks, parameters, SCALAR=scalar)
