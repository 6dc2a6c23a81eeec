"""Fidelity: PSNR and SSIM of the delivered picture against the image, overall and in a box.

Both on grey (the mean of the channels), values 0 to 1.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad

from texturevlm.check import check_shapes
from texturevlm.rebuilding import PixelBox

_WINDOW, _SIGMA = 11, 1.5  # Wang et al. 2004
_C1, _C2 = 0.01**2, 0.03**2
_MARGIN = _WINDOW // 2
_IDENTICAL = 100.0  # dB, reported where nothing differs, since infinity has no mean


def psnr(picture: Tensor, image: Tensor) -> float:
    """Peak signal-to-noise ratio in dB of (C, H, W) against (C, H, W), at most 100."""
    first, second = _grey("psnr", picture, image)[:, 0]
    error = float((first - second).square().mean())
    return min(_IDENTICAL, -10 * math.log10(error)) if error > 0 else _IDENTICAL


def ssim(picture: Tensor, image: Tensor) -> float:
    """Structural similarity (Gaussian window of 11 pixels, σ 1.5), mean over all windows that lie inside.

    An image smaller than a window is first padded by its edge.
    """
    both = _grey("ssim", picture, image)
    down, across = (max(0, _WINDOW - side) for side in both.shape[2:])
    both = pad(both, (across // 2, across - across // 2, down // 2, down - down // 2), mode="replicate")
    first, second = _smooth(both)[:, 0]
    squares = _smooth(both.square())[:, 0]
    variances = squares - torch.stack([first, second]).square()
    covariance = _smooth(both[:1] * both[1:])[0, 0] - first * second
    above = (2 * first * second + _C1) * (2 * covariance + _C2)
    below = (first.square() + second.square() + _C1) * (variances.sum(0) + _C2)
    return float((above / below).mean())


def in_box(picture: Tensor, image: Tensor, box: PixelBox) -> tuple[float, float]:
    """PSNR of the pixels of a box, xyxy, and SSIM of the windows centred on them."""
    left, top, right, bottom = box
    inside = [one[:, top:bottom, left:right] for one in (picture, image)]
    around = [
        pad(one[None], (_MARGIN,) * 4, mode="replicate")[0, :, top : bottom + 2 * _MARGIN, left : right + 2 * _MARGIN]
        for one in (picture, image)
    ]
    return psnr(inside[0], inside[1]), ssim(around[0], around[1])


def _grey(function: str, picture: Tensor, image: Tensor) -> Tensor:
    """(2, 1, H, W): both, in double precision."""
    check_shapes(function, picture=(picture, "C H W"), image=(image, "C H W"))
    return torch.stack([one.detach().double().mean(0, keepdim=True) for one in (picture, image)])


def _smooth(images: Tensor) -> Tensor:
    offsets = torch.arange(_WINDOW, dtype=images.dtype, device=images.device) - _MARGIN
    taps = torch.exp(-offsets.square() / 2 / _SIGMA**2)
    taps = taps / taps.sum()
    return conv2d(conv2d(images, taps[None, None, :, None]), taps[None, None, None, :])
