"""Square covers of the inked cells by our kernels (cover.cu): eight launches of static shapes, four for one layer."""

import math
from itertools import accumulate

import torch
from torch import Tensor

from texturevlm.cuda.launch import launch
from texturevlm.cuda.struct import Layout, constants
from texturevlm.ops.select import Footprints
from texturevlm.ops.select_kernel import empty_footprints

MOST_CELLS, MOST_TOKENS, KEYS, SHARES = constants("cover.cu", "MOST_CELLS", "MOST_TOKENS", "KEYS", "SHARES")
OF_INK, OF_REST, OF_BLANK, GAINS_WORDS = constants("cover.cu", "OF_INK", "OF_REST", "OF_BLANK", "GAINS_WORDS")
_COVER = Layout("cover.cu", "Cover")


def no_kernel_because(grid: tuple[int, int], budget: int) -> str | None:
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
    places = dict(zip(room, accumulate(room.values(), lambda at, count: at + 4 * count, initial=work.data_ptr())))
    tokens = empty_footprints(batch, budget, mass.device)
    fixed = {
        "mass": mass,
        "legible_scale": legible_scale,
        "ink": ink,
        "skipped": skipped,
        **places,
        **tokens._asdict(),
        "cell_height": cell[0],
        "cell_width": cell[1],
        "batch": batch,
        "rows": rows,
        "columns": columns,
        "height": size[0],
        "width": size[1],
        "patch": patch,
        "budget": budget,
        "floor_budget": floor_budget or 1,
        "finest": finest,
        "coarsest": coarsest,
        "native": math.floor(native * patch / max(cell)),
        "scales": scales,
        "worth_it": worth_it,
    }

    parameters: dict[tuple[int, bool], bytes] = {}

    def start(name: str, blocks: int | tuple[int, int], *, stage: int = OF_INK, second: bool = False) -> None:
        if (stage, second) not in parameters:  # five of eight launches take the same
            parameters[stage, second] = _COVER.pack(**fixed, stage=stage, second=second)
        launch("cover.cu", name, mass.device, blocks, parameters[stage, second], early=name != "cover_begin")

    start("cover_begin", min(-(-lines // 8), 1024))
    start("cover_spans", (spans, batch))
    if scales:
        start("cover_gains", (-(-rows * words // GAINS_WORDS) * scales, batch))
        start("cover_reach", (scales * SHARES, batch))
        start("cover_reach", (scales * SHARES, batch), second=True)
        start("cover_spans", (spans, batch), stage=OF_REST)
    start("cover_spans", (spans, batch), stage=OF_BLANK)
    start("cover_tokens", batch)
    return tokens


def _scales(finest: int, coarsest: int) -> int:
    """How many scales a fine layer may have, a third of an octave apart, for any image."""
    return 1 + math.ceil(3 * math.log2(coarsest / finest) + 1e-9)
