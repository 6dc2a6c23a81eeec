"""DyRate: while an answer is decoded, how many visual tokens stay follows from the attention distribution.

Published: a trained predictor gives the rate from the attention distribution; there is no code.
Ours, without training: as many tokens stay as the new token's attention is spread over, the exponential of its entropy
over the visual tokens, and never fewer than the budget. Those with the highest attention stay; keys and values of the
others leave the cache of every layer.
"""

from __future__ import annotations

from texturevlm.reduce.context import Context


def spread(context: Context, keep: int) -> int:
    """How many tokens the last token's attention is spread over, at least `keep`. Needs asked."""
    asked = context.need("asked")[-1].double()
    share = asked / asked.sum().clamp(min=1e-30)
    entropy = -(share * share.clamp(min=1e-30).log()).sum()
    return min(len(context), max(keep, round(float(entropy.exp()))))
