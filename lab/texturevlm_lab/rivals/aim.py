"""AIM (Zhong and others, 2024): ToMe behind the projector, then PageRank on the attention of the language model.

Published: merge similar tokens down to a quarter. From layer 14 on, rank the visual tokens by five steps of PageRank on
softmax(logits / 0.1), root mean square over the heads, and keep a linearly falling share, layer by layer.
Ours: three layers drop instead of eight, and each stage keeps the same share. The power iteration streams: the
attention matrix is computed again in blocks at each step.
"""

from __future__ import annotations

import torch

from texturevlm_lab.rivals.attention import column_sums
from texturevlm_lab.rivals.context import Context
from texturevlm_lab.rivals.method import Method, ReduceStage
from texturevlm_lab.rivals.reduction import Reduction
from texturevlm_lab.rivals.select import top
from texturevlm_lab.rivals.tome import merge_pairs

STEPS, TEMPERATURE = 5, 0.1


def page_rank(context: Context, keep: int) -> Reduction:
    """Keep the tokens with the highest rank. Needs keys and queries."""
    keys, queries = context.need("keys"), context.need("queries")
    rank = torch.full((len(context),), 1 / len(context), device=keys.device)
    scale = keys.shape[-1] ** -0.5 / TEMPERATURE
    for _ in range(STEPS):
        rank = column_sums(queries, keys, scale=scale, weights=rank, quadratic=True)
        rank = rank / rank.sum()
    return Reduction.keeping(top(rank, keep), len(context))


AIM = Method(
    (
        ReduceStage(merge_pairs, needs=("keys",)),
        *(ReduceStage(page_rank, "llm", ("keys", "queries"), layer / 32) for layer in (14, 18, 21)),
    )
)
