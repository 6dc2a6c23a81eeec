"""Cover the marked cells of a grid with as few squares of one side as a quick greedy search finds.

Shelves: the first row with a marked cell begins one; from left to right, a square starts at each marked column that the
last one left, and slides down to its own first marked cell. Lines of text are covered tightly that way, wherever they
stand, and blank space costs nothing. A row of cells is a Python integer with one bit per cell, so that a square costs
a few operations on whole rows.
"""

from __future__ import annotations

import math
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from texturevlm.check import check_count
from texturevlm.cuda import THREADS, Layout, constants, launch

MOST_CELLS, MOST_TOKENS, KEYS = constants("cover.cu", "MOST_CELLS", "MOST_TOKENS", "KEYS")
OF_INK, OF_REST, OF_BLANK, GAINS_WORDS = constants("cover.cu", "OF_INK", "OF_REST", "OF_BLANK", "GAINS_WORDS")
_COVER = Layout("cover.cu", "Cover")
# Shares that a round of the bisection tries at once, and rounds. Few images leave a large GPU idle, so most of what is
# tried costs nothing; many images fill it, and fewer attempts in more rounds take less time. The result is the same.
SHARES, SHARES_OF_MANY = (32, 2), (4, 5)
MANY = 16  # images, at which the second fills an H200 (132 multiprocessors × 8 blocks, about 7 scales per image)
# Threads of a block that searches squares, which one warp of it does. Of few images all warps of a block help to read
# the cells; of many, other blocks work meanwhile: 16 of 64 threads fit a multiprocessor, but 4 of 256 (56 registers).
SEARCHING, SEARCHING_OF_MANY = 256, 64


class Footprints(NamedTuple):
    """Footprints as in Allocation: centre, ddx, ddy (B, K, 2), score and valid (B, K)."""

    centre: Tensor
    ddx: Tensor
    ddy: Tensor
    score: Tensor
    valid: Tensor


def empty_footprints(batch: int, budget: int, device: torch.device) -> Footprints:
    """Footprints for a kernel to write, by two allocations."""
    memory = torch.empty((7, batch, budget), device=device)
    centre, ddx, ddy = (memory[2 * part : 2 * part + 2].view(batch, budget, 2) for part in range(3))
    return Footprints(centre, ddx, ddy, memory[6], torch.empty((batch, budget), dtype=torch.bool, device=device))


def rows_of(mask: Tensor | np.ndarray) -> list[int]:
    """A mask (h, w) as one integer per row, bit x for column x."""
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


def cover_limit(grid: tuple[int, int], budget: int) -> str | None:
    """Why the kernels cannot take this grid or budget; None if they can."""
    if max(grid) > MOST_CELLS:
        return f"the kernels take up to {MOST_CELLS} cells along a side, not {max(grid)}"
    return f"the kernels take up to {MOST_TOKENS} tokens, not {budget}" if budget > MOST_TOKENS else None


def layers_cuda(
    mass: Tensor,
    legible_scale: Tensor,
    ink: Tensor,
    *,
    size: tuple[int, int],
    budget: int,
    patch: int,
    floor_budget: int | None,
    worth_it: int,
    native: float,
    skipped: Tensor | None = None,
) -> Footprints:
    """`layers`, or `fit` without a floor_budget, for all images at once, without uploads and without waiting.

    By cover.cu: eight launches of static shapes, eleven for MANY images, four for one layer.

    mass, legible_scale, ink: (B, h, w), see Relevance
    floor_budget: how many tokens the coarse layer takes for the whole image
    worth_it:     what a second layer must add at least, in units of 2⁻³⁰
    native:       the largest width of a footprint, in patches, that counts as native resolution
    skipped:      (B,) bool, images that get no tokens
    """
    batch, rows, columns = mass.shape
    mass, legible_scale, ink = mass.float().contiguous(), legible_scale.float().contiguous(), ink.contiguous()
    skipped = None if skipped is None else skipped.contiguous()
    cell = (size[0] / rows, size[1] / columns)
    finest = max(1, math.floor(patch / max(cell) + 1e-6))
    coarsest = max(finest, rows, columns)
    scales = 0 if floor_budget is None else _scales(finest, coarsest)
    spans, words = coarsest - finest + 1, -(-columns // 32)
    parts, rounds = SHARES if batch < MANY else SHARES_OF_MANY
    searching = SEARCHING if batch < MANY else SEARCHING_OF_MANY
    lines, attempts = batch * rows * words, batch * scales * parts
    room = {
        "histogram": batch * scales * KEYS,  # first, since four counts are read at once
        "bits": lines,
        "inked": batch,
        "counts": 3 * batch * spans,
        "squares": 2 * batch * spans * budget,
        "keys": lines * scales * 16,  # two bytes each
        "highest": lines * scales,  # two of two bytes each
        "gains": lines * scales * 32,
        "totals": batch * (scales + 1),
        "reached": rounds * attempts,
        "laid": attempts,
        "above": attempts * budget,
    }
    work = torch.empty(sum(room.values()), dtype=torch.int32, device=mass.device)
    places = dict(zip(room, accumulate(room.values(), lambda at, count: at + 4 * count, initial=work.data_ptr())))
    tokens = empty_footprints(batch, budget, mass.device)
    fixed: dict[str, Any] = {"mass": mass, "legible_scale": legible_scale, "ink": ink, "skipped": skipped, "cuts": None}
    fixed |= places | tokens._asdict() | {"cell_height": cell[0], "cell_width": cell[1]}
    fixed |= {"batch": batch, "rows": rows, "columns": columns, "height": size[0], "width": size[1], "patch": patch}
    fixed |= {"budget": budget, "floor_budget": floor_budget or 1, "finest": finest, "coarsest": coarsest}
    fixed |= {"native": math.floor(native * patch / max(cell)), "scales": scales, "worth_it": worth_it}
    fixed |= {"parts": parts, "rounds": rounds}
    parameters: dict[tuple[int, int], bytes] = {}

    def start(name: str, blocks: int | tuple[int, int], *, stage: int = OF_INK, turn: int = 0) -> None:
        if (stage, turn) not in parameters:  # five launches take the same
            parameters[stage, turn] = _COVER.pack(**fixed, stage=stage, round=turn)
        threads = searching if name in ("cover_spans", "cover_reach") else THREADS
        launch(
            "cover.cu", name, mass.device, blocks, parameters[stage, turn], early=name != "cover_begin", threads=threads
        )

    start("cover_begin", min(-(-lines // 8), 1024))
    start("cover_spans", (spans, batch))
    if scales:
        start("cover_gains", (-(-rows * words // GAINS_WORDS) * scales, batch))
        for turn in range(rounds):
            start("cover_reach", (scales * parts, batch), turn=turn)
        start("cover_spans", (spans, batch), stage=OF_REST)
    start("cover_spans", (spans, batch), stage=OF_BLANK)
    start("cover_tokens", batch)
    return tokens


def _scales(finest: int, coarsest: int) -> int:
    """How many scales a fine layer may have, a third of an octave apart, for any image."""
    return 1 + math.ceil(3 * math.log2(coarsest / finest) + 1e-9)
