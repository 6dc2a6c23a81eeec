"""The families: one line per model_type."""

from __future__ import annotations

from texturevlm.vlm.adapter import Adapter
from texturevlm.vlm.encoders import ClipEncoder, Encoder
from texturevlm.vlm.llava import Llava, LlavaOnevision
from texturevlm.vlm.qwen2_5_vl import Qwen2_5_VL
from texturevlm.vlm.qwen2_vl import Qwen2VL
from texturevlm.vlm.qwen3_vl import Qwen3VL

# model_type of a config → the adapter, and transformers' class of the model
FAMILIES: dict[str, tuple[type[Adapter], str]] = {
    "qwen3_vl": (Qwen3VL, "Qwen3VLForConditionalGeneration"),
    "qwen3_vl_moe": (Qwen3VL, "Qwen3VLMoeForConditionalGeneration"),
    "qwen2_5_vl": (Qwen2_5_VL, "Qwen2_5_VLForConditionalGeneration"),
    "qwen2_vl": (Qwen2VL, "Qwen2VLForConditionalGeneration"),
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
