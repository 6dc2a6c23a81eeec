"""FastV (Chen and others, 2024) and PyramidDrop (Xing and others, 2024): what the last token attends to.

Published, FastV: after layer 2 the tokens with the highest attention from the last token of the prompt, mean over
heads, stay. PyramidDrop: in three stages, after a quarter, a half and three quarters of the layers, by the query of the
last token of the instruction times the keys; each keeps half.
Ours: FastV's layer is the same share of any depth, 2 of 32, 1 of 6. The share per stage follows from the budget; at an
eighth it is PyramidDrop's half. Both take the attention of the layer just before the drop, behind its softmax.
"""

from __future__ import annotations

from texturevlm.reduce.context import Context
from texturevlm.reduce.reduction import Reduction
from texturevlm.reduce.select import top


def last_token_attention(context: Context, keep: int) -> Reduction:
    """Keep what the last token of the question attends to. Needs asked."""
    return Reduction.keeping(top(context.need("asked")[-1], keep), len(context))
