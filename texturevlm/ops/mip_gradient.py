"""The gradient of `mipmap` by mean, on the GPU (mip_gradient.cu)."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from texturevlm.cuda.launch import launch
from texturevlm.cuda.struct import Layout, constants

(TILE_BITS,) = constants("mip_gradient.cu", "TILE_BITS")
MOST_CHANNEL_BITS = 5
COARSE = 3  # a texel reads one value per level, so coarser levels are summed on this one first
_GRADIENT = Layout("mip_gradient.cu", "MipGradient")

Down = Callable[[Tensor, Tensor | None, Sequence[int], tuple[int, int]], Tensor]


def image_gradient(
    gradients: Sequence[Tensor | None], planes: Sequence[int], extents: Sequence[tuple[int, int]], one_level_down: Down
) -> Tensor | None:
    """The gradient of level 0 from those of all levels.

    gradients:      finest first, each (B, C, H_l, W_l) in any layout; None: none reached this level
    planes:         B and C
    extents:        (H_l, W_l) of every level
    one_level_down: the step from one level to the next finer one, for levels that do not halve without remainder
    returns         (B, C, H_0, W_0) float32, or None
    """
    sums = [
        gradient if gradient is None or gradient.dtype is torch.float32 else gradient.float() for gradient in gradients
    ]
    even = min(min((side & -side).bit_length() - 1 for side in extents[0]), len(extents) - 1)
    if all(gradient is None or gradient.is_contiguous() for gradient in sums):
        even = 0  # planar: one launch per level took 388 µs, one for all 585 (273 patches × 40 channels, H200)
    for level in range(len(extents) - 2, even - 1, -1):
        coarse = sums[level + 1]
        if coarse is not None:
            sums[level] = one_level_down(coarse.contiguous(), sums[level], planes, extents[level])
    last = even
    for first in (COARSE, 0) if last > COARSE else (0,):
        sums[first] = _summed(sums[first : last + 1], (*planes, *extents[first]), planar=first == 0)
        last = first
    return sums[0]


def _summed(gradients: Sequence[Tensor | None], shape: tuple[int, ...], *, planar: bool) -> Tensor | None:
    """All levels' gradients on the first of them, by one launch; planar, or in the layout that most of them have."""
    given = [gradient for gradient in gradients if gradient is not None]
    if not given or (len(given) == 1 and gradients[0] is not None):
        return gradients[0]
    batch, channels, height, width = shape
    together = channels > 1 and given[0].stride(1) == 1
    kind = torch.contiguous_format if planar or not together else torch.channels_last
    total = torch.empty(shape, dtype=torch.float32, device=given[0].device, memory_format=kind)
    channel_bits = min((channels - 1).bit_length(), MOST_CHANNEL_BITS) if together else 0
    column_bits = min((width - 1).bit_length(), TILE_BITS - channel_bits)
    row_bits = TILE_BITS - channel_bits - column_bits
    strides = zip(*[(0, 0, 0, 0) if gradient is None else gradient.stride() for gradient in gradients])
    image, channel, row, column = (list(values) for values in strides)
    of_total = dict(zip(("total_image", "total_channel", "total_row", "total_column"), total.stride()))
    parameters = _GRADIENT.pack(
        level=gradients, image=image, channel=channel, row=row, column=column, total=total, **of_total, batch=batch,
        channels=channels, height=height, width=width, levels=len(gradients), channel_bits=channel_bits,
        column_bits=column_bits, channels_together=int(together),
    )  # fmt: skip
    blocks = batch * -(-channels >> channel_bits) * -(-height >> row_bits) * -(-width >> column_bits)
    launch("mip_gradient.cu", "mip_gradient", total.device, blocks, parameters)
    return total
