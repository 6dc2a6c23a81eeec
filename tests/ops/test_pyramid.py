"""Gaussian and Laplacian pyramids against scipy's correlation, and the way back."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.ndimage import correlate1d
from torch import Tensor

from texturevlm.ops.pyramid import gaussian_pyramid, laplacian_pyramid, laplacian_reconstruct

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
def test_gaussian_is_scipys(size: tuple[int, int]) -> None:
    levels = gaussian_pyramid(noise(size))
    assert levels[-1].shape[2:] == (1, 1)
    for fine, coarse in pairwise(levels):
        assert coarse.shape == (2, 3, (fine.shape[2] + 1) // 2, (fine.shape[3] + 1) // 2)
        np.testing.assert_allclose(coarse.numpy(), scipy_reduce(fine.numpy()), rtol=0, atol=1e-14)


@pytest.mark.parametrize("size", SIZES)
def test_laplacian_is_scipys(size: tuple[int, int]) -> None:
    smooth, bands = gaussian_pyramid(noise(size)), laplacian_pyramid(noise(size))
    assert len(bands) == len(smooth)
    assert torch.equal(bands[-1], smooth[-1])
    for fine, coarse, band in zip(smooth, smooth[1:], bands):
        wanted = fine.numpy() - scipy_expand(coarse.numpy(), (fine.shape[2], fine.shape[3]))
        np.testing.assert_allclose(band.numpy(), wanted, rtol=0, atol=1e-14)


def test_gaussian_on_paper() -> None:
    ramp = torch.arange(4.0).reshape(1, 1, 1, 4)
    # Texel 0 sees 2 1 [0] 1 2 and texel 2 sees 0 1 [2] 3 2.
    expected = torch.tensor([(2 + 4 + 0 + 4 + 2) / 16, (0 + 4 + 12 + 12 + 2) / 16])
    torch.testing.assert_close(gaussian_pyramid(ramp, levels=2)[1].flatten(), expected)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-14)])
def test_laplacian_reconstructs(size: tuple[int, int], dtype: torch.dtype, tolerance: float) -> None:
    image = noise(size, dtype) + 100  # an offset, so that rounding has something to spoil
    for levels in (1, 2, None) if max(size) > 1 else (1, None):
        bands = laplacian_pyramid(image, levels=levels)
        assert all(band.dtype == dtype for band in bands)
        assert (laplacian_reconstruct(bands) - image).abs().max() <= tolerance * image.abs().max()


@pytest.mark.parametrize("size", SIZES)
def test_constants_stay_constant(size: tuple[int, int]) -> None:
    image = torch.full((1, 1, *size), 3.0)
    *bands, low = laplacian_pyramid(image)
    assert all(torch.equal(level, torch.full_like(level, 3.0)) for level in [*gaussian_pyramid(image), low])
    assert all(not band.any() for band in bands)


def test_level_zero_is_the_image_and_levels_counts_it() -> None:
    image = noise((37, 53))
    assert gaussian_pyramid(image)[0] is image
    assert [tuple(level.shape[2:]) for level in gaussian_pyramid(image, levels=3)] == [(37, 53), (19, 27), (10, 14)]
    assert len(laplacian_pyramid(image)) == len(gaussian_pyramid(image)) == 7


def test_images_and_channels_do_not_mix() -> None:
    image = noise((9, 14))
    for together, alone in zip(laplacian_pyramid(image), laplacian_pyramid(image[1:, 2:])):
        assert torch.equal(together[1:, 2:], alone)


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (5, 4)])
def test_gradients(size: tuple[int, int]) -> None:
    image = noise(size)[:1, :1].requires_grad_()
    assert torch.autograd.gradcheck(lambda x: tuple(level * 1 for level in gaussian_pyramid(x)), image)
    assert torch.autograd.gradcheck(lambda x: tuple(laplacian_pyramid(x)), image)
    bands = [band.detach().requires_grad_() for band in laplacian_pyramid(image)]
    assert torch.autograd.gradcheck(lambda *x: laplacian_reconstruct(x) * 1, bands)


@pytest.mark.parametrize("function", [gaussian_pyramid, laplacian_pyramid])
def test_bad_images(function) -> None:
    name = function.__name__
    with pytest.raises(ValueError, match=rf"{name}: image must be \(B, C, H, W\), got \(3, 8, 8\)"):
        function(torch.zeros(3, 8, 8))
    with pytest.raises(TypeError, match=rf"{name}: image must be floating point, got torch.uint8"):
        function(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))
    with pytest.raises(ValueError, match=rf"{name}: image must be at least 1 x 1, got 0 x 8"):
        function(torch.zeros(1, 3, 0, 8))
    with pytest.raises(ValueError, match=rf"{name}: levels must be between 1 and 5, got 6"):
        function(torch.zeros(1, 3, 8, 9), levels=6)
    with pytest.raises(ValueError, match=rf"{name}: levels must be between 1 and 5, got 0"):
        function(torch.zeros(1, 3, 8, 9), levels=0)


def test_bad_bands() -> None:
    with pytest.raises(ValueError, match=r"laplacian_reconstruct: bands must hold at least the residual, got none"):
        laplacian_reconstruct([])
    with pytest.raises(ValueError, match=r"bands\[1\] must have extents \(4, 5\), half of bands\[0\]'s, got \(4, 4\)"):
        laplacian_reconstruct([torch.zeros(1, 1, 8, 9), torch.zeros(1, 1, 4, 4)])
    with pytest.raises(ValueError, match=r"bands\[1\] must be \(B, C, H1, W1\), got \(2, 1, 4, 5\)"):
        laplacian_reconstruct([torch.zeros(1, 1, 8, 9), torch.zeros(2, 1, 4, 5)])
    with pytest.raises(TypeError, match=r"laplacian_reconstruct: bands\[0\] must be floating point, got torch.int64"):
        laplacian_reconstruct([torch.zeros(1, 1, 8, 9, dtype=torch.int64)])
