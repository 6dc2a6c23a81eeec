"""mipmap and update_region by our kernels (mip.cu)."""

import struct
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from texturevlm.ops.cuda.launch import MAX_LEVELS, address, channel_table, launch, padded, scalar_bits
from texturevlm.ops.mip import REDUCTIONS, mipmap_reference

TILE = 64
DEEPEST = 6  # the coarsest level that a tile can make by itself
ONE_BLOCK_TEXELS = 1 << 14  # a plane of this size can be left to one block
UPDATE_BLOCKS = 132 * 8  # enough to fill a large GPU
_MIP = struct.Struct(f"={MAX_LEVELS}Q3Q{4 * MAX_LEVELS}i6i")
_BACKWARD = struct.Struct("=3Q5i4x")


def mipmap_cuda(image: Tensor, extents: Sequence[tuple[int, int]], modes: Sequence[str]) -> list[Tensor]:
    """All levels in one launch. Differentiable."""
    if torch.is_grad_enabled() and image.requires_grad:
        return list(_Mipmap.apply(image, tuple(extents), tuple(modes)))
    return _build(image, extents, modes)


def update_region_cuda(levels: Sequence[Tensor], boxes: Tensor, modes: Sequence[str]) -> None:
    """The same kernel over the same tiles, less those that no box touches: the same bits as a rebuild."""
    for index, level in enumerate(levels):
        if not level.is_contiguous():
            raise ValueError(f"update_region: levels[{index}] must be contiguous, since it is written in place")
    _launch(levels, modes, boxes.to(torch.int32).contiguous())


def _build(image: Tensor, extents: Sequence[tuple[int, int]], modes: Sequence[str]) -> list[Tensor]:
    image = image.contiguous()
    levels = [image]
    levels += [image.new_empty((*image.shape[:2], height, width)) for height, width in extents[1:]]
    _launch(levels, modes, None)
    return levels


def _launch(levels: Sequence[Tensor], modes: Sequence[str], boxes: Tensor | None) -> None:
    image = levels[0]
    batch, channels, height, width = image.shape
    heights, widths = [level.shape[2] for level in levels], [level.shape[3] for level in levels]
    even_levels = _even_halvings(height, width) if all(level.data_ptr() % 16 == 0 for level in levels[:3]) else 0
    tile_levels = _tile_levels(heights, widths, even_levels)
    planes = batch * channels
    tiles = -(-height // TILE) * -(-width // TILE) * planes
    deep = len(levels) - 1 > tile_levels
    finished = torch.zeros(planes, dtype=torch.int32, device=image.device) if deep and boxes is None else None
    table = None
    if any(mode != "mean" for mode in modes):
        table = channel_table([REDUCTIONS.index(mode) for mode in modes], torch.uint8, image.device)
    parameters = _MIP.pack(
        *padded([level.data_ptr() for level in levels]),
        address(table),
        address(boxes),
        address(finished),
        *padded(heights),
        *padded(widths),
        *padded(_reach(heights, tile_levels)),
        *padded(_reach(widths, tile_levels)),
        len(levels),
        tile_levels,
        min(even_levels, tile_levels),
        channels,
        planes,
        0 if boxes is None else boxes.shape[1],
    )
    scalar = scalar_bits(image.dtype)
    kernel = "mip_even" if even_levels >= tile_levels >= 2 else "mip_any"
    blocks = tiles if boxes is None else min(tiles, UPDATE_BLOCKS)
    launch("mip.cu", kernel, image.device, blocks, parameters, SCALAR=scalar)
    if deep and boxes is not None:
        launch("mip.cu", "mip_deep", image.device, planes, parameters, SCALAR=scalar)


def _tile_levels(heights: Sequence[int], widths: Sequence[int], even_levels: int) -> int:
    """How many levels a tile makes by itself.

    The more, the further a tile must see past its edge, unless extents are even; the fewer, the more is left to the
    one block that makes the rest.
    """
    most = min(len(heights) - 1, DEEPEST)
    if even_levels >= most:
        return most
    small = (level for level in range(4, most) if heights[level] * widths[level] <= ONE_BLOCK_TEXELS)
    return next(small, most)


def _even_halvings(height: int, width: int) -> int:
    """How often both extents can be halved without remainder."""
    return min((extent & -extent).bit_length() - 1 for extent in (height, width))


def _reach(extents: Sequence[int], tile_levels: int) -> list[int]:
    """How many texels past its edge a tile must see on each level, to make what it owns of the coarser ones."""
    reach = [0] * len(extents)
    for level in range(tile_levels - 1, -1, -1):
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
