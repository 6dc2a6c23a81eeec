"""The real steerable pyramid of Simoncelli and Freeman (1995), made in the frequency domain.

Frequencies are in units of Nyquist: radius r = 1 is one cycle in two pixels along an axis. Each split of the spectrum
into a high and a low part is a raised cosine in log2(r), one octave wide, whose squares sum to one; the high part of
every scale is split by cos^(O-1) of the angle, whose squares sum to one as well.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from texturevlm.check import check_count, check_floating, check_shapes


def steerable_bands(image: Tensor, *, scales: int | None = None, orientations: int = 4) -> list[Tensor]:
    """The bands of an image by scales and orientations, finest first: (B, C, O, H_s, W_s) each.

    image:  (B, C, H, W), float32 or float64 (there is no half-precision FFT to rely on, so half is refused)
    scales: 0 to floor(log2(min(H, W))) - 2, which keeps the coarsest bands at least 8 wide; None takes the most (0 if
            the image is smaller than 8)
    orientations: O, at least 1
    returns bands whose H_0 is H and H_{s+1} is ceil(H_s / 2), the same for W; differentiable

    Band k is tuned to change along the direction that is turned by k * 180 / O degrees from +x towards +y, which is
    down. Band 0 answers to vertical edges and stripes, band O / 2 to horizontal ones. With an even O the filters are
    odd (they answer to edges), with an odd O even (they answer to lines). Scale s is centred on r = 2^-(s+1), where it
    takes everything. The image is taken as periodic: content at one border also shows at the opposite one.
    """
    sizes = check_shapes("steerable_bands", image=(image, "B C H W"))
    check_floating("steerable_bands", image=image)
    if image.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"steerable_bands: image must be float32 or float64, got {image.dtype}")
    check_count("steerable_bands", "orientations", orientations, 1)
    h, w = sizes["H"], sizes["W"]
    if min(h, w) < 1:
        raise ValueError(f"steerable_bands: image must be at least 1 x 1, got {h} x {w}")
    most = max(0, min(h, w).bit_length() - 3)
    scales = most if scales is None else check_count("steerable_bands", "scales", scales, 0)
    if scales > most:
        raise ValueError(f"steerable_bands: scales must be at most {most} for an image of {h} x {w}, got {scales}")
    extents = [(h, w)]
    for _ in range(scales):
        h, w = (h + 1) // 2, (w + 1) // 2
        extents.append((h, w))
    return _bands(image, extents, orientations)


def _bands(image: Tensor, extents: Sequence[tuple[int, int]], orientations: int) -> list[Tensor]:
    """extents: of each scale's bands, and last of what is coarser than all of them"""
    lower, _ = _radial(image, extents[0], extents[0], 0)
    spectrum = torch.fft.rfft2(image) * lower
    bands = []
    for octave, (extent, coarser) in enumerate(pairwise(extents), 1):
        masks = _oriented(image, extents[0], extent, octave, orientations)
        bands.append(torch.fft.irfft2(spectrum.unsqueeze(2) * masks, s=extent))
        lower, _ = _radial(image, extents[0], coarser, octave)
        spectrum = _crop(spectrum, coarser) * lower
    return bands


# Masks lie on the half plane that rfft2 returns: rows 0, 1, ..., -2, -1 and columns 0, 1, ..., floor(W / 2). What
# reaches scale s has passed a low mask that vanishes from r = 2^-s on, which is where cropping cuts and where an even
# extent has its Nyquist row and column; so cropping loses nothing, and the odd angular masks stay real filters.


def _frequencies(like: Tensor, image: tuple[int, int], size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Of a spectrum cropped to `size`, in units of the image's own Nyquist: y (h, 1) and x (1, w // 2 + 1)."""
    y = torch.fft.fftfreq(size[0], d=image[0] / (2 * size[0]), dtype=like.dtype, device=like.device)
    x = torch.fft.rfftfreq(size[1], d=image[1] / (2 * size[1]), dtype=like.dtype, device=like.device)
    return y[:, None], x[None, :]


def _radial(like: Tensor, image: tuple[int, int], size: tuple[int, int], octave: int) -> tuple[Tensor, Tensor]:
    """The low and the high mask (h, w // 2 + 1) of the split that begins at r = 2^-(octave+1), ends at 2^-octave."""
    y, x = _frequencies(like, image, size)
    position = (torch.log2(torch.hypot(y, x)) + (octave + 1)).clamp(0, 1)  # -inf at r = 0 clamps to all low
    return torch.cos(position * (math.pi / 2)), torch.sin(position * (math.pi / 2))


def _oriented(like: Tensor, image: tuple[int, int], size: tuple[int, int], octave: int, orientations: int) -> Tensor:
    """The high mask of a split times each angular mask, complex: (O, h, w // 2 + 1)."""
    y, x = _frequencies(like, image, size)
    _, upper = _radial(like, image, size, octave)
    order = orientations - 1
    # cos(angle - turn) needs no angle: it is the part of the unit frequency vector that lies along the turn.
    turn = torch.arange(orientations, dtype=like.dtype, device=like.device)[:, None, None] * (math.pi / orientations)
    along = (x * torch.cos(turn) + y * torch.sin(turn)) / torch.hypot(y, x).clamp_min(torch.finfo(like.dtype).tiny)
    # The squares of cos^order at O = order + 1 equal turns sum to O * binomial(2 order, order) / 4^order.
    gain = math.sqrt(4**order / (orientations * math.comb(2 * order, order)))
    phase = (1 + 0j, -1j, -1 + 0j, 1j)[order % 4]  # (-i)^order: where cos^order is odd, a real filter's is imaginary
    return upper * along**order * (gain * phase)


def _crop(spectrum: Tensor, size: tuple[int, int]) -> Tensor:
    """Keep the lowest frequencies, as many as a spectrum of `size` has."""
    negative = size[0] // 2
    rows = spectrum.shape[-2]
    kept = spectrum[..., : size[1] // 2 + 1]
    return torch.cat([kept[..., : size[0] - negative, :], kept[..., rows - negative :, :]], -2)
