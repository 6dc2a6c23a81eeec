"""Crops: an overview of the whole image and a few rectangles in more detail, each an ordinary grid of tokens.

Nothing here mixes scales inside a picture: every part is what a model gets when it is handed a resized image or a
cut-out of one, so it is the safest choice for a model that was never trained on anything else. How much of the budget
the overview takes, how many rectangles there are, and the place, shape and scale of each is what is expected to let
most be made out; rows times columns of all the grids add up to the budget.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from texturevlm.allocate.cells import Cells
from texturevlm.allocate.detail import Detail, summed
from texturevlm.allocate.footprints import Box, allocation_of
from texturevlm.allocate.plain import tiling
from texturevlm.allocate.spans import NATIVE
from texturevlm.check import check_count
from texturevlm.relevance.maps import Relevance
from texturevlm.types import Allocation, Texture

MOST = 4
SHARES = (0.1, 0.2, 0.35, 0.6, 1.0)  # of the budget for the overview: each is tried
SCALES_AN_OCTAVE = 2
LONGEST = 8.0  # times as wide as tall, or as tall as wide
SLACK = 0.85  # of its tokens must a crop use, so that shapes can be chosen; the last one uses them all
PLACES = 64  # along the longer side, where a crop may begin


def crops(
    texture: Texture,
    relevance: Relevance,
    *,
    budget: int = 273,
    patch: int = 32,
    most: int = MOST,
    overview: float = SHARES[0],
    scale: float | None = None,
) -> Allocation:
    """The whole image at one coarse scale, and up to `most` rectangles at finer ones.

    most:     rectangles, at least 1
    overview: the least share of the budget that shows the whole image
    scale:    pixels a sample of all rectangles (1 is native detail); None chooses one for each
    """
    check_count("crops", "budget", budget, 1)
    check_count("crops", "patch", patch, 1)
    check_count("crops", "most", most, 1)
    if not 0 < overview <= 1:
        raise ValueError(f"crops: overview must be above 0 and at most 1, got {overview!r}")
    if scale is not None and not 1 <= scale < math.inf:
        raise ValueError(f"crops: scale must be at least 1 and finite, got {scale!r}")
    images = [
        overview_and_crops(Cells.of(relevance, index), budget, patch, most, overview, scale)
        for index in range(texture.batch)
    ]
    return allocation_of(images, texture.size, budget=budget, patch=patch, device=texture.device)


@dataclass(frozen=True)
class Crop:
    """A grid of tokens: its corner (y, x) in pixels, rows and columns, and the height and width of a token."""

    corner: tuple[float, float]
    shape: tuple[int, int]
    token: tuple[float, float]

    @property
    def tokens(self) -> int:
        return self.shape[0] * self.shape[1]

    @property
    def boxes(self) -> list[Box]:
        (y, x), (rows, columns), (tall, wide) = self.corner, self.shape, self.token
        return [
            (x + column * wide, y + row * tall, x + (column + 1) * wide, y + (row + 1) * tall)
            for row in range(rows)
            for column in range(columns)
        ]


def overview_and_crops(
    cells: Cells, budget: int, patch: int, most: int, overview: float, scale: float | None
) -> list[tuple[Box, float]]:
    """`crops` for one image: the tokens of the overview first, then those of each crop, row by row."""
    detail = Detail(cells)
    best, greatest = [_whole(cells, budget, patch)], -1.0
    if max(best[0].token) <= NATIVE * patch:
        return _scored(cells, best)
    shares = [overview, *(share for share in SHARES if share > overview)]
    for whole in dict.fromkeys(_whole(cells, max(1, round(budget * share)), patch) for share in shares):
        left = budget - whole.tokens
        for count in range(1, min(most, left) + 1) if left else [0]:
            found, worth = _with_crops(cells, detail, whole, count, left, patch, scale)
            if worth > greatest:
                best, greatest = found, worth
    return _scored(cells, best)


def _whole(cells: Cells, tokens: int, patch: int) -> Crop:
    """The whole image in at most that many tokens."""
    rows, columns = tiling(cells.size, tokens, patch)
    return Crop((0.0, 0.0), (rows, columns), (cells.size[0] / rows, cells.size[1] / columns))


def _with_crops(
    cells: Cells, detail: Detail, whole: Crop, count: int, tokens: int, patch: int, scale: float | None
) -> tuple[list[Crop], float]:
    """An overview and that many crops, one after the other where it adds most; and what they let be made out.

    tokens: of all crops together; what they are worth is -1 where no crops that fit in the image use as many
    """
    found, seen = [whole], detail.seen(max(whole.token) / patch)
    sides = _sides(max(whole.token), patch, scale)
    for number in range(count):
        best = _best_crop(cells, detail, seen, sides, tokens // (count - number), number == count - 1, patch)
        if best is None:
            return found, -1.0
        crop, window = best
        found.append(crop)
        tokens -= crop.tokens
        seen = seen.copy()
        seen[window] = np.maximum(seen[window], detail.seen(crop.token[0] / patch)[window])
    return found, float(seen.sum())


def _best_crop(
    cells: Cells, detail: Detail, seen: np.ndarray, sides: Sequence[float], tokens: int, exactly: bool, patch: int
) -> tuple[Crop, tuple[slice, slice]] | None:
    """The crop of that many tokens, or a few less, that adds most to what is seen already, and the cells that it shows.

    None if no grid of them fits in the image.
    """
    best, greatest = None, -1.0
    for side in sides:
        table = summed(np.maximum(detail.seen(side / patch) - seen, 0.0))
        most = [math.ceil(extent / side) for extent in cells.size]
        for shape in _shapes(tokens, exactly):
            if shape[0] > most[0] or shape[1] > most[1]:
                continue
            reach = [max(1, min(round(n * side / cell), size)) for n, cell, size in zip(shape, cells.side, seen.shape)]
            steps = [np.unique(np.linspace(0, n - r, PLACES).round().astype(int)) for n, r in zip(seen.shape, reach)]
            (top, left), (bottom, right) = steps, (step + r for step, r in zip(steps, reach))
            inside = table[bottom][:, right] - table[top][:, right] - table[bottom][:, left] + table[top][:, left]
            row, column = np.unravel_index(inside.argmax(), inside.shape)
            if inside[row, column] > greatest:
                greatest = float(inside[row, column])
                crop = _placed(cells, (int(top[row]), int(left[column])), shape, side)
                best = crop, (slice(top[row], bottom[row]), slice(left[column], right[column]))
    return best


def _placed(cells: Cells, cell: tuple[int, int], shape: tuple[int, int], side: float) -> Crop:
    """A crop that begins at a cell, moved inside the image where it fits, else centred."""
    corner = []
    for first, step, count, extent in zip(cell, cells.side, shape, cells.size):
        room = extent - count * side
        corner.append(min(first * step, room) if room > 0 else room / 2)
    return Crop((corner[0], corner[1]), shape, (side, side))


def _sides(coarsest: float, patch: int, scale: float | None) -> list[float]:
    """Sides of a token, in pixels: from the image's own pixels up to what the overview shows anyway."""
    if scale is not None:
        return [scale * patch]
    steps = int(math.log2(max(coarsest / patch, 1.0)) * SCALES_AN_OCTAVE)
    return [patch * 2 ** (step / SCALES_AN_OCTAVE) for step in range(steps + 1)]


def _shapes(tokens: int, exactly: bool) -> list[tuple[int, int]]:
    """Rows and columns that use nearly all of the tokens, or all of them, and are not too long if that is possible."""
    pairs = [(rows, tokens // rows) for rows in range(1, tokens + 1)]
    fitting = [(r, c) for r, c in pairs if (r * c == tokens if exactly else r * c >= SLACK * tokens)]
    return [(r, c) for r, c in fitting if max(r, c) <= LONGEST * min(r, c)] or fitting


def _scored(cells: Cells, found: Sequence[Crop]) -> list[tuple[Box, float]]:
    """Tokens of each crop with the mean of the mass over it, in the crops' order."""
    rows = []
    table = summed(cells.mass)
    for crop in found:
        for x0, y0, x1, y1 in crop.boxes:
            top, bottom = (_cell(y, cells.side[0], table.shape[0] - 1) for y in (y0, y1))
            left, right = (_cell(x, cells.side[1], table.shape[1] - 1) for x in (x0, x1))
            mass = table[bottom, right] - table[top, right] - table[bottom, left] + table[top, left]
            rows.append(((x0, y0, x1, y1), float(mass)))
    return rows


def _cell(position: float, cell: float, count: int) -> int:
    return min(max(round(position / cell), 0), count)
