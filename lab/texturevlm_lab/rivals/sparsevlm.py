"""SparseVLM (Zhang and others, 2024): what the relevant words of the question attend to; the rest is partly recycled.

Published: raters are the text tokens whose mean softmax(V·Tᵀ) is above average. The score of a visual token is its mean
attention from the raters. The best stay; the best 30% of the dropped ones are clustered into a tenth as many tokens.
It acts after layers 2, 6 and 15 of 32.
Ours: raters are found anew at each stage, from hidden states. A cluster is a mean with + log(size), not a sum. At most
half of the budget is clusters.
"""

from __future__ import annotations

import torch
from torch import Tensor

from texturevlm_lab.rivals.context import Context
from texturevlm_lab.rivals.density_peaks import cluster
from texturevlm_lab.rivals.method import Method, ReduceStage
from texturevlm_lab.rivals.reduction import DROPPED, Reduction
from texturevlm_lab.rivals.select import top

RECYCLED, TOKENS_PER_CLUSTER = 0.3, 10


def rated(context: Context, keep: int) -> Reduction:
    """Keep what the raters attend to and recycle some of the rest. Needs asked and question."""
    order = top(context.need("asked")[raters(context)].mean(0), len(context))
    clusters = cluster_count(len(context), keep)
    best = order[: keep - clusters]
    recycled = order[len(best) :][: max(clusters, round(RECYCLED * (len(context) - len(best))))]
    goes = torch.full_like(order, DROPPED)
    goes[best] = best
    if not clusters:
        return Reduction.merging(best, goes)
    centres, belongs = cluster(context.features[recycled], clusters)
    goes[recycled] = recycled[belongs]
    return Reduction.merging(torch.cat([best, recycled[centres]]), goes)


def raters(context: Context) -> Tensor:
    """(T,): the tokens of the question that are about what is seen."""
    scores = context.features.float() @ context.need("question").float().mT
    mean = scores.softmax(-1).mean(0)
    return mean >= mean.mean()


def cluster_count(count: int, keep: int) -> int:
    """Clusters among `keep` tokens, so that each stands for TOKENS_PER_CLUSTER of the recycled share of the rest."""
    each = RECYCLED / TOKENS_PER_CLUSTER
    return min(keep // 2, round(each * (count - keep) / (1 - each)))


SPARSEVLM = Method(tuple(ReduceStage(rated, "llm", ("asked", "question"), layer / 32) for layer in (2, 6, 15)))
