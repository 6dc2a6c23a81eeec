"""What changed: each tile of a frame against the frame that the texture holds, with a threshold that knows the noise.

Two numbers a tile. `coarse` is the greatest difference between the means of 4×4 pixels: sensor noise averages out
there, and what is left is movement, light, or a fade once it has added up (the comparison is with what is held, not
with the last frame). `fine` is what those means do not tell: the root mean square of the rest, for texture that moves
under equal means. How much of either is noise is learned from the stream itself: the sensor's from the quietest tiles
of the frames before, a compression's flicker, which sits where there is texture, from what each tile does from frame to
frame. Fixed bounds hold whatever was learned: a difference above the upper one is a change, and none below the lower
one is. While nothing is known of the sensor, only the upper one counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.check import check_count
from texturevlm.video.tiles import tile_grid

BLOCK = 4  # pixels
STRIP = 2  # rows of tiles
QUIET = 0.05  # of the tiles are still, or too flat to show that they move, in nearly any frame
TIMES = 2.2  # the noise, above which a tile changed: the greatest of many blocks varies from frame to frame
COARSE = (5 / 255, 12 / 255)  # bounds of the threshold for means of 4×4 pixels
FINE = (4 / 255, 12 / 255)  # and for the rest, a root mean square
RATE = 0.1  # how fast the estimate of the sensor's noise follows, once it is known
RISE, FALL = 0.1, 0.3  # and that of a tile's own: slowly up, so that something passing is not taken for noise
CUT_SHARE = 0.5  # of the tiles must have changed,
CUT_LIKENESS = 0.5  # and the pictures' thumbnails must correlate less than this, for a cut
MOST_DIFFERENT = 1.1  # a mean square difference of two images cannot be more


class Noise(NamedTuple):
    """What is learned of a stream.

    sensor: (2,), the quietest tiles' `coarse` and `fine`
    tiles:  (2, rows, columns), each tile's own
    last:   (1, 3, h, w), how the blocks of the last frame differed from what is held
    frames: that it was learned from
    """

    sensor: Tensor
    tiles: Tensor
    last: Tensor
    frames: int


@dataclass(frozen=True, eq=False)
class Changes:
    """What was found out about a frame.

    mask:      (rows, columns) bool, on the frame's device: the tiles that changed
    marked:    the same on the host
    likeness:  of the two pictures' thumbnails, −1 to 1
    cut:       whether this is another scene
    noise:     to be kept if the frame is taken
    threshold: (2, rows, columns), for `coarse` and `fine`
    """

    mask: Tensor
    marked: np.ndarray
    likeness: float
    cut: bool
    noise: Noise
    threshold: Tensor

    @cached_property
    def count(self) -> int:
        """Tiles that changed."""
        return int(np.count_nonzero(self.marked))

    @property
    def share(self) -> float:
        """Of the tiles that changed."""
        return self.count / self.marked.size


def no_noise(size: tuple[int, int], tile: int, device: torch.device) -> Noise:
    """Before anything is known of a stream: as much noise as it may be."""
    blocks = torch.zeros(1, 3, *tile_grid(size, BLOCK), device=device)
    sensor = torch.tensor([COARSE[1], FINE[1]], device=device) / TIMES
    return Noise(sensor, torch.zeros(2, *tile_grid(size, tile), device=device), blocks, 0)


def changes(frame: Tensor, held: Tensor, noise: Noise, *, tile: int = 32) -> Changes:
    """Compare a frame with what is held. The host reads one small tensor, once.

    frame: (1, 3, H, W), 0 to 1
    held:  the same of what is held
    tile:  side of a tile in pixels, a multiple of 4
    raises ValueError where a value of the frame is NaN, infinite or far outside of 0 to 1
    """
    if check_count("changes", "tile", tile, BLOCK) % BLOCK:
        raise ValueError(f"changes: tile must be a multiple of {BLOCK}, got {tile}")
    block, square, before = _compared(frame, held, tile)
    coarse = _greatest(block, tile)
    fine = (square - _pooled(block.square(), tile // BLOCK).mean(1)).clamp(min=0).sqrt()
    learned = _learned(noise, torch.cat([_greatest(block - noise.last, tile), fine]))
    level = TIMES * torch.maximum(noise.sensor[:, None, None], learned.tiles)
    threshold = torch.stack([one.clamp(*bounds) for one, bounds in zip(level, (COARSE, FINE))])
    mask = (torch.cat([coarse, fine]) > threshold).any(0)
    likeness = _likeness(before, block, tile)
    read = torch.cat([mask.flatten().float(), likeness[None], square.amax()[None]]).tolist()
    refuse_unless_image(read.pop())
    likely = read.pop()
    marked = np.array(read, dtype=bool).reshape(mask.shape)
    left = block.where(~_to_blocks(mask, block, tile), 0.0)
    cut = bool(marked.mean() > CUT_SHARE) and likely < CUT_LIKENESS
    return Changes(mask, marked, likely, cut, learned._replace(last=left), threshold)


def refuse_unless_image(greatest: float) -> None:
    """greatest: of the tiles' mean square differences from what is held."""
    if not greatest <= MOST_DIFFERENT:  # NaN is not, either
        raise ValueError(f"step: frame must hold finite values from 0 to 1, got a mean square difference of {greatest}")


def _compared(frame: Tensor, held: Tensor, tile: int) -> tuple[Tensor, Tensor, Tensor]:
    """Means of blocks of the difference, (1, 3, h, w); of tiles of its square, (1, rows, columns); of blocks of `held`.

    On a CPU strip by strip: what lies in between then stays in the cache, and no memory is asked for anew.
    """
    if frame.device.type == "cpu" and frame.shape[2] > STRIP * tile:
        strips = zip(frame.split(STRIP * tile, 2), held.split(STRIP * tile, 2))
        blocks, squares, before = zip(*[_compared(one, other, tile) for one, other in strips])
        return torch.cat(blocks, 2), torch.cat(squares, 1), torch.cat(before, 2)
    difference = frame - held
    square = _pooled(_pooled(difference.square(), BLOCK), tile // BLOCK).mean(1)
    return _pooled(difference, BLOCK), square, _pooled(held, BLOCK)


def _pooled(texels: Tensor, side: int) -> Tensor:
    """Means of side × side squares; those at the edge over what they hold."""
    return functional.avg_pool2d(texels, side, ceil_mode=True)


def _greatest(block: Tensor, tile: int) -> Tensor:
    """(1, 3, h, w) → (1, rows, columns): the greatest difference of a tile's blocks."""
    return functional.max_pool2d(block.abs().amax(1, keepdim=True), tile // BLOCK, ceil_mode=True)[:, 0]


def _learned(noise: Noise, now: Tensor) -> Noise:
    """The noise after another frame.

    now: (2, rows, columns); `coarse` from frame to frame, so that a slow fade is not taken for noise
    """
    now = now.nan_to_num(0.0)
    rank = max(1, int(QUIET * now[0].numel()))
    quiet = now.flatten(1).kthvalue(rank, 1).values
    sensor = noise.sensor + max(RATE, 1 / (noise.frames + 1)) * (quiet - noise.sensor)
    tiles = noise.tiles + torch.where(now > noise.tiles, RISE, FALL) * (now - noise.tiles)
    return Noise(sensor, tiles, noise.last, noise.frames + 1)


def _likeness(held: Tensor, moved: Tensor, tile: int) -> Tensor:
    """Correlation of the two frames' thumbnails, a texel a tile; 0 where one of them is flat.

    held, moved: (1, 3, h, w), means of blocks of what is held, and of the difference
    """
    before, more = (_pooled(blocks, tile // BLOCK).flatten() for blocks in (held, moved))
    after = before + more
    before, after = before - before.mean(), after - after.mean()
    power = before.square().sum() * after.square().sum()
    return (before * after).sum() / power.sqrt().clamp(min=1e-6)


def _to_blocks(mask: Tensor, block: Tensor, tile: int) -> Tensor:
    count = tile // BLOCK
    wide = mask.repeat_interleave(count, 0).repeat_interleave(count, 1)
    return wide[: block.shape[2], : block.shape[3]]
