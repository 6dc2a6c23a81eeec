"""Models that attend with levels of detail: `ops.hierarchical_attention` in the language model and in the vision tower.

`options.py` says how a model attends and which can, `language.py` and `tower.py` hook the two halves of a model,
`implementation.py` is what transformers calls, and `decode.py` is for answers that are decoded from a graph.
"""

from typing import Any

from texturevlm.vlm.attention.language import AttentionRun, attend_hierarchically
from texturevlm.vlm.attention.options import AttentionOptions, ModelAttention
from texturevlm.vlm.attention.tower import attend_in_tower


def attend(adapter: Any, attention: ModelAttention) -> AttentionRun | None:
    """Hook what does not attend densely of a bound adapter's model, until the adapter is restored.

    returns the run of the language model, if it is hooked
    """
    if attention.tower is not None:
        attend_in_tower(adapter, attention.tower)
    return None if attention.language is None else attend_hierarchically(adapter, attention.language)


__all__ = ["AttentionOptions", "AttentionRun", "ModelAttention", "attend", "attend_hierarchically", "attend_in_tower"]
