"""Mip levels in square pages, made from whatever levels a source stores, and a count of what was read.

Stored levels may have any downsample, and levels may be missing. A page of a level that is stored as it should be is
handed on; any other is averaged from the next finer level that is stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from texturevlm.ops import level_extents, share_of_pixels
from texturevlm.virtual.sources import PageKey, PageSource, StoredPage

PAGE = 256  # texels along a side, where the source has no square pages of a usual size
USUAL_PAGES = (64, 1024)  # sides of stored pages that are used as they are
WHOLE_PIXELS = 1 << 21  # at most, of the finest level that is kept whole
MOST_PER_WHOLE = 8  # times as many texels may be read to make that level; more: a level is missing
MOST_AT_ONCE = 256  # stored pages that are held decoded


@dataclass
class Counters:
    """What was read of a source: pages, bytes (those of the header too), and pages that could not be read."""

    pages_read: int = 0
    bytes_read: int = 0
    errors: list[str] = field(default_factory=list)


class MipPages:
    """The mip levels of a source, as graphics counts them: level l has max(1, floor(n / 2^l)) texels along a side.

    extents: (height, width) of every level, finest first, down to 1×1
    page:    side of a page in texels
    base:    the first level that is kept whole; finer ones are read by pages
    """

    def __init__(self, source: PageSource) -> None:
        self.source = source
        self.size = source.levels[0].size
        tall, wide = source.levels[0].page
        usual = tall == wide and USUAL_PAGES[0] <= tall <= USUAL_PAGES[1]
        self.page = tall if usual else PAGE
        self.extents = level_extents(*self.size)
        self.base = next(level for level, extent in enumerate(self.extents) if math.prod(extent) <= WHOLE_PIXELS)
        self.counters = Counters(bytes_read=source.opened_with)
        self._check_levels()
        self._stored = [self._finer(extent) for extent in self.extents]

    def grid(self, level: int) -> tuple[int, int]:
        """Rows and columns of pages of a level."""
        height, width = self.extents[level]
        return -(-height // self.page), -(-width // self.page)

    def read(self, keys: Sequence[PageKey]) -> Iterator[tuple[PageKey, Tensor | None]]:
        """Each page as (page, page, 3) uint8, its edge repeated where the level ends; None if it cannot be read."""
        waiting: list[tuple[PageKey, list[PageKey]]] = []
        for key in keys:
            own = self._needed(key)
            if waiting and sum(len(needed) for _, needed in waiting) + len(own) > MOST_AT_ONCE:
                yield from self._made(waiting)
                waiting = []
            waiting.append((key, own))
        yield from self._made(waiting)

    def _made(self, waiting: Sequence[tuple[PageKey, list[PageKey]]]) -> Iterator[tuple[PageKey, Tensor | None]]:
        stored = list(dict.fromkeys(needed for _, own in waiting for needed in own))
        read = dict(zip(stored, self.source.read_pages(stored)))
        self.counters.pages_read += len(read)
        self.counters.bytes_read += sum(page.bytes for page in read.values())
        for key, found in read.items():
            if found.texels is None:
                where = f"level {key.level}, row {key.row}, column {key.column}"
                self.counters.errors.append(f"{self.source.name}: page at {where} cannot be read: {found.error}")
        for key, own in waiting:
            broken = any(read[needed].texels is None for needed in own)
            yield key, None if broken else self._page(key, own, read)

    def _box(self, key: PageKey) -> tuple[int, int, int, int]:
        """First row and column of a page, and one past the last, in texels of its level."""
        height, width = self.extents[key.level]
        top, left = key.row * self.page, key.column * self.page
        return top, left, min(top + self.page, height), min(left + self.page, width)

    def _span(self, key: PageKey) -> tuple[list[float], list[int]]:
        """The same edges in texels of the stored level that it is made from, and rounded outwards."""
        stored, own = self.source.levels[self._stored[key.level]].size, self.extents[key.level]
        edges = [edge * stored[axis % 2] / own[axis % 2] for axis, edge in enumerate(self._box(key))]
        low, high = [math.floor(edge + 1e-6) for edge in edges[:2]], [math.ceil(edge - 1e-6) for edge in edges[2:]]
        return edges, [*low, *high]

    def _needed(self, key: PageKey) -> list[PageKey]:
        """The stored pages that a page is made from."""
        level = self._stored[key.level]
        tall, wide = self.source.levels[level].page
        top, left, bottom, right = self._span(key)[1]
        rows, columns = range(top // tall, -(-bottom // tall)), range(left // wide, -(-right // wide))
        return [PageKey(level, row, column) for row in rows for column in columns]

    def _page(self, key: PageKey, own: Sequence[PageKey], read: dict[PageKey, StoredPage]) -> Tensor:
        tall, wide = self.source.levels[self._stored[key.level]].page
        edges, (top, left, bottom, right) = self._span(key)
        area = np.empty((bottom - top, right - left, 3), np.uint8)
        for stored in own:
            y, x = stored.row * tall - top, stored.column * wide - left
            texels = read[stored].texels
            assert texels is not None  # `_made` has looked
            texels = texels[max(0, -y) :, max(0, -x) :]
            part = area[max(0, y) : max(0, y) + texels.shape[0], max(0, x) : max(0, x) + texels.shape[1]]
            part[...] = texels[: part.shape[0], : part.shape[1]]
        box = self._box(key)
        rows, columns = box[2] - box[0], box[3] - box[1]
        if area.shape[:2] != (rows, columns):
            area = _averaged(area, edges, (top, left), (rows, columns))
        padded = np.pad(area, ((0, self.page - rows), (0, self.page - columns), (0, 0)), mode="edge")
        return torch.from_numpy(padded)

    def _finer(self, extent: tuple[int, int]) -> int:
        """The coarsest stored level that is as fine as a level of this extent, give or take a texel."""
        fine = [
            index
            for index, level in enumerate(self.source.levels)
            if all(side + 1 >= wanted for side, wanted in zip(level.size, extent))
        ]
        return fine[-1]

    def _check_levels(self) -> None:
        name, sizes = self.source.name, [level.size for level in self.source.levels]
        for finer, coarser in pairwise(sizes):
            if not (coarser[0] <= finer[0] and coarser[1] <= finer[1] and coarser != finer):
                raise ValueError(f"Texture.open: levels of {name} must shrink, got {coarser} after {finer}")
        for size in sizes:
            ratio = [whole / side for whole, side in zip(self.size, size)]
            if min(size) > 16 and not 0.9 < ratio[0] / ratio[1] < 1.1:
                raise ValueError(f"Texture.open: levels of {name} must keep the shape of {self.size}, got {size}")
        whole = self.extents[self.base]
        used = sizes[self._finer(whole)]
        if math.prod(used) > MOST_PER_WHOLE * WHOLE_PIXELS:
            wanted = f"must have a level of about {whole[1]}×{whole[0]}; the next finer one has {used[1]}×{used[0]}"
            raise ValueError(f"Texture.open: {name} {wanted}; make a pyramid: texturevlm pyramid {name}")


def _averaged(area: np.ndarray, edges: Sequence[float], corner: tuple[int, int], cells: tuple[int, int]) -> np.ndarray:
    """Means over equal cells between the edges (top, left, bottom, right), in texels; corner: of the area's first."""
    like = torch.empty(0)
    down, across = (
        share_of_pixels(edges[axis], edges[axis + 2], cells[axis], corner[axis], corner[axis] + area.shape[axis], like)
        for axis in (0, 1)
    )
    colours = torch.from_numpy(area).permute(2, 0, 1).float()
    means = (down @ colours @ across.mT).permute(1, 2, 0)
    return (means + 0.5).clamp(0, 255).byte().numpy()
