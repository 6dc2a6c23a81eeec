"""Maps that the channels are measured against: what a good engineer would write in an afternoon."""

from collections.abc import Callable

import torch
from torch import Tensor

from texturevlm.channels.saliency import centre_prior, opponents
from texturevlm.channels.structure import box_mean, enlarge, luma

Map = Callable[[Tensor, list[Tensor]], Tensor]  # image and levels → (1, H, W)


def edge_density(image: Tensor, levels: list[Tensor], *, blur: int) -> Tensor:
    """The baseline: Sobel magnitude of the brightness, averaged over blur × blur pixels."""
    grey = torch.nn.functional.pad(luma(image), (1, 1, 1, 1), mode="replicate")
    across = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]]) / 8
    both = torch.nn.functional.conv2d(grey, torch.stack([across, across.T])[:, None])
    return box_mean(both.square().sum(1, keepdim=True).sqrt() * 2**0.5, blur, blur)[:, 0]


def spectral_residual(image: Tensor, levels: list[Tensor]) -> Tensor:
    """Hou and Zhang 2007: what the spectrum of the 64×64 image has more than its neighbourhood. Not local."""
    grey = torch.nn.functional.interpolate(luma(image), size=(64, 64), mode="area")
    spectrum = torch.fft.fft2(grey)
    amplitude = (spectrum.abs() + 1e-8).log()
    residual = amplitude - box_mean(amplitude, 3, 3)
    energy = torch.fft.ifft2(torch.polar(residual.exp(), spectrum.angle())).abs().square()
    taps = torch.exp(-torch.arange(-7.0, 8.0).square() / (2 * 2.5**2))
    taps = taps / taps.sum()
    around = torch.nn.functional.pad(energy, (7, 7, 7, 7), mode="reflect")
    smooth = torch.nn.functional.conv2d(around, (taps[:, None] * taps)[None, None])
    return enlarge(smooth, image.shape[-2:])[:, 0]


def contrast_over_mips(image: Tensor, levels: list[Tensor]) -> Tensor:
    """Centre-surround over the mips: levels 2, 3, 4 against the ones above them, brightness and opponent colours."""
    total = torch.zeros_like(image[:, :1])
    for centre in (2, 3, 4):
        fine, coarse = (opponents(levels[min(level, len(levels) - 1)]) for level in (centre, centre + 1))
        difference = (fine - enlarge(coarse, fine.shape[-2:])).abs().sum(1, keepdim=True)
        total = total + enlarge(difference, image.shape[-2:])
    return total[:, 0]


def bias(image: Tensor, levels: list[Tensor]) -> Tensor:
    return centre_prior(image)[None]


def centred(method: Map) -> Map:
    return lambda image, levels: method(image, levels) * centre_prior(image)
