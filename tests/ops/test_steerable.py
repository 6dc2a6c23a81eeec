"""The bands of a steerable pyramid against pyrtools, an independent implementation.

Two things keep pyrtools from being a reference to the last digit:
  - it reads its masks from tables by linear interpolation, which costs it up to 8e-6; ours are computed, so 1e-5 is
    allowed (with 256 times finer tables the two agree to 5e-10);
  - at odd extents its analysis lays the frequency grid half a bin off, so that zero frequency is not on it.
    `pyrtools_pyramid` mends that one line there; even extents meet pyrtools as it is.
"""

import math
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor

from texturevlm_lab.allocators.steerable import steerable_bands

SIZES = [(64, 64), (60, 84), (63, 80), (65, 97)]
AWKWARD = [*SIZES, (1, 1), (1, 9), (2, 3), (7, 5), (8, 8), (9, 31), (10, 300)]


def noise(size: tuple[int, int], dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(2, 3, *size, dtype=dtype, generator=torch.Generator().manual_seed(0))


def centred_ramp(start: float, stop: float, count: int) -> np.ndarray:
    """np.linspace(-1, 1, n + 1), but with zero at n // 2 when n is odd too."""
    assert (start, stop) == (-1, 1)
    n = count - 1
    return (np.arange(count) - n // 2) * 2 / n


def pyrtools_pyramid(image: np.ndarray, orientations: int, *, scales: int | str = "auto"):
    pyrtools = pytest.importorskip("pyrtools")
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.filterwarnings("ignore", message="Reconstruction will not be perfect with odd-sized images")
        if image.shape[0] % 2 or image.shape[1] % 2:
            patch.setattr(np, "linspace", centred_ramp)
        return pyrtools.pyramids.SteerablePyramidFreq(image, scales, orientations - 1)


def distance(ours: Tensor, theirs: np.ndarray) -> float:
    assert tuple(ours.shape) == theirs.shape
    return float(np.linalg.norm(ours.numpy() - theirs) / np.linalg.norm(theirs))


@pytest.mark.parametrize("orientations", [4, 5, 6])
@pytest.mark.parametrize("size", SIZES)
def test_coefficients_are_pyrtools(size: tuple[int, int], orientations: int) -> None:
    image = noise(size)
    theirs = pyrtools_pyramid(image[1, 2].numpy(), orientations)
    bands = steerable_bands(image, orientations=orientations)
    assert len(bands) == theirs.num_scales
    for s, band in enumerate(bands):
        for k in range(orientations):
            assert distance(band[1, 2, k], theirs.pyr_coeffs[s, k]) < 1e-5, (s, k)


def test_shapes() -> None:
    bands = steerable_bands(noise((63, 80)), orientations=6)
    assert [tuple(band.shape) for band in bands] == [(2, 3, 6, 63, 80), (2, 3, 6, 32, 40), (2, 3, 6, 16, 20)]
    assert len(steerable_bands(noise((64, 64)), scales=2)) == 2
    assert steerable_bands(noise((7, 500))) == [] == steerable_bands(noise((64, 64)), scales=0)
    assert len(steerable_bands(noise((8, 500)))) == 1


@pytest.mark.parametrize("size", AWKWARD)
def test_a_constant_is_in_no_band(size: tuple[int, int]) -> None:
    bands = steerable_bands(torch.full((1, 1, *size), 3.0, dtype=torch.float64))
    assert all(band.abs().max() < 1e-12 for band in bands)


@pytest.mark.parametrize("scale", [0, 1, 2])
@pytest.mark.parametrize("band", [0, 1, 2, 3])
def test_a_wave_excites_its_band(scale: int, band: int) -> None:
    n = 128
    cycles = n / 2 ** (scale + 2)  # radius 2^-(scale+1), where this scale takes everything
    turn = band * math.pi / 4  # from +x to +y
    kx, ky = round(cycles * math.cos(turn)), round(cycles * math.sin(turn))
    y, x = torch.meshgrid(*[torch.arange(n, dtype=torch.float64)] * 2, indexing="ij")
    wave = torch.cos(2 * math.pi * (kx * x + ky * y) / n)[None, None]
    bands = steerable_bands(wave, scales=4, orientations=4)
    # Coefficients are 4^s times larger at scale s and 4^s times fewer, so their squares sum to 4^s times the energy.
    energy = torch.stack([b.square().sum((0, 1, 3, 4)) / 4**s for s, b in enumerate(bands)])
    assert energy.argmax() == scale * 4 + band
    share = energy / energy.sum()
    assert share[scale].sum() > 0.97  # all of it but for the rounding of diagonal waves to whole cycles
    # cos^6 over four turns: 1, 1/8, 0, 1/8, of which the right band is four fifths and the crossing one nothing
    assert share[scale, band] == pytest.approx(0.8, abs=0.03)
    assert share[scale, (band + 2) % 4] < 1e-6


def test_band_zero_sees_a_vertical_edge() -> None:
    image = torch.zeros(1, 1, 32, 32)
    image[..., 8:24] = 1
    for band in steerable_bands(image):
        energy = band.square().sum((0, 1, 3, 4))
        assert energy.argmax() == 0
        assert energy[2] < 1e-6 * energy[0]


def test_images_and_channels_do_not_mix() -> None:
    image = noise((33, 40))
    for ours, theirs in zip(steerable_bands(image), steerable_bands(image[1:, 2:]), strict=True):
        torch.testing.assert_close(ours[1:, 2:], theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("orientations", [4, 5])
def test_gradients(orientations: int) -> None:
    image = noise((8, 9))[:1, :1].requires_grad_()

    def bands(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(steerable_bands(x, orientations=orientations))

    assert len(bands(image)) == 1 and torch.autograd.gradcheck(bands, image)


def test_bad_images() -> None:
    with pytest.raises(ValueError, match=r"steerable_bands: image must be \(B, C, H, W\), got \(3, 8, 8\)"):
        steerable_bands(torch.zeros(3, 8, 8))
    with pytest.raises(TypeError, match=r"steerable_bands: image must be floating point, got torch.uint8"):
        steerable_bands(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))
    with pytest.raises(TypeError, match=r"steerable_bands: image must be float32 or float64, got torch.float16"):
        steerable_bands(torch.zeros(1, 3, 8, 8, dtype=torch.float16))
    with pytest.raises(ValueError, match=r"steerable_bands: image must be at least 1 x 1, got 0 x 8"):
        steerable_bands(torch.zeros(1, 3, 0, 8))


def test_bad_options() -> None:
    image = torch.zeros(1, 1, 37, 53)
    with pytest.raises(ValueError, match=r"steerable_bands: scales must be at most 3 for an image of 37 x 53, got 4"):
        steerable_bands(image, scales=4)
    with pytest.raises(ValueError, match=r"steerable_bands: scales must be at most 0 for an image of 5 x 5, got 1"):
        steerable_bands(image[..., :5, :5], scales=1)
    with pytest.raises(ValueError, match=r"steerable_bands: scales must be at least 0, got -1"):
        steerable_bands(image, scales=-1)
    with pytest.raises(ValueError, match=r"steerable_bands: orientations must be at least 1, got 0"):
        steerable_bands(image, orientations=0)
