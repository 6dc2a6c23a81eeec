"""A frame against the one that is held, by our kernels (change.cu): three launches, nothing read on the host.

What the host needs to know (how many tiles changed and which, whether it is a cut, whether it is an image at all) comes
back as one small record, whenever somebody waits for it.
"""

import struct
from typing import Protocol

import torch
from torch import Tensor

from texturevlm.ops.cuda.launch import address, launch
from texturevlm.ops.cuda.marks import Marks

BLOCK, MOST_TILES = 4, 8192  # as in change.cu
NUMBERS, WORDS = 10, 8  # what is known of a tile; what the host reads besides the mask
CHANGED, LIKENESS, GREATEST, CUT = range(4)  # of those
_FRAME = struct.Struct("=2QqQ4i")
_MEASURE = struct.Struct("=3Q")
_DECIDE = struct.Struct("=11Qf4i4x")
_TAKE = struct.Struct("=3Q")


class Noise(Protocol):
    """What is learned of a stream: sensor (2,), tiles (2, rows, columns), last (1, 3, h, w), all contiguous."""

    @property
    def sensor(self) -> Tensor: ...
    @property
    def tiles(self) -> Tensor: ...
    @property
    def last(self) -> Tensor: ...


class Comparison:
    """The buffers of one stream; sizes never change, nor do addresses.

    record:    (4 · WORDS + rows · columns,) bytes: numbers as floats, then the mask
    mask:      (rows, columns) bool, the changed tiles, a part of `record`
    words:     (WORDS,) float, the other part; those after CUT are for others
    threshold: (2, rows, columns)
    marks:     the tiles that are taken over; none where the frame is a cut or no image
    either:    those, and the ones taken over from the frame before
    moved:     (rows, columns) bool, the tiles taken over last
    """

    def __init__(self, size: tuple[int, int], tile: int, device: torch.device) -> None:
        self.size, self.tile = size, tile
        rows, columns = (-(-extent // tile) for extent in size)
        self.rows, self.columns = rows, columns
        self.record = torch.zeros(4 * WORDS + rows * columns, dtype=torch.uint8, device=device)
        self.device = self.record.device  # with its number
        self.words = self.record[: 4 * WORDS].view(torch.float32)
        self.mask = self.record[4 * WORDS :].view(torch.bool).view(rows, columns)
        self.threshold = torch.zeros(2, rows, columns, device=device)
        self.moved = torch.zeros(rows, columns, dtype=torch.bool, device=device)
        sums = torch.zeros(2, rows + 1, columns + 1, dtype=torch.int32, device=device)
        self.marks, self.either = Marks(sums[0], tile), Marks(sums[1], tile)
        self._numbers = torch.zeros(NUMBERS, rows, columns, device=device)

    def look(
        self, frame: Tensor, held: Tensor, noise: Noise, learned: Noise, *, rate: float, rank: int, take: bool
    ) -> None:
        """Find what changed.

        frame:   (1, 3, H, W), float32 or bytes, the pixels of a channel contiguous
        held:    (1, 3, H, W), contiguous
        noise:   so far; learned: where it is written to with what this frame says
        rate:    how fast the sensor's noise is followed
        rank:    of the tile, from the quietest, that shows the sensor's noise; counted from 1
        take:    whether `take` follows; if not, nothing is marked
        """
        parameters = self._frame(frame, held)
        parameters += _MEASURE.pack(address(noise.last), address(learned.last), address(self._numbers))
        launch("change.cu", "change_measure", self.device, self.rows * self.columns, parameters, SCALAR=32)
        outputs = (self.threshold, self.words, self.mask, self.moved, self.marks.total, self.either.total)
        parameters = _DECIDE.pack(
            *(address(tensor) for tensor in (self._numbers, noise.sensor, noise.tiles, learned.sensor, learned.tiles)),
            *(address(tensor) for tensor in outputs),
            *(rate, rank - 1, self.rows, self.columns, take),
        )
        launch("change.cu", "change_decide", self.device, 1, parameters, SCALAR=32)

    def take(self, frame: Tensor, held: Tensor, learned: Noise, motion: Tensor | None) -> None:
        """Write the marked tiles of a frame into what is held; motion: (H, W), how much each pixel changed by that."""
        parameters = self._frame(frame, held) + self.marks.packed + self.either.packed
        parameters += _TAKE.pack(address(self.moved), address(motion), address(learned.last))
        launch("change.cu", "change_take", self.device, self.rows * self.columns, parameters, SCALAR=32)

    def _frame(self, frame: Tensor, held: Tensor) -> bytes:
        height, width = self.size
        start, whole = frame.data_ptr(), frame.dtype == torch.uint8
        aligned = width % 4 == 0 and start % (4 if whole else 16) == 0 and frame.stride(1) % 4 == 0
        pointers = (0, start) if whole else (start, 0)
        return _FRAME.pack(*pointers, frame.stride(1), held.data_ptr(), height, width, self.tile, aligned)
