"""PSNR and SSIM against scikit-image."""

import numpy as np
import pytest
import torch

from texturevlm_lab.evaluate.metrics import _IDENTICAL, in_box, psnr, ssim

metrics = pytest.importorskip("skimage.metrics")


def pair(height, width, channels=1):
    image = torch.rand(channels, height, width)
    return (image + 0.1 * torch.randn_like(image)).clamp(0, 1), image


def by_skimage(picture, image):
    first, second = (np.asarray(one.mean(0), dtype=np.float64) for one in (picture, image))
    options = {"data_range": 1.0, "gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False}
    return (
        metrics.peak_signal_noise_ratio(second, first, data_range=1.0),
        metrics.structural_similarity(second, first, **options),
    )


@pytest.mark.parametrize("size", [(11, 11), (12, 40), (57, 33)])
@pytest.mark.parametrize("channels", [1, 3])
def test_as_scikit_image_does_it(size, channels):
    picture, image = pair(*size, channels)
    wanted = by_skimage(picture, image)
    assert psnr(picture, image) == pytest.approx(wanted[0], abs=1e-4)
    assert ssim(picture, image) == pytest.approx(wanted[1], abs=1e-4)


def test_in_a_box_it_is_that_of_the_box_alone():
    picture, image = pair(60, 80)
    left, top, right, bottom = 20, 15, 50, 40
    signal, structure = in_box(picture, image, (left, top, right, bottom))
    assert signal == pytest.approx(psnr(picture[:, top:bottom, left:right], image[:, top:bottom, left:right]))
    around = (slice(None), slice(top - 5, bottom + 5), slice(left - 5, right + 5))
    assert structure == pytest.approx(ssim(picture[around], image[around]), abs=1e-6)
    spoilt = picture.clone()
    spoilt[:, :8] = 0
    assert in_box(spoilt, image, (left, top, right, bottom)) == (signal, structure)


@pytest.mark.parametrize("size", [(1, 1), (3, 30), (10, 10)])
def test_small_and_equal_images(size):
    image = torch.rand(3, *size)
    assert psnr(image, image) == _IDENTICAL and ssim(image, image) == pytest.approx(1, abs=1e-5)
    assert in_box(image, image, (0, 0, 1, 1)) == (_IDENTICAL, pytest.approx(1, abs=1e-5))
    assert ssim(1 - image, image) < 0.999


def test_shapes_must_agree():
    with pytest.raises(ValueError, match=r"psnr: image must be \(C, H, W\)"):
        psnr(torch.rand(1, 4, 4), torch.rand(1, 4, 5))
