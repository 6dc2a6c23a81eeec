"""VisPruner (Zhang and others, 2024): important tokens by attention, and others that are least redundant.

Published: half of the budget goes to the highest attention in the tower. The rest is thinned in rounds: split
alternately in raster order, up to 8 tokens per round that have the most similar partner in the other half are dropped.
Ours: a round drops an eighth of what is still too many if that is more than 8, so that thousands of tokens need few
rounds.
"""

from __future__ import annotations

import torch

from texturevlm_lab.rivals.context import Context
from texturevlm_lab.rivals.method import Method, ReduceStage
from texturevlm_lab.rivals.reduction import Reduction
from texturevlm_lab.rivals.select import nearest, top

IMPORTANT = 0.5  # share of the budget
PER_ROUND, SHARE_PER_ROUND = 8, 1 / 8


def important_and_diverse(context: Context, keep: int) -> Reduction:
    """Keep the most attended to and thin out the rest. Needs received."""
    important = top(context.need("received"), max(1, round(keep * IMPORTANT)))
    is_important = torch.zeros(len(context), dtype=torch.bool, device=important.device)
    is_important[important] = True
    left = context.raster[~is_important[context.raster]]
    wanted = keep - len(important)
    while (excess := len(left) - wanted) > 0:
        first, second = left[0::2], left[1::2]
        dropped = min(excess, len(first), max(PER_ROUND, int(excess * SHARE_PER_ROUND)))
        if len(second):
            likeness = nearest(context.directions[first], context.directions[second])[0]
            first = first[likeness.argsort(stable=True)[: len(first) - dropped]]
        else:
            first = first[: len(first) - dropped]
        stay = torch.zeros(len(context), dtype=torch.bool, device=left.device)
        stay[first], stay[second] = True, True
        left = left[stay[left]]
    return Reduction.keeping(torch.cat([important, left]), len(context))


VISPRUNER = Method((ReduceStage(important_and_diverse, needs=("received",)),))
