"""The families: one line per model_type, one file per family.

`qwen.py` and `projected.py` hold what several families share; `../adapter.py` is the contract of all.
"""

from __future__ import annotations

from texturevlm.vlm.adapter import Adapter
from texturevlm.vlm.families.projected import Gemma3, InternVL, Llava, LlavaOnevision, SmolVLM
from texturevlm.vlm.families.qwen_vl import Glm4V, Qwen2_5_VL, Qwen2VL, Qwen3VL, Qwen3VLMoe
from texturevlm.vlm.families.vit import ClipEncoder, Encoder

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
