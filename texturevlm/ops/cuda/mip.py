"""mipmap and update_region by our kernels (mip.cu)."""

import struct
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from texturevlm.ops.cuda.launch import MAX_LEVELS, address, channel_table, launch, padded, scalar_bits
from texturevlm.ops.mip import REDUCTIONS, mipmap_reference

TILE = 64
DEEPEST = 6  # the coarsest level that a tile can make by itself,
DEEPEST_ODD = 4  # or where extents are odd, so that it must see past its edge
MARK_WORDS = 2048  # as in mip.cu
FAR = 1 << 20  # as in mip.cu: beyond every image
UPDATE_BLOCKS = 132 * 4  # what a large GPU holds at once
_MIP = struct.Struct(f"={MAX_LEVELS}Q3Q{4 * MAX_LEVELS}i7i4x")
_BACKWARD = struct.Struct("=3Q5i4x")


def mipmap_cuda(image: Tensor, extents: Sequence[tuple[int, int]], modes: Sequence[str]) -> list[Tensor]:
    """All levels of an even image in one launch, up to seven; see mip.cu for the others. Differentiable."""
    if torch.is_grad_enabled() and image.requires_grad:
        return list(_Mipmap.apply(image, tuple(extents), tuple(modes)))
    return _build(image, extents, modes)


def update_region_cuda(levels: Sequence[Tensor], boxes: Tensor, modes: Sequence[str]) -> None:
    """The same kernel over the same tiles, less those that no box touches: the same bits as a rebuild."""
    for index, level in enumerate(levels):
        if not level.is_contiguous():
            raise ValueError(f"update_region: levels[{index}] must be contiguous, since it is written in place")
    if boxes.dtype != torch.int32:
        boxes = boxes.clamp(-FAR, FAR).to(torch.int32)
    boxes = boxes.contiguous()
    _make_levels(levels, modes, boxes if boxes.data_ptr() % 16 == 0 else boxes.clone())


def _build(image: Tensor, extents: Sequence[tuple[int, int]], modes: Sequence[str]) -> list[Tensor]:
    image = image.contiguous()
    levels = [image]
    levels += [image.new_empty((*image.shape[:2], height, width)) for height, width in extents[1:]]
    _make_levels(levels, modes, None)
    return levels


def _make_levels(levels: Sequence[Tensor], modes: Sequence[str], boxes: Tensor | None) -> None:
    """One launch for all that a tile can make by itself, another from there for the few texels that are left."""
    table = None
    if any(mode != "mean" for mode in modes):
        table = channel_table([REDUCTIONS.index(mode) for mode in modes], torch.uint8, levels[0].device)
    base = 0
    while base < len(levels) - 1:
        last = base + _tile_levels(levels[base:])
        _launch(levels, base, last, table, boxes)
        base = last


def _tile_levels(levels: Sequence[Tensor]) -> int:
    """How many levels one launch makes: as many as halve evenly; else as many as a tile can see far enough for."""
    most = min(len(levels) - 1, DEEPEST)
    height, width = levels[0].shape[2:]
    if (even := _even_halvings(levels)) >= 2:
        return min(most, even)
    return most if max(height, width) <= TILE else min(most, DEEPEST_ODD)


def _launch(pyramid: Sequence[Tensor], base: int, last: int, table: Tensor | None, boxes: Tensor | None) -> None:
    """Make levels base + 1 … last from level `base`."""
    finest, levels = pyramid[0], pyramid[base : last + 1]
    batch, channels, height, width = levels[0].shape
    heights, widths = [level.shape[2] for level in levels], [level.shape[3] for level in levels]
    count = len(levels) - 1
    tiles = -(-height // TILE) * -(-width // TILE) * batch * channels
    if tiles <= UPDATE_BLOCKS // 4 or -(-width // (32 * TILE)) * -(-height // TILE) > MARK_WORDS:
        boxes = None  # fewer tiles than are worth a search, or more than the kernel can mark: all are made again
    parameters = _MIP.pack(
        *padded([level.data_ptr() for level in levels]),
        finest.data_ptr(),
        address(table),
        address(boxes),
        *padded(heights),
        *padded(widths),
        *padded(_reach(heights)),
        *padded(_reach(widths)),
        *finest.shape[2:],
        base,
        count,
        channels,
        batch * channels,
        0 if boxes is None else boxes.shape[1],
    )
    kernel = "mip_more" if base > 0 else "mip_any"
    if _even_halvings(levels) >= count >= 2:
        kernel = "mip_even"
    blocks = tiles if boxes is None else min(tiles, UPDATE_BLOCKS)
    bits = scalar_bits(finest.dtype)
    launch("mip.cu", kernel, finest.device, blocks, parameters, early=base > 0, SCALAR=bits)


def _even_halvings(levels: Sequence[Tensor]) -> int:
    """How often both extents can be halved without remainder; 0 where the kernel's wide loads would be misaligned."""
    if any(level.data_ptr() % 16 for level in levels[:3]):
        return 0
    return min((extent & -extent).bit_length() - 1 for extent in levels[0].shape[2:])


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
        levels = _build(image, extents, modes)
        return (image.view_as(image), *levels[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None, None]:
        if any(mode != "mean" for mode in ctx.modes):
            return _backward_reference(ctx.saved_tensors[0], ctx.extents, ctx.modes, gradients), None, None
        total: Tensor | None = None
        for level in range(len(ctx.extents) - 1, -1, -1):
            direct = gradients[level]
            if total is None:
                total = None if direct is None else direct.float().contiguous()
            else:
                total = _one_level_down(total, direct, ctx.shape[:2], ctx.extents[level])
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
