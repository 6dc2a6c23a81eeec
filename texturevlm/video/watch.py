"""Change detection on a GPU: the same as `changes`, by three kernels, and one small record that the host waits for.

The frame is compared and the marked tiles are taken over before the host knows anything of it; a frame that is no
image, or one that begins another scene, marks nothing, so that what is held stays as it was. Nothing is allocated.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from texturevlm.ops import backend as backends
from texturevlm.ops.cuda import change as kernels
from texturevlm.video.change import BLOCK, QUIET, RATE, Changes, Noise, no_noise, refuse_unless_image
from texturevlm.video.tiles import tile_grid


class Watch:
    """One stream's comparison with what is held.

    found: the buffers on the device, see `Comparison`
    """

    def __init__(self, size: tuple[int, int], tile: int, device: torch.device) -> None:
        self.found = kernels.Comparison(size, tile, device)
        self._noise = [no_noise(size, tile, device) for _ in range(2)]  # one is read while the other is written
        self._learned = self._noise[0]
        self._rank = max(1, int(QUIET * self.found.rows * self.found.columns))
        self._read = torch.zeros(self.found.record.shape, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._done = torch.cuda.Event() if device.type == "cuda" else None

    def look(self, frame: Tensor, held: Tensor, noise: Noise, *, take: bool) -> None:
        """Mark what changed; take: `take` will follow.

        frame: (1, 3, H, W), 0 to 1, or bytes; held: level 0 of what is held
        """
        spare = next(one for one in self._noise if one.sensor.data_ptr() != noise.sensor.data_ptr())
        rate = max(RATE, 1 / (noise.frames + 1))
        self.found.look(frame, held, noise, spare, rate=rate, rank=self._rank, take=take)
        self._learned = spare._replace(frames=noise.frames + 1)

    def take(self, frame: Tensor, held: Tensor, motion: Tensor | None) -> None:
        """Write the marked tiles into what is held, and how much they moved."""
        self.found.take(frame, held, self._learned, motion)

    def forget_motion(self) -> None:
        """Everything stands still: a keyframe."""
        self.found.moved.zero_()

    def wait(self) -> None:
        """Until the record is here, and so all that was started before is done."""
        self._read.copy_(self.found.record, non_blocking=True)
        if self._done is not None:
            self._done.record()
            self._done.synchronize()

    def changes(self) -> Changes:
        """What the record says. Raises ValueError for a frame that is no image."""
        words = self.words
        refuse_unless_image(float(words[kernels.GREATEST]))
        marked = self._read[4 * kernels.WORDS :].numpy().astype(bool).reshape(self.found.rows, self.found.columns)
        return Changes(self.found.mask, marked, float(words[kernels.LIKENESS]), self._learned, self.found.threshold)

    @property
    def words(self) -> np.ndarray:
        """The record's numbers, as they came last."""
        numbers: np.ndarray = self._read[: 4 * kernels.WORDS].numpy().view(np.float32)
        return numbers


def can_watch(held: Tensor, tile: int) -> bool:
    """Whether the kernels can compare frames with what is held, level 0 of it."""
    rows, columns = tile_grid((held.shape[2], held.shape[3]), tile)
    return backends.no_kernel_because(held) is None and tile % BLOCK == 0 and rows * columns <= kernels.MOST_TILES
