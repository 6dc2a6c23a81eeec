"""mipmap and update_region by our kernels (mip.cu).

What depends on shapes alone is computed once and cached: done for every frame of a stream, it would take longer than
the kernels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from texturevlm.cuda.constants import device_constant
from texturevlm.cuda.launch import MAX_LEVELS, launch, pack_pointers, scalar_bits
from texturevlm.cuda.struct import Layout, address, constants
from texturevlm.ops.marks import Marks
from texturevlm.ops.mip import REDUCTIONS, level_extents, mipmap_reference
from texturevlm.ops.mip_gradient import image_gradient

TILE, MARK_WORDS, FAR = constants("mip.cuh", "TILE", "MARK_WORDS", "FAR")
UNCHANGED, MOVED = constants("mip.cuh", "UNCHANGED", "MOVED")
DEEPEST = 6  # the coarsest level that a tile can make by itself
DEEPEST_ODD = 4  # the same for odd extents, where a tile needs texels beyond its edge
UPDATE_BLOCKS = 132 * 4  # what a large GPU runs at once
LEVEL_BYTES = 512  # each level begins on a multiple of this, as PyTorch's allocations do
_Place = tuple[tuple[int, ...], tuple[int, ...], int]  # size, strides and start of a level
_MIP, _BACKWARD = Layout("mip.cu", "Mip"), Layout("mip.cu", "MipBackward")
_NOTHING = (b"", b"", 0, 0)


def mipmap_cuda(image: Tensor, extents: Sequence[tuple[int, int]], modes: tuple[str, ...]) -> list[Tensor]:
    """All levels of an even image in one launch, up to seven; see mip.cu for the others. Differentiable.

    The new levels share one allocation: one per level would cost more time than the kernels.
    """
    if torch.is_grad_enabled() and image.requires_grad:
        return list(_Mipmap.apply(image, tuple(extents), modes))  # type: ignore[no-untyped-call]
    image = image.contiguous()
    room, places = _places(image.shape, len(extents), LEVEL_BYTES // image.element_size())
    memory = image.new_empty(room)
    levels = [image, *[memory.as_strided(size, strides, start) for size, strides, start in places]]
    _make_levels(levels, modes, None)
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
    if boxes.dtype != torch.int32:
        boxes = boxes.clamp(-FAR, FAR).to(torch.int32)
    boxes = boxes.contiguous()
    _make_levels(levels, modes, boxes if boxes.data_ptr() % 16 == 0 else boxes.clone())


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
    searched = (marks.packed, before.packed, address(table), max((0, *reach)))
    return _make_levels(levels, modes, None, searched, since=since, until=until, early=early)


def _make_levels(
    levels: Sequence[Tensor],
    modes: tuple[str, ...],
    boxes: Tensor | None,
    marks: tuple[bytes, bytes, int, int] = _NOTHING,
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
    marked = marks is not _NOTHING
    made = since
    for step in _steps(finest.shape, aligned, int(marked) if boxes is None else boxes.shape[1], marked):
        if step.base != made or step.base >= until:
            continue
        made_here, searched = pack_pointers(pointers[step.base : step.last + 1]), boxes if step.search else None
        parameters = step.pack(made_here, pointers[0], address(table), address(searched), *marks)
        soon = early if step.base == since else True  # a launch that continues another one may start beside it
        launch("mip.cu", step.kernel, finest.device, step.blocks, parameters, early=soon, SCALAR=scalar)
        made = step.last
    assert made > since or since == len(levels) - 1, f"no launch begins at level {since}"
    return made


@lru_cache(maxsize=256)
def _codes(modes: tuple[str, ...]) -> tuple[int, ...]:
    """The reductions as mip.cu numbers them; empty if all are means."""
    return tuple(REDUCTIONS.index(mode) for mode in modes) if set(modes) != {"mean"} else ()


@dataclass(frozen=True)
class _Step:
    """A launch that makes levels base + 1 … last from level `base`.

    search: only in the tiles that a box touches
    pack:   the parameters from what differs from call to call
    """

    base: int
    last: int
    kernel: str
    blocks: int
    search: bool
    pack: Callable[..., bytes]


@lru_cache(maxsize=256)
def _steps(shape: torch.Size, aligned: tuple[bool, ...], boxes: int, marked: bool) -> tuple[_Step, ...]:
    """The launches for a pyramid.

    aligned: for each level, whether its texels can be read four at a time
    boxes:   how many boxes say what changed; 0: everything changed
    marked:  marks say what changed, not boxes
    """
    batch, channels, height, width = shape
    extents = level_extents(height, width, len(aligned))
    steps: list[_Step] = []
    base = 0
    while base < len(extents) - 1:
        even = _even_halvings(extents[base]) if all(aligned[base : base + 3]) else 0
        last = base + _tile_levels(extents[base:], even)
        steps.append(_step(extents, base, last, even, batch, channels, boxes, marked))
        base = last
    return tuple(steps)


def _step(
    extents: Sequence[tuple[int, int]],
    base: int,
    last: int,
    even: int,
    batch: int,
    channels: int,
    boxes: int,
    marked: bool,
) -> _Step:
    heights, widths = zip(*extents[base : last + 1])
    across, down = -(-widths[0] // TILE), -(-heights[0] // TILE)
    tiles = across * down * batch * channels
    # A search does not pay for few tiles, and the kernel cannot mark more than MARK_WORDS: then all are made again.
    # With marks each tile can check itself, so a search pays only if the tiles cannot all run at once.
    few = UPDATE_BLOCKS if marked else UPDATE_BLOCKS // 4
    search = boxes > 0 and tiles > few and -(-across // 32) * down <= MARK_WORDS
    fixed = _MIP.fix(
        height=heights,
        width=widths,
        reach_y=_reach(heights),
        reach_x=_reach(widths),
        finest_height=extents[0][0],
        finest_width=extents[0][1],
        halvings=base,
        levels=last - base,
        channels=channels,
        planes=batch * channels,
        box_count=boxes if search else 0,
    )
    pack = fixed.in_order("level", "finest", "modes", "boxes", "marks", "either", "reach", "furthest")
    kernel = "mip_more" if base > 0 else "mip_any"
    if even >= last - base >= 2:
        kernel = "mip_even"
    return _Step(base, last, kernel, min(tiles, UPDATE_BLOCKS) if search else tiles, search, pack)


def _tile_levels(extents: Sequence[tuple[int, int]], even: int) -> int:
    """How many levels one launch makes: as many as halve evenly, or as many as a tile has enough texels for."""
    most = min(len(extents) - 1, DEEPEST)
    if even >= 2:
        return min(most, even)
    return most if max(extents[0]) <= TILE else min(most, DEEPEST_ODD)


def _even_halvings(extent: tuple[int, int]) -> int:
    """How often both sides can be halved without remainder."""
    return min((side & -side).bit_length() - 1 for side in extent)


def _reach(extents: Sequence[int]) -> list[int]:
    """How many texels beyond its edge a tile must read per level to make its part of the coarser levels."""
    reach = [0] * len(extents)
    for level in range(len(extents) - 2, -1, -1):
        reach[level] = 2 * reach[level + 1] + extents[level] % 2 if extents[level] > 1 else 0
    return reach


class _Mipmap(torch.autograd.Function):
    """Level 0 is an output too, so that one pass folds its gradient into those of the others."""

    @staticmethod
    def forward(ctx: Any, image: Tensor, extents: Any, modes: Any) -> tuple[Tensor, ...]:
        ctx.extents, ctx.modes = extents, modes
        ctx.shape, ctx.dtype = image.shape, image.dtype
        ctx.set_materialize_grads(False)
        if any(mode != "mean" for mode in modes):
            ctx.save_for_backward(image)
        # Memory of its own for each level: outputs that are views of one tensor could not be changed in place.
        coarser = [image.new_empty((*image.shape[:2], *extent)) for extent in extents[1:]]
        _make_levels([image.contiguous(), *coarser], modes, None)
        return (image.view_as(image), *coarser)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None, None]:
        if any(mode != "mean" for mode in ctx.modes):
            return _backward_reference(ctx.saved_tensors[0], ctx.extents, ctx.modes, gradients), None, None
        total = image_gradient(gradients, ctx.shape[:2], ctx.extents, _one_level_down)
        return None if total is None else total.to(ctx.dtype), None, None


def _one_level_down(coarse: Tensor, direct: Tensor | None, planes: Sequence[int], extent: tuple[int, int]) -> Tensor:
    direct = None if direct is None else direct.float().contiguous()
    total = torch.empty((*planes, *extent), dtype=torch.float32, device=coarse.device)
    height, width = extent
    aligned = width % 4 == 0 and address(direct) % 16 == 0
    parameters = _BACKWARD.pack(
        fine=direct,
        coarse=coarse,
        total=total,
        height=height,
        width=width,
        coarse_height=coarse.shape[2],
        coarse_width=coarse.shape[3],
        aligned=aligned,
    )
    blocks = -(-width // 256) * -(-height // 4) * planes[0] * planes[1]
    launch("mip.cu", "mip_backward", total.device, blocks, parameters)
    return total


def _backward_reference(
    image: Tensor, extents: Any, modes: Sequence[str], gradients: Sequence[Tensor | None]
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
