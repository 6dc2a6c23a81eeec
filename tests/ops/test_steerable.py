"""The steerable pyramid against pyrtools, an independent implementation, and the way back.

Two things keep pyrtools from being a reference to the last digit:
  - it reads its masks from tables by linear interpolation, which costs it up to 8e-6; ours are computed, so 1e-5 is
    allowed (with 256 times finer tables the two agree to 5e-10);
  - at odd extents its analysis lays the frequency grid half a bin off, so that zero frequency is not on it, while its
    synthesis lays it right. `pyrtools_pyramid` mends that one line there; even extents meet pyrtools as it is.
"""

import math
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor

from texturevlm_lab.allocators.steerable import (
    SteerablePyramid,
    steerable_bands,
    steerable_pyramid,
    steerable_reconstruct,
)

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
    high, bands, low = steerable_pyramid(image, orientations=orientations)
    assert len(bands) == theirs.num_scales
    assert distance(high[1, 2], theirs.pyr_coeffs["residual_highpass"]) < 1e-5
    assert distance(low[1, 2], theirs.pyr_coeffs["residual_lowpass"]) < 1e-5
    for s, band in enumerate(bands):
        for k in range(orientations):
            assert distance(band[1, 2, k], theirs.pyr_coeffs[s, k]) < 1e-5, (s, k)


@pytest.mark.parametrize("orientations", [4, 6])
@pytest.mark.parametrize("size", SIZES)
def test_pyrtools_reads_our_coefficients(size: tuple[int, int], orientations: int) -> None:
    """Its synthesis is sound at odd extents, so nothing of pyrtools is mended in what this compares."""
    image = noise(size)[0, 0]
    theirs = pyrtools_pyramid(np.zeros(size), orientations, scales=3)
    high, bands, low = steerable_pyramid(image[None, None], scales=3, orientations=orientations)
    theirs.pyr_coeffs["residual_highpass"] = high[0, 0].numpy()
    theirs.pyr_coeffs["residual_lowpass"] = low[0, 0].numpy()
    for s, band in enumerate(bands):
        for k in range(orientations):
            theirs.pyr_coeffs[s, k] = band[0, 0, k].numpy()
    assert distance(image, theirs.recon_pyr()) < 1e-5


@pytest.mark.parametrize("orientations", [1, 4, 5, 6])
@pytest.mark.parametrize("size", AWKWARD)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.float64, 1e-14)])
def test_reconstructs(size: tuple[int, int], orientations: int, dtype: torch.dtype, tolerance: float) -> None:
    image = noise(size, dtype) + 1
    pyramid = steerable_pyramid(image, orientations=orientations)
    back = steerable_reconstruct(pyramid)
    assert pyramid.low.dtype == back.dtype == dtype
    assert (back - image).abs().max() <= tolerance * image.abs().max()


def test_shapes() -> None:
    high, bands, low = steerable_pyramid(noise((63, 80)), orientations=6)
    assert high.shape == (2, 3, 63, 80)
    assert [tuple(band.shape) for band in bands] == [(2, 3, 6, 63, 80), (2, 3, 6, 32, 40), (2, 3, 6, 16, 20)]
    assert low.shape == (2, 3, 8, 10)
    assert len(steerable_pyramid(noise((64, 64)), scales=2).bands) == 2
    assert steerable_pyramid(noise((7, 500))).bands == []
    assert len(steerable_pyramid(noise((8, 500))).bands) == 1


@pytest.mark.parametrize("size", AWKWARD)
def test_a_constant_is_all_low(size: tuple[int, int]) -> None:
    high, bands, low = steerable_pyramid(torch.full((1, 1, *size), 3.0, dtype=torch.float64))
    assert all(part.abs().max() < 1e-12 for part in [high, *bands])
    gain = size[0] * size[1] / (low.shape[2] * low.shape[3])
    torch.testing.assert_close(low, torch.full_like(low, 3.0 * gain))


@pytest.mark.parametrize("scale", [0, 1, 2])
@pytest.mark.parametrize("band", [0, 1, 2, 3])
def test_a_wave_excites_its_band(scale: int, band: int) -> None:
    n = 128
    cycles = n / 2 ** (scale + 2)  # radius 2^-(scale+1), where this scale takes everything
    turn = band * math.pi / 4  # from +x to +y
    kx, ky = round(cycles * math.cos(turn)), round(cycles * math.sin(turn))
    y, x = torch.meshgrid(*[torch.arange(n, dtype=torch.float64)] * 2, indexing="ij")
    wave = torch.cos(2 * math.pi * (kx * x + ky * y) / n)[None, None]
    high, bands, low = steerable_pyramid(wave, scales=4, orientations=4)
    # Coefficients are 4^s times larger at scale s and 4^s times fewer, so their squares sum to 4^s times the energy.
    energy = torch.stack([b.square().sum((0, 1, 3, 4)) / 4**s for s, b in enumerate(bands)])
    assert energy.argmax() == scale * 4 + band
    share = energy / energy.sum()
    assert share[scale].sum() > 0.97  # all of it but for the rounding of diagonal waves to whole cycles
    # cos^6 over four turns: 1, 1/8, 0, 1/8, of which the right band is four fifths and the crossing one nothing
    assert share[scale, band] == pytest.approx(0.8, abs=0.03)
    assert share[scale, (band + 2) % 4] < 1e-6
    assert high.abs().max() < 0.1
    assert low.abs().max() < 1e-9


def test_band_zero_sees_a_vertical_edge() -> None:
    image = torch.zeros(1, 1, 32, 32)
    image[..., 8:24] = 1
    for band in steerable_pyramid(image).bands:
        energy = band.square().sum((0, 1, 3, 4))
        assert energy.argmax() == 0
        assert energy[2] < 1e-6 * energy[0]


def test_images_and_channels_do_not_mix() -> None:
    image = noise((33, 40))
    together, alone = steerable_pyramid(image), steerable_pyramid(image[1:, 2:])
    for ours, theirs in zip([together.high, *together.bands, together.low], [alone.high, *alone.bands, alone.low]):
        torch.testing.assert_close(ours[1:, 2:], theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("scales", [None, 0, 2])
def test_bands_alone_are_those_of_the_pyramid(scales: int | None) -> None:
    image = noise((33, 40))
    alone, whole = steerable_bands(image, scales=scales), steerable_pyramid(image, scales=scales).bands
    assert len(alone) == len(whole) and all(torch.equal(*pair) for pair in zip(alone, whole))
    with pytest.raises(ValueError, match="steerable_bands: scales must be at most 3 for an image of 33 x 40, got 4"):
        steerable_bands(image, scales=4)


@pytest.mark.parametrize("orientations", [4, 5])
def test_gradients(orientations: int) -> None:
    image = noise((8, 9))[:1, :1].requires_grad_()

    def parts(x: Tensor) -> tuple[Tensor, ...]:
        high, bands, low = steerable_pyramid(x, orientations=orientations)
        assert len(bands) == 1
        return high, *bands, low

    assert torch.autograd.gradcheck(parts, image)

    def back(high: Tensor, band: Tensor, low: Tensor) -> Tensor:
        return steerable_reconstruct(SteerablePyramid(high, [band], low))

    assert torch.autograd.gradcheck(back, [part.detach().requires_grad_() for part in parts(image)])


def test_bad_images() -> None:
    with pytest.raises(ValueError, match=r"steerable_pyramid: image must be \(B, C, H, W\), got \(3, 8, 8\)"):
        steerable_pyramid(torch.zeros(3, 8, 8))
    with pytest.raises(TypeError, match=r"steerable_pyramid: image must be floating point, got torch.uint8"):
        steerable_pyramid(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))
    with pytest.raises(TypeError, match=r"steerable_pyramid: image must be float32 or float64, got torch.float16"):
        steerable_pyramid(torch.zeros(1, 3, 8, 8, dtype=torch.float16))
    with pytest.raises(ValueError, match=r"steerable_pyramid: image must be at least 1 x 1, got 0 x 8"):
        steerable_pyramid(torch.zeros(1, 3, 0, 8))


def test_bad_options() -> None:
    image = torch.zeros(1, 1, 37, 53)
    with pytest.raises(ValueError, match=r"steerable_pyramid: scales must be at most 3 for an image of 37 x 53, got 4"):
        steerable_pyramid(image, scales=4)
    with pytest.raises(ValueError, match=r"steerable_pyramid: scales must be at most 0 for an image of 5 x 5, got 1"):
        steerable_pyramid(image[..., :5, :5], scales=1)
    with pytest.raises(ValueError, match=r"steerable_pyramid: scales must be at least 0, got -1"):
        steerable_pyramid(image, scales=-1)
    with pytest.raises(ValueError, match=r"steerable_pyramid: orientations must be at least 1, got 0"):
        steerable_pyramid(image, orientations=0)


def test_bad_pyramids() -> None:
    high, bands, low = steerable_pyramid(torch.zeros(1, 1, 37, 53))
    with pytest.raises(ValueError, match=r"low must have extents \(10, 14\), got \(5, 7\) \(from high and 2 scales\)"):
        steerable_reconstruct(SteerablePyramid(high, bands[:2], low))
    with pytest.raises(ValueError, match=r"bands\[0\] must have extents \(37, 53\), got \(19, 27\)"):
        steerable_reconstruct(SteerablePyramid(high, bands[1:], low))
    with pytest.raises(ValueError, match=r"bands\[1\] must be \(B, C, O, H1, W1\), got \(1, 1, 3, 19, 27\)"):
        steerable_reconstruct(SteerablePyramid(high, [bands[0], bands[1][:, :, :3], bands[2]], low))
    with pytest.raises(TypeError, match=r"steerable_reconstruct: low must be float32 or float64, got torch.bfloat16"):
        steerable_reconstruct(SteerablePyramid(high, bands, low.bfloat16()))
