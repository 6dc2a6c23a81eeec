"""Squares over the cells that matter by our kernels (cover.cu): eight launches of static shapes, four for one layer."""

import math
import struct

import torch
from torch import Tensor

from texturevlm.cuda.launch import launch
from texturevlm.ops.select import Tokens

MOST_CELLS, MOST_TOKENS = 288, 1024  # as in cover.cu
KEYS, SHARES, WORDS_A_BLOCK = 4096, 32, 64
OF_INK, OF_REST, OF_BLANK = range(3)
_PARAMETERS = struct.Struct("=20Q2d15i4x")


def no_kernel_because(grid: tuple[int, int], budget: int) -> str | None:
    """Why the kernels cannot take maps of this grid and so many tokens; None if they can."""
    if max(grid) > MOST_CELLS:
        return f"the kernels take up to {MOST_CELLS} cells along a side, not {max(grid)}"
    return f"the kernels take up to {MOST_TOKENS} tokens, not {budget}" if budget > MOST_TOKENS else None


def layers_cuda(
    mass: Tensor,
    half: Tensor,
    ink: Tensor,
    *,
    size: tuple[int, int],
    budget: int,
    patch: int,
    floor_budget: int | None,
    worth_it: int,
    native: float,
    skipped: Tensor | None = None,
) -> Tokens:
    """`layers`, or `fit` without a floor_budget, for all images at once: nothing is uploaded and nothing waited for.

    mass, half, ink: (B, h, w), see Relevance
    floor_budget:    how many tokens the coarse layer would take for the whole image
    worth_it:        what a second layer must add, of 2³⁰
    native:          a footprint so many patches wide is as fine as the pixels
    skipped:         (B,) bool, images that get no tokens
    """
    batch, rows, columns = mass.shape
    mass, half, ink = mass.float().contiguous(), half.float().contiguous(), ink.contiguous()
    cell = (size[0] / rows, size[1] / columns)
    finest = max(1, math.floor(patch / max(cell) + 1e-6))
    coarsest = max(finest, rows, columns)
    as_fine = math.floor(native * patch / max(cell))
    scales = 0 if floor_budget is None else _scales(finest, coarsest)
    spans, words = coarsest - finest + 1, -(-columns // 32)
    lines, attempts = batch * rows * words, batch * scales * SHARES
    room = {
        "bits": lines,
        "inked": batch,
        "counts": 3 * batch * spans,
        "squares": 2 * batch * spans * budget,
        "keys": lines * scales * 16,  # two bytes each
        "gains": lines * scales * 32,
        "histogram": batch * scales * KEYS,
        "totals": batch * (scales + 1),
        "reached": 2 * attempts,
        "laid": attempts,
        "above": attempts * budget,
    }
    work = torch.empty(sum(room.values()), dtype=torch.int32, device=mass.device)
    places, place = [], work.data_ptr()
    for count in room.values():
        places.append(place)
        place += 4 * count
    memory = mass.new_empty((7, batch, budget))
    centre, ddx, ddy = (memory[2 * part : 2 * part + 2].view(batch, budget, 2) for part in range(3))
    tokens = Tokens(centre, ddx, ddy, memory[6], torch.empty((batch, budget), dtype=torch.bool, device=mass.device))
    inputs = [0 if one is None else one.data_ptr() for one in (mass, half, ink, skipped)]
    numbers = (
        batch,
        rows,
        columns,
        *size,
        patch,
        budget,
        floor_budget or 1,
        finest,
        coarsest,
        as_fine,
        scales,
        worth_it,
    )

    def start(name: str, blocks: int | tuple[int, int], *, stage: int = OF_INK, second: bool = False) -> None:
        outputs = [tensor.data_ptr() for tensor in tokens]
        parameters = _PARAMETERS.pack(*inputs, *places, *outputs, *cell, *numbers, stage, second)
        launch("cover.cu", name, mass.device, blocks, parameters, early=name != "cover_begin", SCALAR=32)

    start("cover_begin", min(-(-lines // 8), 1024))
    start("cover_spans", (spans, batch))
    if scales:
        start("cover_gains", (-(-rows * words // WORDS_A_BLOCK) * scales, batch))
        start("cover_reach", (scales * SHARES, batch))
        start("cover_reach", (scales * SHARES, batch), second=True)
        start("cover_spans", (spans, batch), stage=OF_REST)
    start("cover_spans", (spans, batch), stage=OF_BLANK)
    start("cover_tokens", batch)
    return tokens


def _scales(finest: int, coarsest: int) -> int:
    """How many scales a fine layer may have, a third of an octave apart, whatever the image."""
    return 1 + math.ceil(3 * math.log2(coarsest / finest) + 1e-9)
