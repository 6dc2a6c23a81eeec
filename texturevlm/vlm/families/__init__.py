"""The families: one line per model_type, one file per family.

`qwen.py` and `projected.py` hold what several families share; `../adapter.py` is the contract of all.
"""

from __future__ import annotations

from texturevlm.vlm.adapter import Adapter
from texturevlm.vlm.families.encoders import ClipEncoder, Encoder
from texturevlm.vlm.families.gemma3 import Gemma3
from texturevlm.vlm.families.glm4v import Glm4V
from texturevlm.vlm.families.internvl import InternVL
from texturevlm.vlm.families.llava import Llava, LlavaOnevision
from texturevlm.vlm.families.qwen2_5_vl import Qwen2_5_VL
from texturevlm.vlm.families.qwen2_vl import Qwen2VL
from texturevlm.vlm.families.qwen3_vl import Qwen3VL
from texturevlm.vlm.families.qwen3_vl_moe import Qwen3VLMoe
from texturevlm.vlm.families.smolvlm import SmolVLM

# model_type of a config → the adapter, and transformers' class of the model
FAMILIES: dict[str, tuple[type[Adapter], str]] = {
    "qwen3_vl": (Qwen3VL, "Qwen3VLForConditionalGeneration"),
    "qwen3_vl_moe": (Qwen3VLMoe, "Qwen3VLMoeForConditionalGeneration"),
    "qwen2_5_vl": (Qwen2_5_VL, "Qwen2_5_VLForConditionalGeneration"),
    "qwen2_vl": (Qwen2VL, "Qwen2VLForConditionalGeneration"),
    "glm4v": (Glm4V, "Glm4vForConditionalGeneration"),
    "glm4v_moe": (Glm4V, "Glm4vMoeForConditionalGeneration"),
    "internvl": (InternVL, "InternVLForConditionalGeneration"),
    "gemma3": (Gemma3, "Gemma3ForConditionalGeneration"),
    "smolvlm": (SmolVLM, "SmolVLMForConditionalGeneration"),
    "llava": (Llava, "LlavaForConditionalGeneration"),
    "llava_onevision": (LlavaOnevision, "LlavaOnevisionForConditionalGeneration"),
}
ENCODERS: dict[str, type[Adapter]] = {
    "clip": ClipEncoder,
    "clip_vision_model": ClipEncoder,
    "siglip": Encoder,
    "siglip_vision_model": Encoder,
    "siglip2": Encoder,
    "siglip2_vision_model": Encoder,
}
