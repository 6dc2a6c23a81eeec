"""Frequency: the image's frequency bands decide how footprints are stretched and how many octaves they span.

Where detail changes along one direction only, samples may be long in the other: the same budget shows it at a finer
scale. Each cell gets the sample shape that keeps most of its band energy (`bands.py`), and a scale some whole octaves
coarser where its content is that much coarser. The rest is as in `layers`: the best cells finely, the other ink
coarsely, the choice with the higher expected legibility.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from texturevlm.allocate.allocator import allocator, each_image
from texturevlm.allocate.bands import RATIOS, shapes
from texturevlm.allocate.cells import Array, Cells
from texturevlm.allocate.footprints import Boxes
from texturevlm.allocate.plain import fits_whole, resize
from texturevlm.allocate.search import (
    OVERVIEW,
    SCALES_PER_OCTAVE,
    Layer,
    by_gain,
    cells_of,
    finest_span,
    floor_span,
    furthest,
    scored,
)
from texturevlm.ops.cover import cover, rows_of
from texturevlm.ops.legibility import legibility
from texturevlm.relevance.maps import Relevance
from texturevlm.types import Allocation, Texture

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
    if fits_whole(texture, budget, patch):
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
        order = by_gain(gain * 4.0**octave)  # per token: a cell that is shown more coarsely costs less

        def attempt(count: int) -> _Laid | None:
            return self._attempt(order[:count], side, floor, octave)

        best = furthest(attempt, len(order)) or attempt(0)
        assert best is not None  # the coarse layer alone fits
        return best, float((self.cells.mass * np.where(best.rest, coarse, best.legible)).sum())

    def _attempt(self, chosen: Array, side: float, floor: float, octave: Array) -> _Laid | None:
        """One layer per shape and octave over the chosen cells; None if the rest cannot be covered.

        Small footprints first: what they cover needs no larger one.
        """
        mask = cells_of(chosen, self.cells.ink.shape)
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
