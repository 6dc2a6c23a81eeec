"""`mipmap` with gradients on the GPU: forward as mip_kernel.py, backward by mip.cu and mip_gradient.cu."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from texturevlm.cuda.launch import launch
from texturevlm.cuda.struct import Layout, address, constants
from texturevlm.ops.mip import mipmap_reference
from texturevlm.ops.mip_kernel import even_halvings, make_levels

(TILE_BITS,) = constants("mip_gradient.cu", "TILE_BITS")
MOST_CHANNEL_BITS = 5
COARSE = 3  # a texel reads one value per level, so coarser levels are summed on this one first
_ONE_LEVEL, _ALL_LEVELS = Layout("mip.cu", "MipBackward"), Layout("mip_gradient.cu", "MipGradient")
Extents = tuple[tuple[int, int], ...]


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
