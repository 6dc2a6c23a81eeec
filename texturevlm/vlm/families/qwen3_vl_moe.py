"""Qwen3-VL with a mixture of experts: the tower of Qwen3-VL.

Which experts run depends on values, which a CUDA graph cannot read, so nothing is captured.
"""

from texturevlm.vlm.families.qwen3_vl import Qwen3VL


class Qwen3VLMoe(Qwen3VL):
    captured = False
