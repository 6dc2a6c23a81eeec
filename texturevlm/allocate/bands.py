"""What the steerable bands of an image ask of a budget: which orientation, which octave, and which sample shape.

A band holds detail of one octave that changes along one direction. A sample of width sx and height sy loses what
changes faster than that along either axis. So pillars want narrow samples, which may be tall; a horizon wants the
reverse. The octave above the finest band has no orientation and is left out.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.allocate.cells import Array
from texturevlm.allocate.value import stretch_cost
from texturevlm.channels.structure import box_mean, grey_levels
from texturevlm.ops.steerable import steerable_pyramid
from texturevlm.relevance.information import LOST
from texturevlm.relevance.maps import Relevance
from texturevlm.types import Texture

ORIENTATIONS, OCTAVES = 4, 5
RATIOS = tuple(2 ** (step / 2) for step in range(-4, 5))  # a sample's width over its height: 1/4 … 4
SQUARE = RATIOS.index(1.0)
_WINDOW = 9  # cells whose energies are averaged, since a footprint holds many cells
_STEPS_PER_OCTAVE, _COARSEST = 4, 7  # of the scales at which the loss is computed
_ROLL_OFF = 4.0  # how steeply frequencies are lost around the one that a sample just resolves
_ANGLES = 64
_WORTH_STRETCHING = 1.1  # times as large a sample; less does not pay for footprints that fit together less well
BIASES: dict[str | float, float] = {"none": 0.0, "reading": 1.0, "standing": -1.0}


def shapes(texture: Texture, relevance: Relevance, bias: str | float) -> tuple[Array, Array]:
    """(B, h, w) twice: the index in RATIOS of each cell's sample shape, and how much larger its samples may be."""
    gain = stretch_gain(band_energy(texture, relevance.grid))
    worth = gain * shape_worth(bias_of(bias, relevance))[..., None, None].to(gain)
    highest, best = worth.max(1)
    best = torch.where(highest >= _WORTH_STRETCHING, best, SQUARE)
    return best.cpu().numpy(), gain.gather(1, best[:, None])[:, 0].cpu().numpy()


def bias_of(bias: str | float, relevance: Relevance) -> Tensor:
    """(B,): the bias as a number. "auto" is reading, except for photographs of which nothing was asked."""
    known = None if relevance.asked else relevance.photograph
    if bias == "auto" and known is not None:
        return torch.where(known, BIASES["none"], BIASES["reading"])
    value = BIASES.get("reading" if bias == "auto" else bias, bias)
    if isinstance(value, str):
        raise ValueError(
            f"frequency: bias must be a number or one of auto, {', '.join(map(str, BIASES))}, got {bias!r}"
        )
    if not -1 <= value <= 1:
        raise ValueError(f"frequency: bias must be between -1 and 1, got {bias!r}")
    return torch.full((len(relevance.mass),), float(value), device=relevance.mass.device)


def shape_worth(bias: Tensor) -> Tensor:
    """(B, R): the factor by which a bias multiplies the worth of each of the RATIOS; 1 for no bias.

    For reading: the measured cost of stretched text. For upright objects: the same with the axes exchanged.
    """
    ratio = torch.tensor(RATIOS, device=bias.device)
    reading, standing = bias.clamp(min=0)[:, None], (-bias).clamp(min=0)[:, None]
    return stretch_cost(ratio) ** -reading * stretch_cost(1 / ratio) ** -standing


def band_energy(texture: Texture, grid: tuple[int, int]) -> Tensor:
    """The mean square of each band over each cell: (B, O, S, h, w); S is 0 for images less than 8 pixels across.

    Band k changes along the direction at k · 180 / O degrees from +x; octave s has periods about 2^(s+2) pixels.
    """
    image = grey_levels(texture)[0].float()
    height, width = image.shape[2:]
    scales = min(OCTAVES, max(0, min(height, width).bit_length() - 3))
    pyramid = steerable_pyramid(image, scales=scales, orientations=ORIENTATIONS)
    found = []
    for band in pyramid.bands:
        loss = height * width / (band.shape[3] * band.shape[4])  # the pyramid does not divide by this
        found.append(functional.adaptive_avg_pool2d((band[:, 0] / loss).square(), grid))
    return torch.stack(found, 2) if found else image.new_zeros(image.shape[0], ORIENTATIONS, 0, *grid)


def stretch_gain(energy: Tensor) -> Tensor:
    """How much larger samples of each shape may be than square ones for the same loss: (B, R, h, w).

    energy: (B, O, S, h, w); R are the RATIOS
    """
    batch, _, octaves, rows, columns = energy.shape
    if not octaves:
        return energy.new_ones(batch, len(RATIOS), rows, columns)
    around = box_mean(energy.flatten(1, 2), _WINDOW, _WINDOW)
    share = around / around.sum(1, keepdim=True).clamp(min=1e-12)
    kept = _kept(octaves).to(share)  # (O · S, R, scales)
    scales = [_crossing(1 - torch.einsum("bkhw,ks->bshw", share, kept[:, ratio])) for ratio in range(len(RATIOS))]
    scale = torch.stack(scales, 1)
    return scale / scale[:, SQUARE : SQUARE + 1]


def _crossing(lost: Tensor) -> Tensor:
    """(B, scales, h, w), rising → (B, h, w): the scale at which the share LOST of the variance is lost."""
    below = (lost < LOST).sum(1, keepdim=True).clamp(1, lost.shape[1] - 1)
    before, after = lost.gather(1, below - 1), lost.gather(1, below)
    step = below - 1 + ((LOST - before) / (after - before).clamp(min=1e-6)).clamp(0, 1)
    return torch.exp2(step[:, 0] / _STEPS_PER_OCTAVE)


@lru_cache(maxsize=8)
def _kept(octaves: int) -> Tensor:
    """(O · S, R, scales): the share of a band's energy that samples of a ratio and scale keep.

    The energy of a band spreads over directions as cos^(2 O - 2) about its own.
    """
    angle = torch.arange(_ANGLES, dtype=torch.float64) * (math.pi / _ANGLES)
    turn = torch.arange(ORIENTATIONS, dtype=torch.float64)[:, None] * (math.pi / ORIENTATIONS)
    spread = torch.cos(angle - turn) ** (2 * ORIENTATIONS - 2)
    spread = spread / spread.sum(1, keepdim=True)
    scale = torch.exp2(torch.arange(_COARSEST * _STEPS_PER_OCTAVE + 1, dtype=torch.float64) / _STEPS_PER_OCTAVE)
    ratio = torch.tensor(RATIOS, dtype=torch.float64)[:, None]
    radius = torch.exp2(-1.0 - torch.arange(octaves, dtype=torch.float64))  # of Nyquist
    fx, fy = (radius[:, None, None, None] * axis.abs() for axis in (torch.cos(angle), torch.sin(angle)))
    across, down = (scale * ratio.sqrt())[None, ..., None], (scale / ratio.sqrt())[None, ..., None]
    passed = 1 / ((1 + (fx * across) ** _ROLL_OFF) * (1 + (fy * down) ** _ROLL_OFF))  # (S, R, scales, angles)
    return torch.einsum("ka,srca->ksrc", spread, passed).flatten(0, 1)
