"""Models that attend with levels of detail: `ops.hierarchical` in the language model and in the vision tower.

`hook.py` has the hooks that users ask for, `options.py` says how a model attends and which can, `language.py` and
`tower.py` change the two halves of a model, `implementation.py` is what transformers calls, and `decode.py` is for
answers that are decoded from a graph.
"""

from texturevlm_lab.attention.hook import AttentionHook, LanguageAttention, VisionAttention
from texturevlm_lab.attention.language import AttentionRun, attend_hierarchically
from texturevlm_lab.attention.options import AttentionOptions
from texturevlm_lab.attention.tower import attend_in_tower

__all__ = [
    "AttentionHook",
    "AttentionOptions",
    "AttentionRun",
    "LanguageAttention",
    "VisionAttention",
    "attend_hierarchically",
    "attend_in_tower",
]
