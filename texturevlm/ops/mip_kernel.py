"""mipmap and update_region by our kernels (mip.cu), and the gradient of mipmap (mip.cu, mip_gradient.cu).

What depends on shapes alone is computed once and cached: done for every frame of a stream, it would take longer than
the kernels.
"""

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from texturevlm.cuda import MAX_LEVELS, Layout, address, constants, device_constant, launch, scalar_bits
from texturevlm.ops.mip import REDUCTIONS, level_extents, mipmap_reference
from texturevlm.ops.packed import Marks, packed_boxes

TILE, MARK_WORDS = constants("mip.cuh", "TILE", "MARK_WORDS")
UNCHANGED, MOVED = constants("mip.cuh", "UNCHANGED", "MOVED")
DEEPEST = 6  # the coarsest level that a tile can make by itself
DEEPEST_ODD = 4  # the same for odd extents, where a tile needs texels beyond its edge
UPDATE_BLOCKS = 132 * 4  # what a large GPU runs at once
LEVEL_BYTES = 512  # each level begins on a multiple of this, as PyTorch's allocations do
_Place = tuple[tuple[int, ...], tuple[int, ...], int]  # size, strides and start of a level
_MIP = Layout("mip.cu", "Mip")
(TILE_BITS,) = constants("mip_gradient.cu", "TILE_BITS")
MOST_CHANNEL_BITS = 5
COARSE = 3  # a texel reads one value per level, so coarser levels are summed on this one first
_ONE_LEVEL, _ALL_LEVELS = Layout("mip.cu", "MipBackward"), Layout("mip_gradient.cu", "MipGradient")
Extents = tuple[tuple[int, int], ...]
_NO_MARKS = (b"", b"", 0, 0)


def mipmap_cuda(image: Tensor, extents: Sequence[tuple[int, int]], modes: tuple[str, ...]) -> list[Tensor]:
    """All levels of an even image in one launch, up to seven; see mip.cu for the others.

    The new levels share one allocation: one per level would cost more time than the kernels.
    """
    image = image.contiguous()
    room, places = _places(image.shape, len(extents), LEVEL_BYTES // image.element_size())
    memory = image.new_empty(room)
    levels = [image, *[memory.as_strided(size, strides, start) for size, strides, start in places]]
    make_levels(levels, modes)
    return levels


@lru_cache(maxsize=256)
def _places(shape: torch.Size, count: int, multiple: int) -> tuple[int, list[_Place]]:
    """How many elements all levels but the first take together, and where each of them lies."""
    batch, channels, height, width = shape
    room = 0
    places: list[_Place] = []
    for rows, columns in level_extents(height, width, count)[1:]:
        plane = rows * columns
        places.append(((batch, channels, rows, columns), (channels * plane, plane, columns, 1), room))
        room += -(-batch * channels * plane // multiple) * multiple
    return room, places


def update_region_cuda(levels: Sequence[Tensor], boxes: Tensor, modes: tuple[str, ...]) -> None:
    """The same kernel on the tiles that a box touches: the result is bit for bit that of a rebuild."""
    for index, level in enumerate(levels):
        if not level.is_contiguous():
            raise ValueError(f"update_region: levels[{index}] must be contiguous, since it is written in place")
    make_levels(levels, modes, packed_boxes(boxes))


def update_marked_cuda(
    levels: Sequence[Tensor],
    modes: tuple[str, ...],
    marks: Marks,
    *,
    reach: tuple[int, ...] = (),
    either: Marks | None = None,
    since: int = 0,
    until: int = MAX_LEVELS,
    early: bool = False,
) -> int:
    """update_region of one image, where the device knows which tiles changed and the host does not.

    levels: finest first, each (1, C, H_l, W_l), contiguous; marks are of texels of the first
    reach:  of a change, in texels, one value per channel; UNCHANGED: the channel is left alone, MOVED: `either` applies
    either: the marks of this frame or of the one before
    since:  the level to continue from: 0, or what an earlier call returned
    until:  the level that is wanted; one launch may make more
    early:  start while the previous kernel of ours still runs, see `launch`; the marks must be complete
    returns the last level made
    """
    table = device_constant(reach, torch.int16, levels[0].device) if any(reach) else None
    before = either if either is not None and MOVED in reach else marks
    packed = (marks.packed, before.packed, address(table), max((0, *reach)))
    return make_levels(levels, modes, marks=packed, since=since, until=until, early=early)


def make_levels(
    levels: Sequence[Tensor],
    modes: tuple[str, ...],
    boxes: Tensor | None = None,
    marks: tuple[bytes, bytes, int, int] = _NO_MARKS,
    *,
    since: int = 0,
    until: int = MAX_LEVELS,
    early: bool = False,
) -> int:
    """One launch for the levels that a tile can make by itself, more launches for the few texels that remain.

    since, until, early and what is returned: see `update_marked_cuda`
    """
    finest = levels[0]
    codes = _codes(modes)
    table = device_constant(codes, torch.uint8, finest.device) if codes else None
    pointers = [level.data_ptr() for level in levels]
    aligned = tuple([pointer % 16 == 0 for pointer in pointers])
    scalar = scalar_bits(finest.dtype)
    marked = marks is not _NO_MARKS
    made = since
    for step in _steps(finest.shape, aligned, int(marked) if boxes is None else boxes.shape[1], marked):
        if step.base != made or step.base >= until:
            continue
        made_here = step.pack_levels(*pointers[step.base : step.last + 1])
        searched = address(boxes) if step.search else 0
        parameters = step.pack(made_here, pointers[0], address(table), searched, *marks)
        soon = early if step.base == since else True  # a launch that continues another one may start beside it
        launch("mip.cu", step.kernel, finest.device, step.blocks, parameters, early=soon, SCALAR=scalar)
        made = step.last
    assert made > since or since == len(levels) - 1, f"no launch begins at level {since}"
    return made


@lru_cache(maxsize=256)
def _codes(modes: tuple[str, ...]) -> tuple[int, ...]:
    """The reductions as mip.cu numbers them; empty if all are means."""
    return tuple(REDUCTIONS.index(mode) for mode in modes) if set(modes) != {"mean"} else ()


class _Step(NamedTuple):
    """A launch that makes levels base + 1 … last from level `base`."""

    base: int
    last: int
    kernel: str
    blocks: int
    search: bool  # only in the tiles that a box touches
    pack_levels: Callable[..., bytes]
    pack: Callable[..., bytes]  # the parameters from what differs from call to call


@lru_cache(maxsize=256)
def _steps(shape: torch.Size, aligned: tuple[bool, ...], boxes: int, marked: bool) -> tuple[_Step, ...]:
    """The launches for a pyramid.

    aligned: for each level, whether its texels can be read four at a time
    boxes:   how many boxes say what changed; 0: everything changed
    marked:  marks say what changed, not boxes
    """
    extents = level_extents(shape[2], shape[3], len(aligned))
    steps: list[_Step] = []
    base = 0
    while base < len(extents) - 1:
        even = even_halvings(extents[base]) if all(aligned[base : base + 3]) else 0
        most = min(len(extents) - 1 - base, DEEPEST)
        if even >= 2:  # as many as halve evenly, else as many as a tile has enough texels for
            most = min(most, even)
        elif max(extents[base]) > TILE:
            most = min(most, DEEPEST_ODD)
        kernel = "mip_even" if even >= most >= 2 else "mip_more" if base > 0 else "mip_any"
        steps.append(_step(shape, extents, base, base + most, kernel, boxes, marked))
        base += most
    return tuple(steps)


def _step(
    shape: torch.Size, extents: Sequence[tuple[int, int]], base: int, last: int, kernel: str, boxes: int, marked: bool
) -> _Step:
    batch, channels = shape[:2]
    heights, widths = zip(*extents[base : last + 1])
    across, down = -(-widths[0] // TILE), -(-heights[0] // TILE)
    tiles = across * down * batch * channels
    # A search does not pay for few tiles, and the kernel cannot mark more than MARK_WORDS: then all are made again.
    # With marks each tile can check itself, so a search pays only if the tiles cannot all run at once.
    few = UPDATE_BLOCKS if marked else UPDATE_BLOCKS // 4
    search = boxes > 0 and tiles > few and -(-across // 32) * down <= MARK_WORDS
    sizes: dict[str, Any] = {"height": heights, "width": widths, "reach_y": _reach(heights), "reach_x": _reach(widths)}
    sizes |= {"finest_height": extents[0][0], "finest_width": extents[0][1], "halvings": base, "levels": last - base}
    counts = {"channels": channels, "planes": batch * channels, "box_count": boxes if search else 0}
    fixed = _MIP.fix(**sizes, **counts)
    pack = fixed.in_order("level", "finest", "modes", "boxes", "marks", "either", "reach", "furthest")
    pack_levels = struct.Struct(f"={last - base + 1}Q").pack
    return _Step(base, last, kernel, min(tiles, UPDATE_BLOCKS) if search else tiles, search, pack_levels, pack)


def even_halvings(extent: tuple[int, int]) -> int:
    """How often both sides can be halved without remainder."""
    return min((side & -side).bit_length() - 1 for side in extent)


def _reach(extents: Sequence[int]) -> list[int]:
    """How many texels beyond its edge a tile must read per level to make its part of the coarser levels."""
    reach = [0] * len(extents)
    for level in range(len(extents) - 2, -1, -1):
        reach[level] = 2 * reach[level + 1] + extents[level] % 2 if extents[level] > 1 else 0
    return reach


class Mipmap(torch.autograd.Function):
    """Level 0 is an output too, so that one pass folds its gradient into those of the others."""

    @staticmethod
    def forward(ctx: Any, image: Tensor, extents: Extents, modes: tuple[str, ...]) -> tuple[Tensor, ...]:
        ctx.extents, ctx.modes, ctx.shape, ctx.dtype = extents, modes, image.shape, image.dtype
        ctx.set_materialize_grads(False)
        if any(mode != "mean" for mode in modes):
            ctx.save_for_backward(image)
        # Memory of its own for each level: outputs that are views of one tensor could not be changed in place.
        coarser = [image.new_empty((*image.shape[:2], *extent)) for extent in extents[1:]]
        make_levels([image.contiguous(), *coarser], modes)
        return (image.view_as(image), *coarser)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None, None]:
        if ctx.saved_tensors:
            return _backward_reference(ctx.saved_tensors[0], ctx.extents, ctx.modes, gradients), None, None
        total = _image_gradient(gradients, ctx.shape, ctx.extents)
        return total if total is None or ctx.dtype is torch.float32 else total.to(ctx.dtype), None, None


def _backward_reference(
    image: Tensor, extents: Extents, modes: Sequence[str], gradients: Sequence[Tensor | None]
) -> Tensor | None:
    """Channels reduced by max, min or nearest pass their gradient to the texel they took, by the reference."""
    with torch.enable_grad():
        leaf = image.detach().requires_grad_()
        levels = mipmap_reference(leaf, extents, modes)
    pairs = [(level, grad) for level, grad in zip(levels, gradients) if grad is not None]
    if not pairs:
        return None
    outputs, upstream = zip(*pairs)
    return torch.autograd.grad(outputs, leaf, upstream)[0]


def _image_gradient(gradients: Sequence[Tensor | None], shape: torch.Size, extents: Extents) -> Tensor | None:
    """The gradient of level 0, float32, from those of all levels.

    gradients: finest first, each (B, C, H_l, W_l) in any layout; None: none reached this level
    """
    sums = [one if one is None or one.dtype is torch.float32 else one.float() for one in gradients]
    even = min(even_halvings(extents[0]), len(extents) - 1)
    if all(one is None or one.is_contiguous() for one in sums):
        even = 0  # planar: one launch per level took 388 µs, one for all 585 (273 patches × 40 channels, H200)
    for level in range(len(extents) - 2, even - 1, -1):
        coarse = sums[level + 1]
        if coarse is not None:
            sums[level] = _add_coarse(coarse.contiguous(), sums[level], extents[level])
    last = even
    for first in (COARSE, 0) if last > COARSE else (0,):
        sums[first] = _add_levels(sums[first : last + 1], (*shape[:2], *extents[first]), planar=first == 0)
        last = first
    return sums[0]


def _add_coarse(coarse: Tensor, direct: Tensor | None, extent: tuple[int, int]) -> Tensor:
    """The gradient of a level from its own and that of the next coarser one, of any extents."""
    direct = None if direct is None else direct.contiguous()
    batch, channels, coarse_height, coarse_width = coarse.shape
    height, width = extent
    total = torch.empty((batch, channels, *extent), dtype=torch.float32, device=coarse.device)
    sizes = {"height": height, "width": width, "coarse_height": coarse_height, "coarse_width": coarse_width}
    aligned = width % 4 == 0 and address(direct) % 16 == 0
    parameters = _ONE_LEVEL.pack(fine=direct, coarse=coarse, total=total, **sizes, aligned=aligned)
    blocks = -(-width // 256) * -(-height // 4) * batch * channels
    launch("mip.cu", "mip_backward", total.device, blocks, parameters)
    return total


def _add_levels(gradients: Sequence[Tensor | None], shape: tuple[int, ...], *, planar: bool) -> Tensor | None:
    """All levels' gradients on the first of them, by one launch; planar, or in the layout that most of them have."""
    given = [gradient for gradient in gradients if gradient is not None]
    if not given or (len(given) == 1 and gradients[0] is not None):
        return gradients[0]
    strides = tuple([None if gradient is None else gradient.stride() for gradient in gradients])
    kind, fixed, blocks = _sum_plan(shape, strides, planar)
    total = torch.empty(shape, dtype=torch.float32, device=given[0].device, memory_format=kind)
    parameters = fixed.pack(level=gradients, total=total)
    launch("mip_gradient.cu", "mip_gradient", total.device, blocks, parameters)
    return total


@lru_cache(maxsize=256)
def _sum_plan(
    shape: tuple[int, ...], strides: tuple[tuple[int, ...] | None, ...], planar: bool
) -> tuple[torch.memory_format, Layout, int]:
    """How the sum lies in memory, the parameters but for pointers, and the number of blocks."""
    batch, channels, height, width = shape
    together = channels > 1 and next(stride for stride in strides if stride is not None)[1] == 1
    kind = torch.contiguous_format if planar or not together else torch.channels_last
    channel_bits = min((channels - 1).bit_length(), MOST_CHANNEL_BITS) if together else 0
    column_bits = min((width - 1).bit_length(), TILE_BITS - channel_bits)
    row_bits = TILE_BITS - channel_bits - column_bits
    axes = ("image", "channel", "row", "column")
    of_levels = dict(zip(axes, map(list, zip(*[stride or (0, 0, 0, 0) for stride in strides]))))
    own = torch.empty(shape, device="meta", memory_format=kind).stride()
    of_total = {f"total_{axis}": stride for axis, stride in zip(axes, own)}
    sizes = {"batch": batch, "channels": channels, "height": height, "width": width, "levels": len(strides)}
    bits = {"channel_bits": channel_bits, "column_bits": column_bits, "channels_together": int(together)}
    blocks = batch * -(-channels >> channel_bits) * -(-height >> row_bits) * -(-width >> column_bits)
    return kind, _ALL_LEVELS.fix(**of_levels, **of_total, **sizes, **bits), blocks
