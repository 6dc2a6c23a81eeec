"""The angle of lines of text in each window of an image, from local spectra.

Lines of text are stripes: their energy lies along one direction of the spectrum, that of strokes along the direction
across it. Both repeat every 90 degrees, so an angle is known up to quarter turns: -45 to 45 degrees. Which way is up
cannot be seen in a power spectrum.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.check import check_floating, check_shapes

WINDOW = 128  # pixels: two to ten lines of text, where an A4 page is 768 pixels long
STRIDE = 64
STEP = 0.5  # degrees between angles that are tried
_RADII = 48
_BAND = (0.05, 0.25)  # cycles per pixel: distances of lines between 4 and 20 pixels
_FLAT = 1e-3  # variance below which a window counts as blank
_SPREAD = 2.0  # degrees: the peak is looked for in a profile that is smoothed so far


class LineAngles(NamedTuple):
    """Angles in degrees, -45 to 45, from +x towards +y, which is down.

    angle:    (B, h, w), of each window
    strength: (B, h, w), how much the profile's peak stands out from its mean; 0 where a window is blank
    whole:    (B,), of all windows together
    sure:     (B,), the strength of that
    """

    angle: Tensor
    strength: Tensor
    whole: Tensor
    sure: Tensor


def line_angles(grey: Tensor) -> LineAngles:
    """grey: (B, H, W), 0 to 1, at least 2 × 2; windows of WINDOW pixels, one every STRIDE"""
    check_shapes("line_angles", grey=(grey, "B H W"))
    check_floating("line_angles", grey=grey)
    profile, flat = _profiles(grey.float())
    shape = profile.shape[:3]
    inked = (~flat).float()
    together = (profile * inked[..., None]).sum((1, 2)) / inked.sum((1, 2)).clamp(min=1)[:, None]
    angle, strength = _peak(profile.flatten(0, 2))
    whole, sure = _peak(together)
    return LineAngles(angle.view(shape), strength.view(shape) * inked, whole, sure)


def window_centres(count: int) -> Tensor:
    """(count,): the centres of the windows along an axis, in pixels."""
    return torch.arange(count) * STRIDE + WINDOW / 2


def _profiles(grey: Tensor) -> tuple[Tensor, Tensor]:
    """(B, h, w, A): the energy of each window by angle, its mean 1; and (B, h, w) whether a window is blank."""
    paper = grey.flatten(1).median(1).values[:, None, None]
    height, width = grey.shape[1:]
    after = [max(0, WINDOW - side) or -(side - WINDOW) % STRIDE for side in (width, height)]
    padded = functional.pad(grey - paper, (0, after[0], 0, after[1]))
    windows = padded.unfold(1, WINDOW, STRIDE).unfold(2, WINDOW, STRIDE)
    flat = windows.var((-1, -2)) < _FLAT
    fade = torch.hann_window(WINDOW, periodic=False, device=grey.device)
    faded = (windows - windows.mean((-1, -2), keepdim=True)) * fade[:, None] * fade
    power = torch.fft.fftshift(torch.fft.fft2(faded).abs().square(), dim=(-2, -1))
    table = power.reshape(-1, 1, WINDOW, WINDOW)
    points = _along(grey.device).expand(len(table), -1, -1, -1)
    energy = functional.grid_sample(table, points, align_corners=False)[:, 0].sum(-1)
    # A quarter turn maps lines onto strokes: both vote.
    lines, strokes = energy.chunk(2, 1)
    folded = lines + strokes
    folded = folded / folded.mean(1, keepdim=True).clamp(min=1e-12)
    return folded.view(*flat.shape, -1), flat


@lru_cache(maxsize=8)
def _along(device: torch.device) -> Tensor:
    """(1, 2 A, radii, 2): points of the spectrum across lines of each angle, then across those a quarter turn on."""
    angle = torch.deg2rad(_angles() + 90)
    angle = torch.cat([angle, angle + math.pi / 2])
    radius = torch.linspace(*_BAND, _RADII)
    points = 2 * torch.stack([radius * angle.cos()[:, None], radius * angle.sin()[:, None]], -1)
    return (points + 1 / WINDOW)[None].to(device)  # the frequency 0 lies in the centre of a texel


def _angles() -> Tensor:
    return torch.arange(-45, 45, STEP)


def _peak(profile: Tensor) -> tuple[Tensor, Tensor]:
    """(N, A) → the angle (N,) of the highest point of the smoothed profile, and its height over the mean."""
    reach = round(_SPREAD / STEP)
    wrapped = functional.pad(profile[:, None], (reach, reach), mode="circular")
    weights = 1 - torch.arange(-reach, reach + 1, device=profile.device).abs() / (reach + 1)
    smooth = functional.conv1d(wrapped, (weights / weights.sum())[None, None])[:, 0]
    height, index = smooth.max(1)
    return _angles().to(profile.device)[index], height
