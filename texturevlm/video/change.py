"""What changed: the tiles of a frame that differ from the held one, and which boxes and tokens read them.

The measure is the difference of two block means, since sensor noise averages out in a block; what remains is movement,
light, or a fade once it has added up. A moment of a clip and a token of a conversation have changed where a mean over
8×8 pixels differs from what was shown by more than 9 of 255 steps.

A stream looks closer, with two values per tile. `coarse` is the largest difference between means of 4×4 pixels. `fine`
is the root mean square of the remaining detail: it finds texture that moves under equal means.

The noise of both is estimated from the stream: the sensor's from the quietest tiles of earlier frames; compression
flicker, which occurs at texture, from each tile's own frame-to-frame differences. Fixed bounds apply whatever the
estimate says. Before anything is known of the sensor, the upper bound is the threshold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.ops import MAX_ANISOTROPY
from texturevlm.types import Allocation

MOST_AREA = 0.7  # of the frame: above this share one pass over the whole frame is cheaper than several parts
PART_OVERHEAD = 30_000  # pixels that a CPU processes in the time that it takes to start one more part
READ_MARGIN = 2  # texels of the coarser level that a trilinear sample may read outside its footprint
MEAN_BLOCK = 8  # pixels: side of the blocks whose means tell whether a moment or a token shows something else
CHANGED = 9 / 255  # a larger difference of two such means is a change
BLOCK = 4  # pixels: side of the blocks that `coarse` averages
STRIP = 2  # rows of tiles that a CPU compares at a time
QUIET = 0.05  # the share of tiles that is still, or too flat to show movement, in nearly any frame
NOISE_TO_THRESHOLD = 2.2  # noise to threshold: the largest of many blocks varies from frame to frame
COARSE_BOUNDS = (5 / 255, 12 / 255)  # bounds of the threshold for means of 4×4 pixels
FINE_BOUNDS = (4 / 255, 12 / 255)  # and for the remaining detail, a root mean square
SENSOR_RATE = 0.1  # how fast the estimate of the sensor's noise follows, once it is known
RISE, FALL = 0.1, 0.3  # and that of a tile: slowly up, so that a passing object is not taken for noise
CUT_SHARE = 0.5  # a cut: more than this share of tiles changed,
CUT_LIKENESS = 0.5  # and the correlation of the two thumbnails is below this
MOST_DIFFERENT = 1.1  # two images cannot differ by a larger mean square


class Rectangle(NamedTuple):
    """Texels of an image, right and bottom exclusive."""

    left: int
    top: int
    right: int
    bottom: int

    @property
    def window(self) -> Any:
        """The index of its texels in (…, H, W)."""
        return ..., slice(self.top, self.bottom), slice(self.left, self.right)

    def expanded(self, by: int, size: tuple[int, int]) -> Rectangle:
        """With a border, clipped to the image."""
        left, top, right, bottom = self
        return Rectangle(max(0, left - by), max(0, top - by), min(size[1], right + by), min(size[0], bottom + by))

    def scaled(self, across: float, down: float) -> Rectangle:
        """In texels of another level, which are that many times as large."""
        left, top, right, bottom = self
        return Rectangle(int(left / across), int(top / down), int(right / across), int(bottom / down))

    def within(self, outer: Rectangle) -> Rectangle:
        """As seen from the corner of another one."""
        x, y = outer.left, outer.top
        return Rectangle(self.left - x, self.top - y, self.right - x, self.bottom - y)


class NotAnImage(ValueError):
    """A frame holds NaN, infinite values, or values far outside of 0 to 1."""


class Noise(NamedTuple):
    """The noise estimate of a stream."""

    sensor: Tensor  # (2,), `coarse` and `fine` of the quietest tiles
    tiles: Tensor  # (2, rows, columns), those of each tile
    last: Tensor  # (1, 3, h, w), differences between the last frame's blocks and the held ones
    frames: int  # that the estimate is made from

    @property
    def rate(self) -> float:
        """How fast the sensor's estimate follows the next frame."""
        return max(SENSOR_RATE, 1 / (self.frames + 1))


@dataclass(frozen=True, eq=False)
class Changes:
    """The result of comparing a frame with the held one."""

    mask: Tensor  # (rows, columns) bool, on the frame's device: the tiles that changed
    marked: np.ndarray  # the same on the host
    likeness: float  # correlation of the two thumbnails, −1 to 1
    cut: bool  # whether the frame shows another scene
    noise: Noise  # the estimate to keep if the frame is used
    threshold: Tensor  # (2, rows, columns), for `coarse` and `fine`

    @cached_property
    def count(self) -> int:
        """The number of tiles that changed."""
        return int(np.count_nonzero(self.marked))

    @property
    def share(self) -> float:
        """The share of tiles that changed."""
        return self.count / self.marked.size


def initial_noise(size: tuple[int, int], tile: int, device: torch.device) -> Noise:
    """The estimate before the first frame: as much noise as the bounds allow."""
    blocks = torch.zeros(1, 3, *tile_grid(size, BLOCK), device=device)
    sensor = torch.tensor([COARSE_BOUNDS[1], FINE_BOUNDS[1]], device=device) / NOISE_TO_THRESHOLD
    return Noise(sensor, torch.zeros(2, *tile_grid(size, tile), device=device), blocks, 0)


def find_changes(frame: Tensor, held: Tensor, noise: Noise, *, tile: int = 32) -> Changes:
    """Compare a frame with the held one, (1, 3, H, W) each, 0 to 1. The host reads one small tensor, once.

    tile:  side of a tile in pixels, a multiple of 4
    raises NotAnImage for a frame with NaN, infinite values, or values far outside of 0 to 1
    """
    block, square, before = _compare(frame, held, tile)
    side = tile // BLOCK
    coarse = largest_per_tile(block, side)
    fine = (square - block_means(block.square(), side).mean(1)).clamp(min=0).sqrt()
    learned = _learn(noise, torch.cat([largest_per_tile(block - noise.last, side), fine]))
    level = NOISE_TO_THRESHOLD * torch.maximum(noise.sensor[:, None, None], learned.tiles)
    threshold = torch.stack([kind.clamp(*bounds) for kind, bounds in zip(level, (COARSE_BOUNDS, FINE_BOUNDS))])
    mask = (torch.cat([coarse, fine]) > threshold).any(0)
    correlation = _likeness(*(block_means(blocks, side).flatten() for blocks in (before, block)))
    read = torch.cat([mask.flatten().float(), correlation[None], square.amax()[None]]).tolist()
    check_values(read.pop())
    likeness = read.pop()
    marked = np.array(read, dtype=bool).reshape(mask.shape)
    left = block.where(~pixel_mask(mask, side, (block.shape[2], block.shape[3])), 0.0)
    cut = bool(marked.mean() > CUT_SHARE) and likeness < CUT_LIKENESS
    return Changes(mask, marked, likeness, cut, learned._replace(last=left), threshold)


def check_values(largest: float) -> None:
    """Raise NotAnImage unless the largest mean square difference of a tile is one that two images can have."""
    if not largest <= MOST_DIFFERENT:  # false for NaN
        raise NotAnImage(f"step: frame must hold finite values from 0 to 1, got a mean square difference of {largest}")


def _compare(frame: Tensor, held: Tensor, tile: int) -> tuple[Tensor, Tensor, Tensor]:
    """Block means of the difference, (1, 3, h, w); tile means of its square, (1, rows, columns); block means of `held`.

    On a CPU strip by strip, so that intermediate results stay in the cache.
    """
    if frame.device.type == "cpu" and frame.shape[2] > STRIP * tile:
        strips = zip(frame.split(STRIP * tile, 2), held.split(STRIP * tile, 2))
        blocks, squares, before = zip(*[_compare(*strip, tile) for strip in strips])
        return torch.cat(blocks, 2), torch.cat(squares, 1), torch.cat(before, 2)
    difference = frame - held
    square = block_means(block_means(difference.square(), BLOCK), tile // BLOCK).mean(1)
    return block_means(difference, BLOCK), square, block_means(held, BLOCK)


def block_means(texels: Tensor, side: int = MEAN_BLOCK) -> Tensor:
    """(…, C, H, W) → (…, C, h, w): means of side × side texels; a block at the edge has fewer."""
    means: Tensor = functional.avg_pool2d(texels, side, ceil_mode=True)
    return means


def largest_per_tile(difference: Tensor, side: int) -> Tensor:
    """(B, C, h, w) → (B, rows, columns): the largest difference of a tile's blocks; side: blocks per side of a tile."""
    largest: Tensor = functional.max_pool2d(difference.abs().amax(1, keepdim=True), side, ceil_mode=True)[:, 0]
    return largest


def _learn(noise: Noise, now: Tensor) -> Noise:
    """The noise estimate after another frame; `coarse` is from frame to frame, so that a slow fade is not noise."""
    now = now.nan_to_num(0.0)
    quiet = now.flatten(1).kthvalue(quiet_rank(now[0].numel()), 1).values
    sensor = noise.sensor + noise.rate * (quiet - noise.sensor)
    tiles = noise.tiles + torch.where(now > noise.tiles, RISE, FALL) * (now - noise.tiles)
    return Noise(sensor, tiles, noise.last, noise.frames + 1)


def quiet_rank(tiles: int) -> int:
    """The rank, from 1, of the tile that shows the sensor's noise, among so many from the quietest on."""
    return max(1, int(QUIET * tiles))


def _likeness(before: Tensor, difference: Tensor) -> Tensor:
    """The correlation of two thumbnails, (n,) each: one and how the other differs; 0 where one of them is flat."""
    after = before + difference
    before, after = before - before.mean(), after - after.mean()
    power = before.square().sum() * after.square().sum()
    return (before * after).sum() / power.sqrt().clamp(min=1e-6)


def tile_grid(size: tuple[int, int], tile: int) -> tuple[int, int]:
    """Rows and columns of tiles; the last row and column may be smaller."""
    return math.ceil(size[0] / tile), math.ceil(size[1] / tile)


def grow_mask(mask: np.ndarray, reach: int, tile: int) -> np.ndarray:
    """(rows, columns): every tile within `reach` pixels of a marked tile."""
    around = math.ceil(reach / tile)
    grown: np.ndarray = np.pad(mask, around)
    for axis in (0, 1):
        grown = np.logical_or.reduce(np.lib.stride_tricks.sliding_window_view(grown, 2 * around + 1, axis), -1)
    return grown


def tile_boxes(mask: np.ndarray, tile: int, size: tuple[int, int]) -> list[Rectangle]:
    """Disjoint rectangles that cover exactly the marked tiles: runs within a row, merged downwards where equal."""
    open_runs: dict[tuple[int, int], int] = {}
    found: list[Rectangle] = []
    for row in range(mask.shape[0] + 1):
        runs = _runs(mask[row]) if row < mask.shape[0] else set()
        for run in [run for run in open_runs if run not in runs]:
            top, bottom = open_runs.pop(run) * tile, min(row * tile, size[0])
            found.append(Rectangle(run[0] * tile, top, min(run[1] * tile, size[1]), bottom))
        for run in runs:
            open_runs.setdefault(run, row)
    return sorted(found, key=lambda box: (box.top, box.left))


def _runs(row: np.ndarray) -> set[tuple[int, int]]:
    """First and one-past-last column of each run of marked tiles."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], row.astype(np.int8), [0]])))
    return set(zip(edges[::2].tolist(), edges[1::2].tolist()))


def whole_is_cheaper(boxes: Sequence[Rectangle], size: tuple[int, int]) -> bool:
    """Whether one pass over the whole frame costs a CPU less than one pass per rectangle."""
    area = sum((right - left) * (bottom - top) for left, top, right, bottom in boxes)
    return area + PART_OVERHEAD * len(boxes) > MOST_AREA * size[0] * size[1]


def pixel_mask(mask: Tensor, tile: int, size: tuple[int, int]) -> Tensor:
    """(rows, columns) → (H, W): tiles of `tile` texels as texels."""
    return mask.repeat_interleave(tile, 0)[: size[0]].repeat_interleave(tile, 1)[:, : size[1]]


def tiles_on_cells(mask: Tensor, tile: int, size: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """(rows, columns) of tiles → (1, h, w): whether the centre of a cell of the image lies in a marked tile."""
    row, column = (
        ((torch.arange(cells, device=mask.device) + 0.5) * (extent / cells) / tile).long().clamp(max=most - 1)
        for cells, extent, most in zip(grid, size, mask.shape)
    )
    return mask[row[:, None], column][None]


def reads_marked(allocation: Allocation, mask: Tensor, tile: int) -> Tensor:
    """(K,): whether sampling a footprint of one image may read a marked tile. Reads no value on the host."""
    rows, columns = mask.shape
    total = torch.zeros(rows + 1, columns + 1, dtype=torch.int64, device=mask.device)
    total[1:, 1:] = mask.long().cumsum(0).cumsum(1)
    axes = allocation.ddx[0].norm(dim=-1), allocation.ddy[0].norm(dim=-1)
    step = torch.maximum(torch.minimum(*axes), torch.maximum(*axes) / MAX_ANISOTROPY)
    coarse = torch.exp2(step.clamp(min=1).log2().ceil())
    texel = [extent / (extent / coarse).floor().clamp(min=1) for extent in reversed(allocation.size)]
    margin = READ_MARGIN * torch.stack(texel, -1) + 1
    # Samples outside the image read its edge.
    limits = allocation.size[::-1] * 2
    inside = torch.stack([edge.clamp(0, most) for edge, most in zip(allocation.boxes[0].unbind(-1), limits)])
    low, high = ((edges.T / tile).floor().long() for edges in (inside[:2] - margin.T, inside[2:] + margin.T))
    first, last = (
        torch.stack([edge[:, 0].clamp(0, columns - 1), edge[:, 1].clamp(0, rows - 1)]) for edge in (low, high)
    )
    (x0, y0), (x1, y1) = first, last + 1
    return total[y1, x1] - total[y0, x1] - total[y1, x0] + total[y0, x0] > 0
