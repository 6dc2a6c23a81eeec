"""Change detection on a GPU: `find_changes` by four kernels, and one small record that the host waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from texturevlm.ops import backend as backends
from texturevlm.video import change_kernel as kernels
from texturevlm.video.change import BLOCK, QUIET, SENSOR_RATE, Changes, Noise, check_difference, initial_noise
from texturevlm.video.tiles import tile_grid

_Result = TypeVar("_Result")


def kernels_can_compare(like: Tensor, size: tuple[int, int], tile: int) -> bool:
    """Whether the kernels can compare frames of `size` on the device and with the dtype of `like`."""
    rows, columns = tile_grid(size, tile)
    return backends.no_kernel_because(like) is None and tile % BLOCK == 0 and rows * columns <= kernels.MOST_TILES


class Branch:
    """Work that may run beside what follows, until `join`; on a GPU on a CUDA stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def run(self, work: Callable[[], _Result]) -> _Result:
        """Start it after everything that was started before."""
        if self._stream is None:
            return work()
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            return work()

    def join(self) -> None:
        """Whatever is started from here on waits for it."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)


class GpuComparison:
    """`find_changes` by kernels. Nothing is allocated; the host waits for one small record.

    found: the buffers on the device, see `change_kernel.Comparison`
    words: the record's numbers as last read, on the host
    """

    def __init__(self, size: tuple[int, int], tile: int, device: torch.device, *, tokens: int = 0) -> None:
        """tokens: further bytes of the record, one per token, see `sampled`"""
        self.found = kernels.Comparison(size, tile, device, more=tokens)
        self._noise = [initial_noise(size, tile, device) for _ in range(2)]  # one is read while the other is written
        self._learned = self._noise[0]
        self._rank = max(1, int(QUIET * self.found.rows * self.found.columns))
        self._read = torch.zeros(self.found.record.shape, dtype=torch.uint8, pin_memory=device.type == "cuda")
        read, words = self._read.numpy(), 4 * kernels.RECORD_WORDS
        self.words: np.ndarray = read[:words].view(np.float32)
        end = words + self.found.rows * self.found.columns
        self._marked = read[words:end].view(bool).reshape(self.found.rows, self.found.columns)
        self._sampled = read[end : end + tokens].view(bool)
        self._learning = Branch(device)
        self._done = torch.cuda.Event() if device.type == "cuda" else None

    def set_frame(self, frame: Tensor, noise: Noise, *, copy: bool) -> None:
        """Say which frame is next: (1, 3, H, W), 0 to 1, or bytes. copy: `found.copy_marked` will follow."""
        spare = next(one for one in self._noise if one.sensor.data_ptr() != noise.sensor.data_ptr())
        self.found.set_frame(frame, noise, spare, rate=max(SENSOR_RATE, 1 / (noise.frames + 1)), copy=copy)
        self._learned = spare._replace(frames=noise.frames + 1)

    def mark(self, held: Tensor) -> None:
        """Mark the tiles that differ from level 0 of the held frame."""
        self.found.mark(held)
        self._learning.run(lambda: self.found.learn_noise(rank=self._rank))

    def report(self) -> None:
        """Start to copy the record to the host, after all that `mark` has started."""
        self._learning.join()
        self.found.report(self._read)

    def wait(self) -> None:
        """Until everything started is done, and so the record is on the host."""
        if self._done is not None:
            self._done.record(torch.cuda.current_stream(self.found.device))  # which need not be the current device
            self._done.synchronize()

    def changes(self) -> Changes:
        """What the record says. Raises ValueError for a frame that is not an image."""
        words = self.words.tolist()
        check_difference(words[kernels.GREATEST])
        likeness, cut = words[kernels.LIKENESS], words[kernels.IS_CUT] > 0
        return Changes(self.found.mask, self._marked.copy(), likeness, cut, self._learned, self.found.threshold)

    @property
    def sampled(self) -> Tensor:
        """(tokens,), on the host: which patches the kernels wrote, by the record."""
        return torch.from_numpy(self._sampled.copy())
