"""Models that attend with levels of detail: `ops.hierarchical_attention` in the language model and in the vision tower.

`options.py` says how a model attends and which can, `language.py` and `tower.py` hook the two halves of a model, and
`implementation.py` is what transformers calls.
"""

from typing import Any

from texturevlm.vlm.attention.language import attend_hierarchically
from texturevlm.vlm.attention.options import AttentionOptions, ModelAttention
from texturevlm.vlm.attention.tower import attend_in_tower


def attend(adapter: Any, attention: ModelAttention) -> None:
    """Hook what does not attend densely of a bound adapter's model, until the adapter is restored."""
    if attention.language is not None:
        attend_hierarchically(adapter, attention.language)
    if attention.tower is not None:
        attend_in_tower(adapter, attention.tower)


__all__ = ["AttentionOptions", "ModelAttention", "attend", "attend_hierarchically", "attend_in_tower"]
