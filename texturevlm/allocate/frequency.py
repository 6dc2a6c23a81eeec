"""Frequency: the image's own bands decide which way footprints are stretched and how many octaves they span.

Where detail changes along one direction only, samples may be long in the other: the same budget shows it at a finer
scale. Each cell gets the shape of sample that keeps most of its bands, and a whole number of octaves more where what
stands there is so much coarser; the rest is as in `layers`: the best cells finely, the others coarsely, whatever is
expected to show most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from texturevlm.allocate.bands import RATIOS, SQUARE, band_energy, bias_of, stretch_gain, tilt
from texturevlm.allocate.cells import Cells
from texturevlm.allocate.footprints import Box, allocation_of, use_all
from texturevlm.allocate.layers import BISECTIONS, OVERVIEW, SCALES_AN_OCTAVE, finest_side
from texturevlm.allocate.plain import resize
from texturevlm.allocate.spans import NATIVE, blank_parts
from texturevlm.check import check_count
from texturevlm.ops.cover import cover, rows_of
from texturevlm.ops.legibility import legibility
from texturevlm.relevance.maps import Relevance
from texturevlm.types import Allocation, Texture

WORTH_STRETCHING = 1.1  # times as large a sample: less does not pay for footprints that fit together less well
MOST_OCTAVES = 2  # by which a cell may be sampled coarser than the finest text
FINE = 0.3  # of the mass is as fine as what sets the finest scale, or finer


def frequency(
    texture: Texture,
    relevance: Relevance,
    *,
    budget: int = 273,
    patch: int = 32,
    bias: str | float = "auto",
    local: bool = True,
    overview: float = OVERVIEW,
) -> Allocation:
    """Footprints stretched as the steerable bands ask, between 4 times as tall as wide and the reverse.

    bias:     what the question says of orientation: "reading" keeps detail across, "standing" detail down, "none" goes
              by the bands alone; or a number between, 1 for reading, -1 for standing; "auto" is reading, but for
              photographs of which nothing was asked
    local:    each cell by its own bands; otherwise one shape for the whole image, by its mean band
    overview: as in `layers`
    """
    check_count("frequency", "budget", budget, 1)
    check_count("frequency", "patch", patch, 1)
    if not 0 < overview <= 1:
        raise ValueError(f"frequency: overview must be above 0 and at most 1, got {overview!r}")
    if budget * patch * patch >= texture.size[0] * texture.size[1]:  # all of it at its own resolution
        return resize(texture, relevance, budget=budget, patch=patch)
    shape, gain = shapes(texture, relevance, bias=bias, local=local)
    images = []
    for image in range(texture.batch):
        cells = Cells.of(relevance, image)
        found = Stretched(cells, shape[image], gain[image], budget, patch, overview).boxes()
        images.append(use_all(found, budget=budget, patch=patch))
    return allocation_of(images, texture.size, budget=budget, patch=patch, device=texture.device)


def shapes(
    texture: Texture, relevance: Relevance, *, bias: str | float = "auto", local: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """(B, h, w) twice: which of the RATIOS each cell is sampled at, and how much larger samples may be for it."""
    energy = band_energy(texture, relevance.grid)
    if not local:
        mean = (energy * relevance.mass[:, None, None].to(energy)).sum((3, 4), keepdim=True)
        energy = mean.expand_as(energy)
    gain = stretch_gain(energy)
    tilted = gain * tilt(bias_of(bias, relevance))[..., None, None].to(gain)
    best = tilted.argmax(1)
    top = tilted.gather(1, best[:, None])[:, 0]
    best = torch.where(top >= WORTH_STRETCHING, best, SQUARE)
    return best.cpu().numpy(), gain.gather(1, best[:, None])[:, 0].cpu().numpy()


@dataclass(frozen=True)
class Shape:
    """The height and width of footprints in pixels."""

    tall: float
    wide: float

    def span(self, cells: Cells) -> tuple[int, int]:
        """Whole cells that it covers, wherever it starts on a cell's edge."""
        return (
            max(1, math.floor(self.tall / cells.side[0] + 1e-6)),
            max(1, math.floor(self.wide / cells.side[1] + 1e-6)),
        )

    def box(self, cells: Cells, row: int, column: int) -> Box:
        """Centred on its cells, moved inside the image where it fits."""
        low = []
        for first, count, cell, side, extent in zip(
            (row, column), self.span(cells), cells.side, (self.tall, self.wide), cells.size
        ):
            start = first * cell - (side - count * cell) / 2
            low.append(min(max(start, 0.0), extent - side) if side < extent else (extent - side) / 2)
        return low[1], low[0], low[1] + self.wide, low[0] + self.tall


@dataclass(frozen=True)
class Laid:
    """Shapes with the first cells of their rectangles, finest first; what those leave, and how fine cells are seen.

    rest: (h, w), not blank and in no rectangle; seen: (h, w), how much can be made out, 0 in the rest
    """

    shapes: list[tuple[Shape, list[tuple[int, int]]]]
    rest: np.ndarray
    seen: np.ndarray

    @property
    def count(self) -> int:
        return sum(len(corners) for _, corners in self.shapes)

    def add(self, cells: Cells, shape: Shape, mask: np.ndarray, legibility: np.ndarray, most: int) -> bool:
        """Cover a mask too; whether all of it together is at most so many."""
        tall, wide = shape.span(cells)
        corners = cover(rows_of(mask), (tall, wide), most - self.count)
        self.shapes.append((shape, corners))
        for row, column in corners:
            part = np.s_[row : row + tall, column : column + wide]
            self.rest[part] = False
            np.maximum(self.seen[part], legibility[part], out=self.seen[part])
        return self.count <= most


class Stretched:
    """The search for one image: how fine the fine layer is, how far it reaches, and whether octaves pay."""

    def __init__(
        self, cells: Cells, shape: np.ndarray, gain: np.ndarray, budget: int, patch: int, overview: float
    ) -> None:
        self.cells, self.shape, self.budget, self.patch = cells, shape, budget, patch
        self.legible_scale = cells.legible_scale * gain
        self.floor = finest_side(cells, cells.ink, max(1, int(budget * overview)), patch)
        order = np.argsort(self.legible_scale, axis=None)
        mass = np.cumsum(np.where(cells.ink, cells.mass, 0).flat[order])
        fine = self.legible_scale.flat[order[min(int(np.searchsorted(mass, FINE * mass[-1])), len(order) - 1)]]
        self.octave = np.clip(np.floor(np.log2(self.legible_scale / fine)), 0, MOST_OCTAVES).astype(int)

    def boxes(self) -> list[tuple[Box, float]]:
        """The footprints that are expected to show most, with their mass, best first."""
        coarsest = finest_side(self.cells, self.cells.ink, self.budget, self.patch)
        steps = math.ceil(SCALES_AN_OCTAVE * math.log2(coarsest / self.patch))
        sides = [max(float(self.patch), coarsest * 2 ** (-step / SCALES_AN_OCTAVE)) for step in range(steps + 1)]
        flat = np.zeros_like(self.octave)
        tried = [self._reach(side, flat) for side in sides]
        best = max(range(len(sides)), key=lambda step: tried[step][1])
        if self.octave.any():  # near the best scale, is it worth sparing tokens on what is coarse?
            tried += [self._reach(side, self.octave) for side in sides[max(0, best - 1) : best + 3]]
        laid = max(tried, key=lambda pair: pair[1])[0]
        return self._scored(self._with_floor(laid))

    def _reach(self, side: float, octave: np.ndarray) -> tuple[Laid, float]:
        """As many of the best cells as the budget covers at `side`, the rest coarsely; and what it is worth."""
        floor = max(self.floor, side)
        scale = side * 2.0**octave / self.patch
        fine = legibility(self.legible_scale, scale)
        coarse = self.cells.legibility(floor / self.patch)
        gain = np.where(self.cells.ink, self.cells.mass * (fine - coarse), 0.0)
        a_token = gain * 4.0**octave  # a coarser cell costs less
        order = np.argsort(-a_token, axis=None, kind="stable")[: np.count_nonzero(gain > 0)]
        best, low, high = self._attempt(order, side, floor, octave), 0, len(order)
        if best is None:
            best = self._attempt(order[:0], side, floor, octave)
            for _ in range(BISECTIONS):
                middle = (low + high) // 2
                tried = self._attempt(order[:middle], side, floor, octave)
                low, high, best = (low, middle, best) if tried is None else (middle, high, tried)
        assert best is not None  # the coarse layer alone fits
        return best, float((self.cells.mass * np.where(best.rest, coarse, best.seen)).sum())

    def _attempt(self, chosen: np.ndarray, side: float, floor: float, octave: np.ndarray) -> Laid | None:
        """Rectangles over chosen cells, each class of shape and octave its own; None if the rest could not be covered.

        Small ones first: what they cover needs no larger one.
        """
        mask = np.zeros(self.cells.ink.shape, dtype=bool)
        mask.flat[chosen] = True
        laid = Laid([], self.cells.ink.copy(), np.zeros(mask.shape))
        for step, kind in sorted({*zip(octave[mask].tolist(), self.shape[mask].tolist())}):
            scale = side * 2.0**step / self.patch
            made_out = legibility(np.where(self.shape == kind, self.legible_scale, self.cells.legible_scale), scale)
            own = mask & laid.rest & (octave == step) & (self.shape == kind)
            if not laid.add(self.cells, self._shape(side * 2.0**step, RATIOS[kind]), own, made_out, self.budget):
                return None
        left = self.budget - laid.count
        tall, wide = self._shape(floor, 1.0).span(self.cells)
        return laid if len(cover(rows_of(laid.rest), (tall, wide), left)) <= left else None

    def _shape(self, side: float, ratio: float) -> Shape:
        return Shape(max(float(self.patch), side / ratio**0.5), max(float(self.patch), side * ratio**0.5))

    def _with_floor(self, laid: Laid) -> Laid:
        """The rest in squares, as fine as the tokens that are left allow."""
        if laid.rest.any():
            left = max(1, self.budget - laid.count)
            side = min(finest_side(self.cells, laid.rest, left, self.patch), self.cells.coarsest)
            laid.add(self.cells, self._shape(side, 1.0), laid.rest.copy(), laid.seen, self.budget)
        return laid

    def _scored(self, laid: Laid) -> list[tuple[Box, float]]:
        rows = []
        for shape, corners in laid.shapes:
            tall, wide = shape.span(self.cells)
            for row, column in corners:
                mass = self.cells.mass[row : row + tall, column : column + wide].sum()
                rows.append((shape.box(self.cells, row, column), float(mass)))
        if all(max(shape.tall, shape.wide) <= NATIVE * self.patch for shape, corners in laid.shapes if corners):
            rows += blank_parts(self.cells, [box for box, _ in rows], self.budget - len(rows), self.patch)
        return sorted(rows, key=lambda pair: -pair[1])
