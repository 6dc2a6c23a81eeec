"""mipmap and update_region by our kernels (mip.cu).

Whatever follows from shapes alone is worked out once and remembered: a stream of images of one size asks the same every
time, and the kernels take less time than it would.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from texturevlm.cuda.constants import device_constant
from texturevlm.cuda.launch import (
    MAX_LEVELS,
    address,
    launch,
    pack_pointers,
    padded,
    scalar_bits,
)
from texturevlm.ops.marks import Marks, packed
from texturevlm.ops.mip import REDUCTIONS, level_extents, mipmap_reference
from texturevlm.ops.mip_gradient import image_gradient

TILE = 64
DEEPEST = 6  # the coarsest level that a tile can make by itself,
DEEPEST_ODD = 4  # or where extents are odd, so that it must see past its edge
MARK_WORDS = 2048  # as in mip.cu
FAR = 1 << 20  # as in mip.cu: beyond every image
UPDATE_BLOCKS = 132 * 4  # what a large GPU holds at once
LEVEL_BYTES = 512  # each level begins on a multiple of this, as one that PyTorch allocates does
_Place = tuple[tuple[int, ...], tuple[int, ...], int]  # size, strides and start of a level
LEFT, MOVED = -1, -2  # as in mip.cu
_OTHERS = struct.Struct("=3Q24s24sQi")
_NOTHING = (packed(None), packed(None), 0, 0)
_GEOMETRY = struct.Struct(f"={4 * MAX_LEVELS}i7i")
_BACKWARD = struct.Struct("=3Q5i4x")


def mipmap_cuda(image: Tensor, extents: Sequence[tuple[int, int]], modes: tuple[str, ...]) -> list[Tensor]:
    """All levels of an even image in one launch, up to seven; see mip.cu for the others. Differentiable.

    The levels that are made share one piece of memory: asking for each by itself costs more than making it.
    """
    if torch.is_grad_enabled() and image.requires_grad:
        return list(_Mipmap.apply(image, tuple(extents), modes))
    image = image.contiguous()
    room, places = _places(image.shape, len(extents), LEVEL_BYTES // image.element_size())
    memory = image.new_empty(room)
    levels = [image, *[memory.as_strided(size, strides, start) for size, strides, start in places]]
    _make_levels(levels, modes, None)
    return levels


@lru_cache(maxsize=256)
def _places(shape: torch.Size, count: int, multiple: int) -> tuple[int, list[_Place]]:
    """How many numbers all levels but the first take together, and where each lies among them."""
    batch, channels, height, width = shape
    room = 0
    places: list[_Place] = []
    for rows, columns in level_extents(height, width, count)[1:]:
        plane = rows * columns
        places.append(((batch, channels, rows, columns), (channels * plane, plane, columns, 1), room))
        room += -(-batch * channels * plane // multiple) * multiple
    return room, places


def update_region_cuda(levels: Sequence[Tensor], boxes: Tensor, modes: tuple[str, ...]) -> None:
    """The same kernel over the same tiles, less those that no box touches: the same bits as a rebuild."""
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
    """update_region where tiles are marked on the device, for one image: nothing is known of them here.

    levels: finest first, each (1, C, H_l, W_l), contiguous; marks are of texels of the first
    reach:  how many texels a mark acts, one a channel; LEFT: it stays as it is, MOVED: `either` counts for it
    either: the marks and those of before
    since:  the level to go on from, 0 or what an earlier call returned
    until:  the level that is wanted; one launch may make some more
    early:  right after a kernel of ours that lets the next one start only once the marks are there
    returns the last level made
    """
    table = device_constant(reach, torch.int16, levels[0].device) if any(reach) else None
    before = either if either is not None and MOVED in reach else marks
    searched = (packed(marks), packed(before), address(table), max((0, *reach)))
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
    """One launch for all that a tile can make by itself, another from there for the few texels that are left.

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
        others = _OTHERS.pack(pointers[0], address(table), address(boxes) if step.search else 0, *marks)
        parameters = pack_pointers(pointers[step.base : step.last + 1]) + others + step.geometry
        soon = early if step.base == since else True  # a launch that continues another one may begin beside it
        launch("mip.cu", step.kernel, finest.device, step.blocks, parameters, early=soon, SCALAR=scalar)
        made = step.last
    assert made > since or since == len(levels) - 1, f"no launch begins at level {since}"
    return made


@lru_cache(maxsize=256)
def _codes(modes: tuple[str, ...]) -> tuple[int, ...]:
    """The reductions as mip.cu numbers them; nothing where all are by mean."""
    return tuple(REDUCTIONS.index(mode) for mode in modes) if set(modes) != {"mean"} else ()


@dataclass(frozen=True)
class _Step:
    """A launch that makes levels base + 1 … last from level `base`; search: only in the tiles that a box touches."""

    base: int
    last: int
    kernel: str
    blocks: int
    search: bool
    geometry: bytes


@lru_cache(maxsize=256)
def _steps(shape: torch.Size, aligned: tuple[bool, ...], boxes: int, marked: bool) -> tuple[_Step, ...]:
    """The launches for a pyramid.

    aligned: for each level, whether its texels can be read four at a time
    boxes:   that tell what changed, 0: everything; marked: marks do, instead of boxes
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
    # With few tiles a search is not worth it, more the kernel cannot mark: all are made again. By marks each tile can
    # tell for itself, so there a search is worth it only if they cannot all run at once.
    few = UPDATE_BLOCKS if marked else UPDATE_BLOCKS // 4
    search = boxes > 0 and tiles > few and -(-across // 32) * down <= MARK_WORDS
    geometry = _GEOMETRY.pack(
        *padded(heights),
        *padded(widths),
        *padded(_reach(heights)),
        *padded(_reach(widths)),
        *extents[0],
        base,
        last - base,
        channels,
        batch * channels,
        boxes if search else 0,
    )
    kernel = "mip_more" if base > 0 else "mip_any"
    if even >= last - base >= 2:
        kernel = "mip_even"
    return _Step(base, last, kernel, min(tiles, UPDATE_BLOCKS) if search else tiles, search, geometry)


def _tile_levels(extents: Sequence[tuple[int, int]], even: int) -> int:
    """How many levels one launch makes: as many as halve evenly; else as many as a tile can see far enough for."""
    most = min(len(extents) - 1, DEEPEST)
    if even >= 2:
        return min(most, even)
    return most if max(extents[0]) <= TILE else min(most, DEEPEST_ODD)


def _even_halvings(extent: tuple[int, int]) -> int:
    """How often both sides can be halved without remainder."""
    return min((side & -side).bit_length() - 1 for side in extent)


def _reach(extents: Sequence[int]) -> list[int]:
    """How many texels past its edge a tile must see on each level, to make what it owns of the coarser ones."""
    reach = [0] * len(extents)
    for level in range(len(extents) - 2, -1, -1):
        reach[level] = 2 * reach[level + 1] + extents[level] % 2 if extents[level] > 1 else 0
    return reach


class _Mipmap(torch.autograd.Function):
    """Level 0 is an output too, so that its gradient is folded into the same pass as the others'."""

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
        address(direct), coarse.data_ptr(), total.data_ptr(), height, width, *coarse.shape[2:], aligned
    )
    blocks = -(-width // 256) * -(-height // 4) * planes[0] * planes[1]
    launch("mip.cu", "mip_backward", total.device, blocks, parameters, SCALAR=32)
    return total


def _backward_reference(
    image: Tensor, extents: Any, modes: Sequence[str], gradients: Sequence[Tensor | None]
) -> Tensor | None:
    """Channels that shrink by max, min or nearest pass their gradient to the texel they took: by the reference."""
    with torch.enable_grad():
        leaf = image.detach().requires_grad_()
        levels = mipmap_reference(leaf, extents, modes)
    pairs = [(level, grad) for level, grad in zip(levels, gradients) if grad is not None]
    if not pairs:
        return None
    outputs, upstream = zip(*pairs)
    return torch.autograd.grad(outputs, leaf, upstream)[0]
