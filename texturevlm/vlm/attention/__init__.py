"""Models that attend with levels of detail: `ops.hierarchical` in the language model and in the vision tower.

`hook.py` has the hooks that users ask for, `options.py` says how a model attends and which can, `language.py` and
`tower.py` change the two halves of a model, `implementation.py` is what transformers calls, and `decode.py` is for
answers that are decoded from a graph.
"""

from texturevlm.vlm.attention.hook import AttentionHook, LanguageAttention, VisionAttention
from texturevlm.vlm.attention.language import AttentionRun, attend_hierarchically
from texturevlm.vlm.attention.options import AttentionOptions
from texturevlm.vlm.attention.tower import attend_in_tower

__all__ = [
    "AttentionHook",
    "AttentionOptions",
    "AttentionRun",
    "LanguageAttention",
    "VisionAttention",
    "attend_hierarchically",
    "attend_in_tower",
]
