"""Change detection on a GPU: `find_changes` by kernels (change.cu, change_decide.cu), without waiting in between.

What differs from frame to frame is in a small note (`struct Turn`) that the kernels read, so that one captured graph
serves every frame; all other parameters are packed once. What the host needs to know (which tiles changed, whether the
frame is a cut, whether its values are finite and in range) comes back as one small record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from texturevlm.cuda import Layout, address, constants, launch
from texturevlm.ops import Marks
from texturevlm.ops import backend as backends
from texturevlm.video.change import BLOCK, Changes, Noise, check_values, initial_noise, quiet_rank, tile_grid

POST_THREADS, TILE_NUMBERS = constants("change.cu", "POST_THREADS", "NUMBERS")
MOST_TILES, DECIDE_THREADS, RECORD_WORDS = constants("change_decide.cu", "MOST_TILES", "DECIDE_THREADS", "WORDS")
LIKENESS, GREATEST, IS_CUT = constants("change_decide.cu", "LIKENESS", "GREATEST_SQUARE", "CUT")
_TURN, _FRAME = Layout("change.cuh", "Turn"), Layout("change.cu", "Frame")
_MEASURE, _TAKE, _POST = (Layout("change.cu", name) for name in ("Measure", "Take", "Post"))
_DECIDE, _LEARN = Layout("change_decide.cu", "Decide"), Layout("change_decide.cu", "Learn")
_write_turn = _TURN.in_order(
    *("floats", "bytes", "channel", "sensor", "flicker", "last", "sensor_next", "flicker_next", "blocks"),
    *("rate", "take", "aligned"),
)
_Result = TypeVar("_Result")


def kernels_can_compare(like: Tensor, size: tuple[int, int], tile: int) -> bool:
    """Whether the kernels can compare frames of `size` on the device and with the dtype of `like`."""
    rows, columns = tile_grid(size, tile)
    return backends.no_kernel_because(like) is None and tile % BLOCK == 0 and rows * columns <= MOST_TILES


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
    """`find_changes` by kernels. Nothing is allocated after the start: sizes and addresses never change.

    held:      (1, 3, H, W), level 0 of the held frame, contiguous, on 16 bytes
    tokens:    the length of `sampled`
    words:     (RECORD_WORDS,) float, those after IS_CUT free for other users; `read_words`: as last read on the host
    mask:      (rows, columns) bool, the changed tiles
    sampled:   (tokens,) bool, which patches were written, for the kernel that samples them; `read_sampled`: on the host
    marks:     the tiles to copy; none if the frame is a cut or not finite
    either:    the tiles copied from this frame or from the one before
    moved:     (rows, columns) bool, the tiles copied last
    """

    def __init__(self, held: Tensor, tile: int, *, tokens: int = 0) -> None:
        self.device, self.size, self.tile = held.device, (held.shape[2], held.shape[3]), tile
        rows, columns = tile_grid(self.size, tile)
        self._tiles, on_gpu = rows * columns, held.is_cuda
        parts = [4 * RECORD_WORDS, self._tiles, tokens]
        record, read = (
            torch.zeros(-(-sum(parts) // 4) * 4, dtype=torch.uint8, **where)  # whole words
            for where in ({"device": self.device}, {"pin_memory": on_gpu})
        )
        words, mask, sampled = record[: sum(parts)].split(parts)
        self.words, self.mask = words.view(torch.float32), mask.view(torch.bool).view(rows, columns)
        self.sampled = sampled.view(torch.bool)
        words, mask, sampled = read[: sum(parts)].split(parts)
        self.read_words: np.ndarray = words.view(torch.float32).numpy()
        self._read_mask: np.ndarray = mask.view(torch.bool).view(rows, columns).numpy()
        self.read_sampled: Tensor = sampled.view(torch.bool)
        self.threshold = torch.zeros(2, rows, columns, device=self.device)
        self.moved = torch.zeros(rows, columns, dtype=torch.bool, device=self.device)
        sums = torch.zeros(2, rows + 1, columns + 1, dtype=torch.int32, device=self.device)
        self.marks, self.either = Marks(sums[0], tile), Marks(sums[1], tile)
        self._noise = [initial_noise(self.size, tile, self.device) for _ in range(2)]  # one is read, one written
        self._learned = self._noise[0]
        self._learning = Branch(self.device)
        self._done = torch.cuda.Event() if on_gpu else None
        self._pack(held, record, read)

    def _pack(self, held: Tensor, record: Tensor, read: Tensor) -> None:
        """The parameters of all kernels."""
        rows, columns = self.mask.shape
        note = torch.zeros(_TURN.size, dtype=torch.uint8, pin_memory=held.is_cuda)
        turn = torch.zeros(_TURN.size, dtype=torch.uint8, device=self.device)
        numbers = torch.zeros(TILE_NUMBERS, rows, columns, device=self.device)
        self._buffers, self._note = (held, record, read, note, turn, numbers), note.numpy().data
        self._post_turn, self._post_record = (
            _POST.pack(**{"from": start, "to": to, "words": start.numel() // 4})
            for start, to in ((note, turn), (record, read))
        )
        frame = _FRAME.pack(turn=turn, held=held, height=self.size[0], width=self.size[1], tile=self.tile)
        self._measure = _MEASURE.pack(frame=frame, numbers=numbers)
        common = {"turn": turn, "numbers": numbers, "words": self.words}
        sums = {"total": self.marks.total, "either": self.either.total, "rows": rows, "columns": columns}
        self._decide = _DECIDE.pack(**common, **sums, threshold=self.threshold, mask=self.mask, moved=self.moved)
        self._learn = _LEARN.pack(**common, rank=quiet_rank(self._tiles) - 1, tiles=self._tiles)
        self._take = _TAKE.fix(frame=frame, marks=self.marks.packed, either=self.either.packed, moved=self.moved)

    def set_frame(self, frame: Tensor, noise: Noise, *, copy: bool) -> None:
        """Write the note for the next `mark` and `copy_marked`. Earlier ones must be done: they read the same note.

        frame: (1, 3, H, W), float32 from 0 to 1 or bytes, the pixels of a channel contiguous
        copy:  whether `copy_marked` follows; if not, no tile is marked
        """
        sensor = noise.sensor.data_ptr()
        spare = self._noise[self._noise[0].sensor.data_ptr() == sensor]
        start, whole, channel = frame.data_ptr(), frame.dtype == torch.uint8, frame.stride(1)
        aligned = self.size[1] % 4 == 0 and start % (4 if whole else 16) == 0 and channel % 4 == 0
        known = (sensor, noise.tiles.data_ptr(), noise.last.data_ptr())
        learned = (spare.sensor.data_ptr(), spare.tiles.data_ptr(), spare.last.data_ptr())
        floats, pixels = (0, start) if whole else (start, 0)
        self._note[:] = _write_turn(floats, pixels, channel, *known, *learned, noise.rate, copy, aligned)
        self._learned = spare._replace(frames=noise.frames + 1)

    def mark(self) -> None:
        """Mark the tiles that differ from the held frame, and learn the noise beside what follows."""
        launch("change.cu", "change_post", self.device, 1, self._post_turn, threads=POST_THREADS)
        threads = 192 if self.tile > 16 else 96  # a warp has 32 blocks of a channel
        launch("change.cu", "change_measure", self.device, self._tiles, self._measure, early=True, threads=threads)
        launch("change_decide.cu", "change_decide", self.device, 1, self._decide, early=True, threads=DECIDE_THREADS)
        self._learning.run(
            lambda: launch("change_decide.cu", "change_learn", self.device, 1, self._learn, threads=DECIDE_THREADS)
        )

    def copy_marked(self, motion: Tensor | None) -> None:
        """Copy the marked tiles of the frame into the held one; motion: (H, W), gets how much each pixel changed."""
        aligned = self.size[1] % 4 == 0 and address(motion) % 16 == 0
        parameters = self._take.pack(motion=motion, motion_aligned=aligned)
        launch("change.cu", "change_take", self.device, self._tiles, parameters, early=True)

    def report(self) -> None:
        """Start to copy the record to the host, after all that `mark` has started."""
        self._learning.join()
        launch("change.cu", "change_post", self.device, 1, self._post_record, threads=POST_THREADS)

    def wait(self) -> None:
        """Until everything started is done, and so the record is on the host."""
        if self._done is not None:
            self._done.record(torch.cuda.current_stream(self.device))  # which need not be the current device
            self._done.synchronize()

    def changes(self) -> Changes:
        """What the record says. Raises ValueError for a frame that is not an image."""
        words = self.read_words.tolist()
        check_values(words[GREATEST])
        marked, cut = self._read_mask.copy(), words[IS_CUT] > 0
        return Changes(self.mask, marked, words[LIKENESS], cut, self._learned, self.threshold)
