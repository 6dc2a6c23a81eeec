"""Compare a frame with the held one by our kernels (change.cu, change_decide.cu), without waiting on the host.

What differs from frame to frame is in a small note (`struct Turn`) that the kernels read, so that one captured graph
serves every frame. What the host needs to know (which tiles changed, whether the frame is a cut, whether its values are
finite and in range) comes back as one small record.
"""

import torch
from torch import Tensor

from texturevlm.cuda.launch import launch
from texturevlm.cuda.struct import Layout, address, constants
from texturevlm.ops.marks import Marks
from texturevlm.video.change import Noise

POST_THREADS, TILE_NUMBERS = constants("change.cu", "POST_THREADS", "NUMBERS")
MOST_TILES, DECIDE_THREADS, RECORD_WORDS = constants("change_decide.cu", "MOST_TILES", "DECIDE_THREADS", "WORDS")
CHANGED, LIKENESS, GREATEST, IS_CUT = constants("change_decide.cu", "CHANGED", "LIKENESS", "GREATEST_SQUARE", "CUT")
_TURN, _FRAME = Layout("change.cuh", "Turn"), Layout("change.cu", "Frame")
_MEASURE, _TAKE, _POST = (Layout("change.cu", name) for name in ("Measure", "Take", "Post"))
_DECIDE, _LEARN = Layout("change_decide.cu", "Decide"), Layout("change_decide.cu", "Learn")
_write_turn = _TURN.in_order(
    *("floats", "bytes", "channel", "sensor", "flicker", "last", "sensor_next", "flicker_next", "blocks"),
    *("rate", "take", "aligned"),
)


class Comparison:
    """The buffers of one stream. Their sizes and addresses never change.

    record:    bytes: `words`, `mask` and `more`, which are views of it
    words:     (RECORD_WORDS,) float; those after IS_CUT are free for other users
    mask:      (rows, columns) bool, the changed tiles
    more:      (more,) bool, free for other users
    threshold: (2, rows, columns)
    marks:     the tiles to copy; none if the frame is a cut or not finite
    either:    the tiles copied from this frame or from the one before
    moved:     (rows, columns) bool, the tiles copied last
    """

    def __init__(self, size: tuple[int, int], tile: int, device: torch.device, *, more: int = 0) -> None:
        self.size, self.tile = size, tile
        rows, columns = (-(-extent // tile) for extent in size)
        self.rows, self.columns = rows, columns
        ends = 4 * RECORD_WORDS, 4 * RECORD_WORDS + rows * columns
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
        self._numbers = torch.zeros(TILE_NUMBERS, rows, columns, device=device)
        self._note = torch.zeros(_TURN.size, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._written = self._note.numpy().data
        self._turn = torch.zeros(_TURN.size, dtype=torch.uint8, device=device)

    def set_frame(self, frame: Tensor, noise: Noise, learned: Noise, *, rate: float, copy: bool) -> None:
        """Write the note for the next `mark` and `copy_marked`. Earlier ones must be done: they read the same note.

        frame:   (1, 3, H, W), float32 or bytes, the pixels of a channel contiguous
        noise:   the noise so far; learned: where the noise after this frame is written
        rate:    how fast the estimate of the sensor's noise follows
        copy:    whether `copy_marked` follows; if not, no tile is marked
        """
        start, whole, channel = frame.data_ptr(), frame.dtype == torch.uint8, frame.stride(1)
        aligned = self.size[1] % 4 == 0 and start % (4 if whole else 16) == 0 and channel % 4 == 0
        known = [part.data_ptr() for one in (noise, learned) for part in (one.sensor, one.tiles, one.last)]
        floats, pixels = (0, start) if whole else (start, 0)
        self._written[:] = _write_turn(floats, pixels, channel, *known, rate, copy, aligned)

    def mark(self, held: Tensor) -> None:
        """Find the tiles that changed.

        held: (1, 3, H, W), contiguous, on 16 bytes
        """
        self._post(self._note, self._turn)
        parameters = _MEASURE.pack(frame=self._frame(held), numbers=self._numbers)
        threads = 192 if self.tile > 16 else 96  # a warp has 32 blocks of a channel
        tiles = self.rows * self.columns
        launch("change.cu", "change_measure", self.device, tiles, parameters, early=True, threads=threads)
        parameters = _DECIDE.pack(
            turn=self._turn,
            numbers=self._numbers,
            threshold=self.threshold,
            words=self.words,
            mask=self.mask,
            moved=self.moved,
            total=self.marks.total,
            either=self.either.total,
            rows=self.rows,
            columns=self.columns,
        )
        launch("change_decide.cu", "change_decide", self.device, 1, parameters, early=True, threads=DECIDE_THREADS)

    def learn_noise(self, *, rank: int) -> None:
        """Update the sensor's noise, and compare the frame with the held one; only `report` needs the result.

        rank: of the tile that shows the noise, from the quietest, counted from 1
        """
        tiles = self.rows * self.columns
        parameters = _LEARN.pack(turn=self._turn, numbers=self._numbers, words=self.words, rank=rank - 1, tiles=tiles)
        launch("change_decide.cu", "change_learn", self.device, 1, parameters, threads=DECIDE_THREADS)

    def copy_marked(self, held: Tensor, motion: Tensor | None) -> None:
        """Copy the marked tiles of the frame into the held one.

        motion: (H, W), how much each pixel changed
        """
        aligned = self.size[1] % 4 == 0 and address(motion) % 16 == 0
        parameters = _TAKE.pack(
            frame=self._frame(held),
            marks=self.marks.packed,
            either=self.either.packed,
            moved=self.moved,
            motion=motion,
            motion_aligned=aligned,
        )
        launch("change.cu", "change_take", self.device, self.rows * self.columns, parameters, early=True)

    def report(self, to: Tensor) -> None:
        """Copy the record to the host; to: as many bytes of pinned memory."""
        self._post(self.record, to)

    def _post(self, start: Tensor, to: Tensor) -> None:
        parameters = _POST.pack(**{"from": start, "to": to, "words": start.numel() // 4})
        launch("change.cu", "change_post", self.device, 1, parameters, threads=POST_THREADS)

    def _frame(self, held: Tensor) -> bytes:
        return _FRAME.pack(turn=self._turn, held=held, height=self.size[0], width=self.size[1], tile=self.tile)
