"""Which tiles of an image changed: a summed-area table of marks on the device, see marks.cuh."""

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from texturevlm.cuda.struct import Layout

_MARKS = Layout("marks.cuh", "Marks")


@dataclass(frozen=True, eq=False)
class Marks:
    """total: (rows + 1, columns + 1) int32, how many tiles above and left of each corner are marked."""

    total: Tensor
    tile: int

    @cached_property
    def packed(self) -> bytes:
        """`struct Marks` of marks.cuh."""
        rows, columns = self.total.shape
        return _MARKS.pack(total=self.total, rows=rows - 1, columns=columns - 1, inverse=1 / self.tile)


def pack_marks(marks: Marks | None) -> bytes | None:
    """`struct Marks`; None: everything changed."""
    return None if marks is None else marks.packed
