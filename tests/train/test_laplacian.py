"""The Laplacian pyramid against scipy's correlation."""

import numpy as np
import pytest
import torch
from scipy.ndimage import correlate1d
from torch import Tensor

from texturevlm_lab.train.laplacian import laplacian_pyramid

SIZES = [(1, 1), (1, 7), (2, 2), (5, 3), (2, 9), (37, 53), (64, 64), (1, 4096)]
TAPS = np.array([1, 4, 6, 4, 1]) / 16


def noise(size: tuple[int, int], dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(2, 3, *size, dtype=dtype, generator=torch.Generator().manual_seed(0))


def scipy_reduce(image: np.ndarray) -> np.ndarray:
    for axis in (2, 3):
        image = correlate1d(image, TAPS, axis, mode="mirror")
    return image[..., ::2, ::2]


def scipy_expand(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    for axis, extent in ((2, size[0]), (3, size[1])):
        if extent == 1:  # a mirrored single texel has no zeros in between, so scipy would count it twice
            continue
        shape = list(image.shape)
        shape[axis] = extent
        fine = np.zeros(shape)
        fine[(slice(None),) * axis + (slice(None, None, 2),)] = image
        image = correlate1d(fine, 2 * TAPS, axis, mode="mirror")
    return image


@pytest.mark.parametrize("size", SIZES)
def test_laplacian_is_scipys(size: tuple[int, int]) -> None:
    fine = noise(size).numpy()
    *bands, low = laplacian_pyramid(noise(size))
    for band in bands:
        coarse = scipy_reduce(fine)
        np.testing.assert_allclose(band.numpy(), fine - scipy_expand(coarse, fine.shape[2:]), rtol=0, atol=1e-13)
        fine = coarse
    np.testing.assert_allclose(low.numpy(), fine, rtol=0, atol=1e-13)
    assert low.shape[2:] == (1, 1)
    assert len(laplacian_pyramid(noise(size), levels=1)) == 1


@pytest.mark.parametrize("size", SIZES)
def test_constants_stay_constant(size: tuple[int, int]) -> None:
    image = torch.full((1, 1, *size), 3.0)
    *bands, low = laplacian_pyramid(image)
    assert torch.equal(low, torch.full_like(low, 3.0))
    assert all(not band.any() for band in bands)


def test_images_and_channels_do_not_mix() -> None:
    image = noise((9, 14))
    for together, alone in zip(laplacian_pyramid(image), laplacian_pyramid(image[1:, 2:])):
        assert torch.equal(together[1:, 2:], alone)


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (5, 4)])
def test_gradients(size: tuple[int, int]) -> None:
    image = noise(size)[:1, :1].requires_grad_()
    assert torch.autograd.gradcheck(lambda x: tuple(laplacian_pyramid(x)), image)


def test_bad_images() -> None:
    with pytest.raises(ValueError, match=r"laplacian_pyramid: image must be \(B, C, H, W\), got \(3, 8, 8\)"):
        laplacian_pyramid(torch.zeros(3, 8, 8))
    with pytest.raises(TypeError, match=r"laplacian_pyramid: image must be floating point, got torch.uint8"):
        laplacian_pyramid(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"laplacian_pyramid: image must be at least 1 x 1, got 0 x 8"):
        laplacian_pyramid(torch.zeros(1, 3, 0, 8))
    with pytest.raises(ValueError, match=r"laplacian_pyramid: levels must be between 1 and 5, got 6"):
        laplacian_pyramid(torch.zeros(1, 3, 8, 9), levels=6)
    with pytest.raises(ValueError, match=r"laplacian_pyramid: levels must be between 1 and 5, got 0"):
        laplacian_pyramid(torch.zeros(1, 3, 8, 9), levels=0)
