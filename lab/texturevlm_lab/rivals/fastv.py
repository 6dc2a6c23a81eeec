"""FastV (Chen and others, 2024): after an early layer, what the last token attends to.

Published: after layer 2 of 32 the tokens with the highest attention from the last token of the prompt, mean over heads,
stay.
Ours: the layer is the same share of any depth, 2 of 32, 1 of 6. The attention is that of the layer just before the
drop, behind its softmax, over the whole prompt.
"""

from __future__ import annotations

from texturevlm_lab.rivals.context import Context
from texturevlm_lab.rivals.method import Method, ReduceStage
from texturevlm_lab.rivals.reduction import Reduction
from texturevlm_lab.rivals.select import top


def last_token_attention(context: Context, keep: int) -> Reduction:
    """Keep what the last token of the question attends to. Needs asked."""
    return Reduction.keeping(top(context.need("asked")[-1], keep), len(context))


def attended_after(share: float) -> ReduceStage:
    """Drop by that after a share of the layers, which several methods do at their end."""
    return ReduceStage(last_token_attention, "llm", ("asked",), share)


FASTV = Method((attended_after(2 / 32),))
