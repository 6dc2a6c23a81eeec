"""Frequency: the image's frequency bands decide how footprints are stretched and how many octaves they span.

A steerable band holds detail of one octave that changes along one direction. A sample loses what changes faster than
its width or its height, so pillars want narrow samples, which may be tall; a horizon wants the reverse. Each cell gets
the sample shape that keeps most of its band energy, and a scale some whole octaves coarser where its content is that
much coarser. The rest is as in `layers`: the best cells finely, the other ink coarsely.
"""

import math
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.allocate.allocator import allocator, each_image
from texturevlm.allocate.cells import Array, Cells
from texturevlm.allocate.footprints import Boxes
from texturevlm.allocate.plain import fits_whole, resize
from texturevlm.allocate.search import OVERVIEW, SCALES_PER_OCTAVE, Layer, finest_span, floor_span, scored
from texturevlm.allocate.value import stretch_cost
from texturevlm.channels.structure import box_mean, grey_levels
from texturevlm.ops.cover import cover, rows_of
from texturevlm.relevance.information import LOST
from texturevlm.relevance.maps import Relevance, legibility
from texturevlm.types import Allocation, Texture
from texturevlm_lab.allocators.search import most_of_best
from texturevlm_lab.allocators.steerable import steerable_bands

ORIENTATIONS, OCTAVES = 4, 5
RATIOS = tuple(2 ** (step / 2) for step in range(-4, 5))  # a sample's width over its height: 1/4 … 4
SQUARE = RATIOS.index(1.0)
_WINDOW = 9  # cells whose energies are averaged, since a footprint holds many cells
_STEPS_PER_OCTAVE, _COARSEST = 4, 7  # of the scales at which the loss is computed
_ROLL_OFF = 4.0  # how steeply frequencies are lost around the one that a sample just resolves
_ANGLES = 64
_WORTH_STRETCHING = 1.1  # times as large a sample; less does not pay for footprints that fit together less well
BIASES: dict[str | float, float] = {"none": 0.0, "reading": 1.0, "standing": -1.0}
_MOST_OCTAVES = 2  # by which a cell may be sampled coarser than the finest content
_FINE = 0.3  # this share of the mass is at least as fine as the content that sets the finest scale


@allocator()
def frequency(
    texture: Texture,
    relevance: Relevance,
    *,
    budget: int,
    patch: int,
    bias: str | float = "auto",
    overview: float = OVERVIEW,
) -> Allocation:
    """Footprints stretched as the steerable bands ask, from 4 times as tall as wide to 4 times as wide as tall.

    bias:     which orientation matters: "reading" keeps detail across, "standing" detail down, "none" follows the bands
              alone; or a number from -1 (standing) to 1 (reading); "auto" is "none" for photographs without a question
              and "reading" otherwise
    overview: as in `layers`
    """
    if fits_whole(texture.size, budget, patch):
        return resize(texture, relevance, budget=budget, patch=patch)

    def choose(cells: Cells, shape: Array, gain: Array) -> Boxes:
        return _Search(cells, shape, gain, budget, overview).boxes()

    return each_image(texture, relevance, budget, patch, choose, *shapes(texture, relevance, bias))


@dataclass(frozen=True)
class _Laid:
    """Layers, finest first; rest: (h, w) bool, ink in no layer; legible: (h, w), legibility, 0 outside the layers."""

    layers: list[Layer]
    rest: Array
    legible: Array

    @property
    def count(self) -> int:
        return sum(len(layer.squares) for layer in self.layers)

    def add(self, layer: Layer, cells: Cells, legible: Array) -> None:
        self.layers.append(layer)
        covered = layer.covered(cells)
        self.rest[covered] = False
        np.maximum(self.legible, legible, out=self.legible, where=covered)


class _Search:
    """The search for one image: how fine the fine layers are, how many cells they cover, and whether octaves pay."""

    def __init__(self, cells: Cells, shape: Array, gain: Array, budget: int, overview: float) -> None:
        self.cells, self.shape, self.budget, self.patch = cells, shape, budget, cells.patch
        self.legible_scale = cells.legible_scale * gain
        self.floor = cells.width(floor_span(cells, budget, overview))
        order = np.argsort(self.legible_scale, axis=None)
        mass = np.cumsum(cells.inked_mass.flat[order])
        fine = self.legible_scale.flat[order[min(int(np.searchsorted(mass, _FINE * mass[-1])), len(order) - 1)]]
        self.octave = np.clip(np.floor(np.log2(self.legible_scale / fine)), 0, _MOST_OCTAVES).astype(int)

    def boxes(self) -> Boxes:
        """The footprints of most expected value, with their mass, best first."""
        coarsest = self.cells.width(finest_span(self.cells, self.cells.ink, self.budget))
        steps = math.ceil(SCALES_PER_OCTAVE * math.log2(coarsest / self.patch))
        sides = [max(float(self.patch), coarsest * 2 ** (-step / SCALES_PER_OCTAVE)) for step in range(steps + 1)]
        tried = [self._reach(side, np.zeros_like(self.octave)) for side in sides]
        best = max(range(len(sides)), key=lambda step: tried[step][1])
        if self.octave.any():  # near the best scale: does it pay to show coarse content more coarsely?
            tried += [self._reach(side, self.octave) for side in sides[max(0, best - 1) : best + 3]]
        laid = max(tried, key=lambda pair: pair[1])[0]
        layers = laid.layers
        if laid.rest.any():  # in squares, as fine as the unused tokens allow
            left = max(1, self.budget - laid.count)
            side = min(self.cells.width(finest_span(self.cells, laid.rest, left)), self.cells.coarsest)
            layers = [*layers, self._layer(side, 1.0, laid.rest, left)]
        return scored(self.cells, layers, self.budget)

    def _reach(self, side: float, octave: Array) -> tuple[_Laid, float]:
        """As many of the best cells as the budget covers at `side`, the rest coarsely; and the expected value."""
        floor = max(self.floor, side)
        fine = legibility(self.legible_scale, side * 2.0**octave / self.patch)
        coarse = legibility(self.cells.legible_scale, floor / self.patch)
        gain = np.where(self.cells.ink, self.cells.mass * (fine - coarse), 0.0)
        attempt = partial(self._attempt, side=side, floor=floor, octave=octave)
        # Gain per token: a cell that is shown more coarsely costs less.
        best = most_of_best(gain * 4.0**octave, attempt) or attempt(np.zeros_like(self.cells.ink))
        assert best is not None  # the coarse layer alone fits
        return best, float((self.cells.mass * np.where(best.rest, coarse, best.legible)).sum())

    def _attempt(self, mask: Array, side: float, floor: float, octave: Array) -> _Laid | None:
        """One layer per shape and octave over a mask, the small ones first; None if the rest cannot be covered."""
        laid = _Laid([], self.cells.ink.copy(), np.zeros(mask.shape))
        for step, kind in sorted({*zip(octave[mask].tolist(), self.shape[mask].tolist())}):
            stretched = np.where(self.shape == kind, self.legible_scale, self.cells.legible_scale)
            own = mask & laid.rest & (octave == step) & (self.shape == kind)
            layer = self._layer(side * 2.0**step, RATIOS[kind], own, self.budget - laid.count)
            laid.add(layer, self.cells, legibility(stretched, side * 2.0**step / self.patch))
            if laid.count > self.budget:
                return None
        left = self.budget - laid.count
        return laid if len(self._layer(floor, 1.0, laid.rest, left).squares) <= left else None

    def _layer(self, side: float, ratio: float, mask: Array, most: int) -> Layer:
        """Footprints of area side² and a ratio of width to height over a mask; more than `most` are too many."""
        tall, wide = (max(float(self.patch), one) for one in (side / ratio**0.5, side * ratio**0.5))
        rows, columns = (max(1, math.floor(one / cell + 1e-6)) for one, cell in zip((tall, wide), self.cells.cell))
        return Layer(cover(rows_of(mask), (rows, columns), most), (rows, columns), (tall, wide))


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
    """(B, RATIOS): a bias multiplies a shape's worth by the cost of stretched text; for standing, axes exchanged."""
    ratio = torch.tensor(RATIOS, device=bias.device)
    reading, standing = bias.clamp(min=0)[:, None], (-bias).clamp(min=0)[:, None]
    return stretch_cost(ratio) ** -reading * stretch_cost(1 / ratio) ** -standing


def band_energy(texture: Texture, grid: tuple[int, int]) -> Tensor:
    """(B, O, S, h, w): the mean square of each band per cell; S is 0 for images less than 8 pixels across.

    Band k changes along the direction at k · 180 / O degrees from +x; octave s has periods about 2^(s+2) pixels.
    """
    image = grey_levels(texture)[0].float()
    height, width = image.shape[2:]
    scales = min(OCTAVES, max(0, min(height, width).bit_length() - 3))
    found = []
    for band in steerable_bands(image, scales=scales, orientations=ORIENTATIONS):
        loss = height * width / (band.shape[3] * band.shape[4])  # the pyramid does not divide by this
        found.append(functional.adaptive_avg_pool2d((band[:, 0] / loss).square(), grid))
    return torch.stack(found, 2) if found else image.new_zeros(image.shape[0], ORIENTATIONS, 0, *grid)


def stretch_gain(energy: Tensor) -> Tensor:
    """(B, O, S, h, w) → (B, RATIOS, h, w): how much larger samples of a shape may be than square ones of equal loss."""
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
