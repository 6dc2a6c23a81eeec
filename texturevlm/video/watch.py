"""Change detection on a GPU: the same as `changes`, by four kernels, and one small record that the host waits for.

The frame is compared and the marked tiles are taken over before the host knows anything of it; a frame that is no
image, or one that begins another scene, marks nothing, so that what is held stays as it was. Nothing is allocated.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from texturevlm.ops import backend as backends
from texturevlm.video import change_kernel as kernels
from texturevlm.video.captured import Branch
from texturevlm.video.change import BLOCK, QUIET, RATE, Changes, Noise, no_noise, refuse_unless_image
from texturevlm.video.tiles import tile_grid


class Watch:
    """One stream's comparison with what is held.

    found: the buffers on the device, see `Comparison`
    """

    def __init__(self, size: tuple[int, int], tile: int, device: torch.device, *, tokens: int = 0) -> None:
        """tokens: how many more bytes the record has, see `sampled`"""
        self.found = kernels.Comparison(size, tile, device, more=tokens)
        self._noise = [no_noise(size, tile, device) for _ in range(2)]  # one is read while the other is written
        self._learned = self._noise[0]
        self._rank = max(1, int(QUIET * self.found.rows * self.found.columns))
        self._read = torch.zeros(self.found.record.shape, dtype=torch.uint8, pin_memory=device.type == "cuda")
        read, words = self._read.numpy(), 4 * kernels.WORDS
        self.words: np.ndarray = read[:words].view(np.float32)  # the record's numbers, as they came last
        end = words + self.found.rows * self.found.columns
        self._marked = read[words:end].view(bool).reshape(self.found.rows, self.found.columns)
        self._sampled = read[end : end + tokens].view(bool)
        self._learning = Branch(device)
        self._done = torch.cuda.Event() if device.type == "cuda" else None

    def tell(self, frame: Tensor, noise: Noise, *, take: bool) -> None:
        """Say which frame is next; take: `take` will follow.

        frame: (1, 3, H, W), 0 to 1, or bytes
        """
        spare = next(one for one in self._noise if one.sensor.data_ptr() != noise.sensor.data_ptr())
        self.found.tell(frame, noise, spare, rate=max(RATE, 1 / (noise.frames + 1)), take=take)
        self._learned = spare._replace(frames=noise.frames + 1)

    def look(self, held: Tensor) -> None:
        """Mark what changed; held: level 0 of what is held."""
        self.found.look(held)
        self._learning.run(lambda: self.found.learn(rank=self._rank))

    def take(self, held: Tensor, motion: Tensor | None) -> None:
        """Write the marked tiles into what is held, and how much they moved."""
        self.found.take(held, motion)

    def forget_motion(self) -> None:
        """Everything stands still: a keyframe."""
        self.found.moved.zero_()

    def report(self) -> None:
        """Start to bring the record to the host."""
        self._learning.join()
        self.found.report(self._read)

    def wait(self) -> None:
        """Until all that was started is done, and so the record is here."""
        if self._done is not None:
            self._done.record(torch.cuda.current_stream(self.found.device))  # which need not be the current device
            self._done.synchronize()

    def changes(self) -> Changes:
        """What the record says. Raises ValueError for a frame that is no image."""
        words = self.words.tolist()
        refuse_unless_image(words[kernels.GREATEST])
        likeness, cut = words[kernels.LIKENESS], words[kernels.CUT] > 0
        return Changes(self.found.mask, self._marked.copy(), likeness, cut, self._learned, self.found.threshold)

    @property
    def sampled(self) -> Tensor:
        """(tokens,), on the host: which patches the kernels wrote, by the record."""
        return torch.from_numpy(self._sampled.copy())


def can_watch(held: Tensor, tile: int) -> bool:
    """Whether the kernels can compare frames with what is held, level 0 of it."""
    rows, columns = tile_grid((held.shape[2], held.shape[3]), tile)
    return backends.no_kernel_because(held) is None and tile % BLOCK == 0 and rows * columns <= kernels.MOST_TILES
