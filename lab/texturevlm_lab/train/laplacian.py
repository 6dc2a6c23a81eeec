"""The Laplacian pyramid (Burt and Adelson, 1983): band-passes of an image, and what is left.

Unlike a mip chain, which averages areas and rounds extents down, these keep every second sample of a smoothed image
and round extents up, so that texel i of a level sits exactly on texel 2i of the finer one.
"""

from itertools import pairwise

import torch
from torch import Tensor

from texturevlm.check import check_count, check_floating, check_shapes


def laplacian_pyramid(image: Tensor, *, levels: int | None = None) -> list[Tensor]:
    """What each level of the Gaussian pyramid adds to the next coarser one.

    A level is smoothed with [1, 4, 6, 4, 1] / 16 along both axes, and its even samples are the next. Outside, the image
    is mirrored about its border texels, which are not repeated (reflect-101, as in OpenCV's pyrDown).

    image:  (B, C, H, W), floating point, any extent from 1 x 1
    levels: how many to return, the residual included; None goes down to 1 x 1
    returns the band-passes, finest first, then the low-pass residual: (B, C, H_l, W_l) with H_{l+1} = ceil(H_l / 2)

    A coarse level is brought up with the same 5 taps on the zero-filled fine grid, mirrored like the image.
    Differentiable.
    """
    sizes = check_shapes("laplacian_pyramid", image=(image, "B C H W"))
    check_floating("laplacian_pyramid", image=image)
    extent = max(sizes["H"], sizes["W"])
    if min(sizes["H"], sizes["W"]) < 1:
        raise ValueError(f"laplacian_pyramid: image must be at least 1 x 1, got {sizes['H']} x {sizes['W']}")
    most = 1 + (extent - 1).bit_length()  # halving and rounding up reaches 1 after ceil(log2(extent)) steps
    count = most if levels is None else check_count("laplacian_pyramid", "levels", levels, 1, most)
    smooth = [image]
    for _ in range(count - 1):
        smooth.append(_reduce(_reduce(smooth[-1], 2), 3))
    return [*(fine - _expand_to(coarse, fine) for fine, coarse in pairwise(smooth)), smooth[-1]]


# The taps are written as sums of slices, not as a convolution: cuDNN would round float32 to TF32 and autocast to half.
def _reduce(x: Tensor, dim: int) -> Tensor:
    """Smooth along one axis and keep the even samples: extent n becomes ceil(n / 2)."""
    n = x.shape[dim]
    # One texel at a time, so that extents 1 and 2, where a mirror meets its own reflection, need no case of their own.
    before, after = ([x.narrow(dim, _mirror(i, n), 1) for i in pair] for pair in ((-2, -1), (n, n + 1)))
    padded = torch.cat([*before, x, *after], dim)
    every_second = (..., slice(None, None, 2), slice(None)) if dim == 2 else (..., slice(None, None, 2))
    a, b, c, d, e = (padded.narrow(dim, tap, n)[every_second] for tap in range(5))
    return (a + e) * 0.0625 + (b + d) * 0.25 + c * 0.375


def _expand_to(x: Tensor, fine: Tensor) -> Tensor:
    return _expand(_expand(x, 2, fine.shape[2]), 3, fine.shape[3])


def _expand(x: Tensor, dim: int, extent: int) -> Tensor:
    """Bring one axis up to `extent`, which is 2n or 2n - 1: even samples see three coarse ones, odd samples two."""
    n = x.shape[dim]
    # Coarse texel n is fine texel 2n. Mirrored about the last fine texel it lands on coarse n - 1 if the fine extent
    # is even and on n - 2 if it is odd.
    after = n - 1 if extent % 2 == 0 else _mirror(n, n)
    left = torch.cat([x.narrow(dim, _mirror(-1, n), 1), x.narrow(dim, 0, n - 1)], dim)
    right = torch.cat([x.narrow(dim, 1, n - 1), x.narrow(dim, after, 1)], dim)
    even = (left + right) * 0.125 + x * 0.75
    odd = (x + right) * 0.5
    return torch.stack([even, odd], dim + 1).flatten(dim, dim + 1).narrow(dim, 0, extent)


def _mirror(i: int, n: int) -> int:
    """Where index i of an axis of extent n comes from when the axis is mirrored about its border texels."""
    if n == 1:
        return 0
    i %= 2 * (n - 1)
    return min(i, 2 * (n - 1) - i)
