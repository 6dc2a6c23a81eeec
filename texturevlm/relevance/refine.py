"""Relevance of an image that is read by pages: coarse levels first, finer ones where most is hidden.

The whole image is scored at its coarse levels. What a cell hides is its mass times the share of its content that is not
legible at the level it was seen at, or may be too fine to be seen there. The window that hides most is read two levels
finer and scored there, and so on, until little is hidden or enough was read. A window's own score says where in it the
answer is, and, as evidence, whether it is there at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.relevance.maps import Balance, Relevance, cell_level, legibility, normalised
from texturevlm.relevance.named import declares
from texturevlm.relevance.prepared import Prepared
from texturevlm.relevance.scorers import Scorer
from texturevlm.scout import Question
from texturevlm.types import COLOURS, Texture
from texturevlm.virtual.mips import MipPages
from texturevlm.virtual.pages import Box, VirtualPages

FEW_PAGES = 32  # that a question may always read, however small the source is
CELLS_ALONG = 640  # of the grid, along the longer side, or more where a cell would be larger than a patch
MOST_CELLS_ALONG = 1280  # even then: the search takes seconds and a hundred megabytes
WINDOW = 512  # texels along a side of a window, about
FINER = 2  # levels between a window and those inside it
REFINE_SHARE = 0.005  # of the pages that one question may read for relevance; whether they were read before or not,
# so that a question gets the same tokens whatever was asked before
UNKNOWN = 0.5  # of the content of any cell may be too fine for the coarse levels to show that it is there
LEAST_HIDDEN = 0.01  # mass: a window that hides less is not worth reading
SURE = 0.95  # a scorer's chance counts as evidence up to this, and down to 1 − this


class Window(NamedTuple):
    """A square of pages of one level; row and column count windows."""

    level: int
    row: int
    column: int


@dataclass
class _Cells:
    """The maps of a Relevance, (h, w) each, on the CPU; lost: see `_lost`."""

    mass: Tensor
    legible_scale: Tensor
    ink: Tensor
    lost: Tensor

    def hidden(self) -> Tensor:
        """(h + 1, w + 1): a summed-area table of the mass that is not legible yet, or may not be."""
        return functional.pad((self.mass * self.lost).double().cumsum(0).cumsum(1), (1, 0, 1, 0))


def refined_relevance(
    prepared: Prepared, pages: VirtualPages, question: str | Question, scorer: Scorer, balance: Balance
) -> Relevance:
    """The relevance of the whole image on cells of at most MOST_CELLS_ALONG, refined where it pays.

    prepared: of the texture of the whole image, whose coarse levels are scored first
    """
    whole = prepared.whole.find(question, scorer=scorer, balance=balance)
    geometry = _Geometry(pages.mips, prepared.patch)
    cells = geometry.spread(whole)
    first = max(0, pages.base - FINER)
    candidates = list(geometry.windows(first)) if pages.base else []
    allowed = max(FEW_PAGES, int(REFINE_SHARE * pages.pages))
    while candidates and allowed > 0:
        table = cells.hidden()
        top, left, bottom, right = torch.tensor([geometry.in_cells(window) for window in candidates]).T
        hidden = (table[bottom, right] - table[top, right] - table[bottom, left] + table[top, left]).tolist()
        best = max(range(len(candidates)), key=hidden.__getitem__)
        if hidden[best] < LEAST_HIDDEN:
            break
        window = candidates.pop(best)
        candidates += geometry.inside(window)
        wanted = pages.pages_of(window.level, geometry.box(window))
        allowed -= len(wanted)
        pages.fetch(dict.fromkeys(wanted, hidden[best]))
        _look_closer(cells, geometry, window, pages, prepared, question, scorer, balance)
    mass = normalised(cells.mass[None]).to(whole.mass)
    scale, ink = cells.legible_scale[None].to(whole.legible_scale), cells.ink[None].to(whole.ink.device)
    return Relevance(mass, scale, ink, pages.size, whole.scorer, whole.photograph)


def _look_closer(
    cells: _Cells,
    geometry: _Geometry,
    window: Window,
    pages: VirtualPages,
    prepared: Prepared,
    question: str | Question,
    scorer: Scorer,
    balance: Balance,
) -> None:
    """Score a window by itself and write what is found into its cells."""
    own = prepared.part(window, lambda: Texture((pages.crop(window.level, geometry.box(window)),), COLOURS).mipmapped())
    # A scorer that grades, or brings a map or the words of the whole image, says nothing new about a part of it.
    whole = declares(scorer, "grades") or scorer.name == "attention" or bool(getattr(scorer, "pages", ()))
    query, maps = (None, own.maps) if whole else own.query(question, scorer)
    found = balance.weigh(query, maps, own.texture.size)
    top, left, bottom, right = geometry.in_cells(window)
    part, extent = (slice(top, bottom), slice(left, right)), (bottom - top, right - left)
    if query is not None:
        chance = float(query.sum()) if declares(scorer, "calibrated") else 0.5
        chance = min(max(chance, 1 - SURE), SURE)
        share = normalised(functional.interpolate(found.mass[:, None].float().cpu(), extent, mode="area")[:, 0])[0]
        cells.mass[part] = share * cells.mass[part].sum() * chance / (1 - chance)
        cells.mass /= cells.mass.sum().clamp(min=1e-30)
    texel = geometry.texel(window.level)
    scale, ink = (
        functional.interpolate(one[:, None].float().cpu(), extent, mode="area")[0, 0]
        for one in (maps.legible_scale, maps.ink)
    )
    cells.legible_scale[part], cells.ink[part] = scale * texel, ink > 0
    cells.lost[part] = _lost(cells.legible_scale[part], cells.ink[part], texel, window.level / pages.base)


def _lost(legible_scale: Tensor, ink: Tensor, texel: float, coarse: float) -> Tensor:
    """The share of the content of cells that is not legible at texels of this width, or may be too fine to be seen.

    coarse: how coarse the level is, from 1 at the level that is whole to 0 at the finest
    """
    return (1 - legibility(legible_scale, texel)).clamp(min=UNKNOWN * coarse) * ink


class _Geometry:
    """Windows and cells of an image."""

    def __init__(self, mips: MipPages, patch: int) -> None:
        self.extents, self.height = mips.extents, mips.size[0]
        least, few = (
            next(level for level, extent in enumerate(self.extents) if max(extent) <= most)
            for most in (MOST_CELLS_ALONG, CELLS_ALONG)
        )
        of_a_patch = max(0, patch.bit_length() - 1)
        self.grid = self.extents[max(least, min(few, of_a_patch), cell_level(mips.size, patch))]
        self.side = mips.page * max(1, round(WINDOW / mips.page))

    def texel(self, level: int) -> float:
        """Width of a texel in pixels of the image."""
        return self.height / self.extents[level][0]

    def windows(self, level: int, rows: range | None = None, columns: range | None = None) -> list[Window]:
        """Those of a level, or of some rows and columns of it, as far as it reaches."""
        down, across = (math.ceil(extent / self.side) for extent in self.extents[level])
        some = rows or range(down), columns or range(across)
        return [Window(level, row, column) for row in some[0] if row < down for column in some[1] if column < across]

    def inside(self, window: Window) -> list[Window]:
        """The windows FINER levels below that lie in one."""
        level = max(0, window.level - FINER)
        if level == window.level:
            return []
        times = 2 ** (window.level - level)
        rows, columns = (range(place * times, (place + 1) * times) for place in window[1:])
        return self.windows(level, rows, columns)

    def box(self, window: Window) -> Box:
        """In texels of its level."""
        height, width = self.extents[window.level]
        top, left = window.row * self.side, window.column * self.side
        return top, left, min(top + self.side, height), min(left + self.side, width)

    def in_cells(self, window: Window) -> Box:
        """The cells that a window covers, at least one."""
        (height, width), (rows, columns) = self.extents[window.level], self.grid
        top, left, bottom, right = self.box(window)
        first, start = min(round(top * rows / height), rows - 1), min(round(left * columns / width), columns - 1)
        last, end = round(bottom * rows / height), round(right * columns / width)
        return first, start, max(first + 1, last), max(start + 1, end)

    def spread(self, whole: Relevance) -> _Cells:
        """The relevance of the coarse levels, on the cells of the image."""
        maps = (whole.mass, whole.legible_scale, whole.ink)
        mass, scale, ink = (
            functional.interpolate(one[:1, None].float().cpu(), self.grid, mode="nearest")[0, 0] for one in maps
        )
        texel = self.height / whole.size[0]
        return _Cells(normalised(mass[None])[0], scale * texel, ink > 0, _lost(scale * texel, ink > 0, texel, 1.0))
