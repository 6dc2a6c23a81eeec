"""Fidelity: PSNR and SSIM of the delivered picture against the image, overall and in a box.

Both on grey (the mean of the channels), values 0 to 1.
"""

import math

import torch
from torch import Tensor

from texturevlm.check import check_shapes

_WINDOW, _SIGMA = 11, 1.5  # Wang et al. 2004
_K1, _K2 = 0.01, 0.03
_MARGIN = _WINDOW // 2
_IDENTICAL = 100.0  # dB, reported where nothing differs, since infinity has no mean


def psnr(picture: Tensor, image: Tensor) -> float:
    """Peak signal-to-noise ratio in dB of (C, H, W) against (C, H, W), at most 100."""
    check_shapes("psnr", picture=(picture, "C H W"), image=(image, "C H W"))
    error = float((_grey(picture) - _grey(image)).square().mean())
    return min(_IDENTICAL, -10 * math.log10(error)) if error > 0 else _IDENTICAL


def ssim(picture: Tensor, image: Tensor) -> float:
    """Structural similarity (Gaussian window of 11 pixels, σ 1.5), mean over all windows that lie inside."""
    return float(ssim_map(picture, image).mean())


def ssim_map(picture: Tensor, image: Tensor) -> Tensor:
    """(H − 10, W − 10), one value per window inside; an image smaller than a window is first padded by its edge."""
    check_shapes("ssim", picture=(picture, "C H W"), image=(image, "C H W"))
    both = torch.stack([_grey(picture), _grey(image)])[:, None]
    short = [max(0, _WINDOW - side) for side in both.shape[2:]]
    both = extended(both, short[1] // 2, short[0] // 2, short[1] - short[1] // 2, short[0] - short[0] // 2)
    first, second = _smooth(both)[:, 0]
    squares = _smooth(both.square())[:, 0]
    variances = squares - torch.stack([first, second]).square()
    covariance = _smooth(both[:1] * both[1:])[0, 0] - first * second
    c1, c2 = _K1**2, _K2**2
    above = (2 * first * second + c1) * (2 * covariance + c2)
    below = (first.square() + second.square() + c1) * (variances.sum(0) + c2)
    similarity: Tensor = above / below
    return similarity


def _grey(picture: Tensor) -> Tensor:
    return picture.detach().double().mean(0)


def _smooth(images: Tensor) -> Tensor:
    taps = torch.exp(
        -(torch.arange(_WINDOW, dtype=images.dtype, device=images.device) - _MARGIN).square() / 2 / _SIGMA**2
    )
    taps = taps / taps.sum()
    down = torch.nn.functional.conv2d(images, taps[None, None, :, None])
    return torch.nn.functional.conv2d(down, taps[None, None, None, :])


def extended(images: Tensor, left: int, top: int, right: int, bottom: int) -> Tensor:
    """(B, C, H, W), padded by repeating its edge."""
    return torch.nn.functional.pad(images, (left, right, top, bottom), mode="replicate")


def in_box(picture: Tensor, image: Tensor, box: tuple[int, int, int, int]) -> tuple[float, float]:
    """PSNR of the pixels of a box, xyxy, and SSIM of the windows centred on them."""
    left, top, right, bottom = box
    inside = [one[:, top:bottom, left:right] for one in (picture, image)]
    around = [
        extended(one[None], _MARGIN, _MARGIN, _MARGIN, _MARGIN)[
            0, :, top : bottom + 2 * _MARGIN, left : right + 2 * _MARGIN
        ]
        for one in (picture, image)
    ]
    return psnr(inside[0], inside[1]), ssim(around[0], around[1])
