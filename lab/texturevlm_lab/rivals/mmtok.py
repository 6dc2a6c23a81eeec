"""MMTok (Dong and others, 2025): tokens that cover both the question and the image.

Published: greedy maximum coverage. Each token of the question, and each visual token, is covered by the most similar
chosen token; similarities are softmaxes over the visual tokens. Both sums are maximised together.
Ours: the temperatures, and equal weight for both sums; the question's embeddings are those of the language model.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from texturevlm_lab.rivals.context import Context, unit
from texturevlm_lab.rivals.method import Method, ReduceStage
from texturevlm_lab.rivals.reduction import Reduction

TEXT_TEMPERATURE, VISION_TEMPERATURE = 0.02, 0.2


def coverage(context: Context, keep: int) -> Reduction:
    """Choose by coverage. Needs question."""
    seen = context.directions
    words = (unit(context.need("question")) @ seen.mT / TEXT_TEMPERATURE).softmax(-1)
    whole = (seen @ seen.mT / VISION_TEMPERATURE).softmax(-1)
    return Reduction.keeping(greedy_cover([words / len(words), whole / len(whole)], keep), len(context))


def greedy_cover(tables: list[Tensor], count: int) -> Tensor:
    """(count,): columns of tables (·, N), each of which adds most to the sum over rows of the highest chosen entry."""
    covered = [table.new_zeros(len(table), 1) for table in tables]
    taken = torch.zeros(tables[0].shape[1], dtype=torch.bool, device=tables[0].device)
    chosen: list[Tensor] = []
    for _ in range(count):
        gain = torch.stack([(table - own).clamp(min=0).sum(0) for table, own in zip(tables, covered)]).sum(0)
        best = gain.masked_fill(taken, -math.inf).argmax()
        chosen.append(best)
        taken[best] = True
        covered = [torch.maximum(own, table[:, best, None]) for table, own in zip(tables, covered)]
    return torch.stack(chosen)


MMTOK = Method((ReduceStage(coverage, needs=("question",)),))
