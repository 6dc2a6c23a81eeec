"""Cover the marked cells of a grid with as few squares of one side as a quick greedy search finds.

Shelves: the first row with a marked cell begins one; from left to right, a square starts at each marked column that the
last one left, and slides down to its own first marked cell. Lines of text are covered tightly that way, wherever they
stand, and blank space costs nothing. A row of cells is a Python integer, a bit a cell, so that a square costs a few
operations on whole rows.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from texturevlm.check import check_count


def rows_of(mask: Tensor | np.ndarray) -> list[int]:
    """A mask (h, w) as one integer a row, bit x for column x."""
    cells = np.asarray(mask.cpu() if isinstance(mask, Tensor) else mask, dtype=bool)
    packed = np.packbits(cells, axis=1, bitorder="little")
    data, width = packed.tobytes(), packed.shape[1]
    return [int.from_bytes(data[start : start + width], "little") for start in range(0, len(data), width)]


def cover(rows: list[int], side: int | tuple[int, int], most: int) -> list[tuple[int, int]]:
    """Squares of `side` cells, or rectangles of (tall, wide) cells, that hold every marked cell.

    rows:   from `rows_of`; not changed
    most:   stop as soon as there are more squares than this
    returns (row, column) of each square's first cell; more than `most` of them means that they do not suffice
    """
    tall, wide = side if isinstance(side, tuple) else (side, side)
    check_count("cover", "side", min(tall, wide), 1)
    rows = list(rows)
    squares: list[tuple[int, int]] = []
    full = (1 << wide) - 1
    for top in range(len(rows)):
        if not rows[top]:
            continue
        shelf = 0
        for row in rows[top : top + tall]:
            shelf |= row
        while shelf:
            column = (shelf & -shelf).bit_length() - 1
            window = full << column
            first = top
            while not rows[first] & window:
                first += 1
            squares.append((first, column))
            if len(squares) > most:
                return squares
            for row in range(first, min(first + tall, len(rows))):
                rows[row] &= ~window
            shelf &= ~window
    return squares
