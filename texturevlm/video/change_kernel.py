"""A frame against the one that is held, by our kernels (change.cu, change_decide.cu): nothing is read on the host.

What differs from frame to frame is told by a small note that the kernels read, so that a captured graph of them serves
every frame. What the host needs to know (how many tiles changed and which, whether it is a cut, whether it is an image
at all) comes back as one small record, whenever somebody waits for it.
"""

import struct
from typing import Protocol

import torch
from torch import Tensor

from texturevlm.cuda.launch import address, launch
from texturevlm.ops.marks import Marks

BLOCK, MOST_TILES, DECIDING, POSTING = 4, 8192, 1024, 1024  # as in change.cu and change_decide.cu
NUMBERS, WORDS = 10, 8  # what is known of a tile; what the host reads besides the mask
CHANGED, LIKENESS, GREATEST, CUT = range(4)  # of those
_TURN = struct.Struct("=2Qq6Qf2i4x")
_FRAME = struct.Struct("=2Q3i4x")
_DECIDE = struct.Struct("=8Q2i")
_LEARN = struct.Struct("=3Q2i")
_TAKE = struct.Struct("=2Qi4x")
_POST = struct.Struct("=2Qi4x")


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

    record:    bytes: numbers as floats, the mask, and whatever else the host should read with them
    mask:      (rows, columns) bool, the changed tiles, a part of `record`
    words:     (WORDS,) float, another part; those after CUT are for others
    more:      (more,) bool, the last part, for others
    threshold: (2, rows, columns)
    marks:     the tiles that are taken over; none where the frame is a cut or no image
    either:    those, and the ones taken over from the frame before
    moved:     (rows, columns) bool, the tiles taken over last
    """

    def __init__(self, size: tuple[int, int], tile: int, device: torch.device, *, more: int = 0) -> None:
        self.size, self.tile = size, tile
        rows, columns = (-(-extent // tile) for extent in size)
        self.rows, self.columns = rows, columns
        ends = 4 * WORDS, 4 * WORDS + rows * columns
        room = -(-(ends[1] + more) // 4) * 4  # whole words
        self.record = torch.zeros(room, dtype=torch.uint8, device=device)
        self.device = self.record.device  # with its number
        self.words = self.record[: ends[0]].view(torch.float32)
        self.mask = self.record[ends[0] : ends[1]].view(torch.bool).view(rows, columns)
        self.more = self.record[ends[1] : ends[1] + more].view(torch.bool)
        self.threshold = torch.zeros(2, rows, columns, device=device)
        self.moved = torch.zeros(rows, columns, dtype=torch.bool, device=device)
        sums = torch.zeros(2, rows + 1, columns + 1, dtype=torch.int32, device=device)
        self.marks, self.either = Marks(sums[0], tile), Marks(sums[1], tile)
        self._numbers = torch.zeros(NUMBERS, rows, columns, device=device)
        self._note = torch.zeros(_TURN.size, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._written = self._note.numpy().data
        self._turn = torch.zeros(_TURN.size, dtype=torch.uint8, device=device)

    def tell(self, frame: Tensor, noise: Noise, learned: Noise, *, rate: float, take: bool) -> None:
        """Say what the next `look` and `take` are about. The last ones must be done: they read the same note.

        frame:   (1, 3, H, W), float32 or bytes, the pixels of a channel contiguous
        noise:   so far; learned: where it is written to with what this frame says
        rate:    how fast the sensor's noise is followed
        take:    whether `take` follows; if not, nothing is marked
        """
        start, whole, channel = frame.data_ptr(), frame.dtype == torch.uint8, frame.stride(1)
        aligned = self.size[1] % 4 == 0 and start % (4 if whole else 16) == 0 and channel % 4 == 0
        known = [part.data_ptr() for one in (noise, learned) for part in (one.sensor, one.tiles, one.last)]
        pointers = (0, start) if whole else (start, 0)
        _TURN.pack_into(self._written, 0, *pointers, channel, *known, rate, take, aligned)

    def look(self, held: Tensor) -> None:
        """Find what changed.

        held: (1, 3, H, W), contiguous, on 16 bytes
        """
        self._post(self._note, self._turn)
        parameters = self._frame(held) + address(self._numbers).to_bytes(8, "little")
        threads = 192 if self.tile > 16 else 96  # a warp has 32 blocks of a channel
        tiles = self.rows * self.columns
        launch("change.cu", "change_measure", self.device, tiles, parameters, early=True, threads=threads, SCALAR=32)
        outputs = (self.threshold, self.words, self.mask, self.moved, self.marks.total, self.either.total)
        parameters = _DECIDE.pack(
            *(address(tensor) for tensor in (self._turn, self._numbers, *outputs)), self.rows, self.columns
        )
        launch("change_decide.cu", "change_decide", self.device, 1, parameters, early=True, threads=DECIDING, SCALAR=32)

    def learn(self, *, rank: int) -> None:
        """What the frame says of the sensor's noise, and how alike the pictures are; nothing but `report` waits for it.

        rank: of the tile, from the quietest, that shows the noise; counted from 1
        """
        pointers = [tensor.data_ptr() for tensor in (self._turn, self._numbers, self.words)]
        parameters = _LEARN.pack(*pointers, rank - 1, self.rows * self.columns)
        launch("change_decide.cu", "change_learn", self.device, 1, parameters, threads=DECIDING, SCALAR=32)

    def take(self, held: Tensor, motion: Tensor | None) -> None:
        """Write the marked tiles of the frame into what is held.

        motion: (H, W), how much each pixel changed
        """
        aligned = self.size[1] % 4 == 0 and address(motion) % 16 == 0
        parameters = self._frame(held) + self.marks.packed + self.either.packed
        parameters += _TAKE.pack(address(self.moved), address(motion), aligned)
        launch("change.cu", "change_take", self.device, self.rows * self.columns, parameters, early=True, SCALAR=32)

    def report(self, to: Tensor) -> None:
        """Bring the record to the host; to: as many bytes, in memory that the GPU sees."""
        self._post(self.record, to)

    def _post(self, start: Tensor, to: Tensor) -> None:
        parameters = _POST.pack(start.data_ptr(), to.data_ptr(), start.numel() // 4)
        launch("change.cu", "change_post", self.device, 1, parameters, threads=POSTING, SCALAR=32)

    def _frame(self, held: Tensor) -> bytes:
        return _FRAME.pack(self._turn.data_ptr(), held.data_ptr(), *self.size, self.tile)
