"""Which tiles of an image changed, as the kernels take it: sums of marks on the device, see marks.cuh."""

import struct
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

_MARKS = struct.Struct("=Q2if4x")
NO_MARKS = bytes(_MARKS.size)  # everything is made


@dataclass(frozen=True, eq=False)
class Marks:
    """total: (rows + 1, columns + 1) int32, how many tiles above and left of each corner are marked."""

    total: Tensor
    tile: int

    @cached_property
    def packed(self) -> bytes:
        """`struct Marks` of marks.cuh."""
        rows, columns = self.total.shape
        return _MARKS.pack(self.total.data_ptr(), rows - 1, columns - 1, 1 / self.tile)


def packed(marks: Marks | None) -> bytes:
    """`struct Marks`; None: everything is made."""
    return NO_MARKS if marks is None else marks.packed
