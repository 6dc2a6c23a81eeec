"""The families: one line per model_type.

`qwen.py` holds what the Qwen and GLM families share, and `qwen_vl.py` what each of them has beside that. `projected.py`
has the families with a ViT and a projector, `vit.py` the vision transformers, also by themselves (ENCODERS). The
contract of all is `../adapter.py`. A package adds a family with an entry point in the group `texturevlm.families`,
named after the model_type of its config.
"""

from __future__ import annotations

from texturevlm.registry import Registry
from texturevlm.vlm.adapter import Adapter
from texturevlm.vlm.families.vit import ClipEncoder, Encoder

_QWEN, _PROJECTED = "texturevlm.vlm.families.qwen_vl:", "texturevlm.vlm.families.projected:"

# model_type of a config → the adapter, which is imported when a model of it comes
FAMILIES: Registry[type[Adapter]] = Registry(
    "model",
    "texturevlm.families",
    {
        "qwen3_vl": f"{_QWEN}Qwen3VL",
        "qwen3_vl_moe": f"{_QWEN}Qwen3VLMoe",
        "qwen2_5_vl": f"{_QWEN}Qwen2_5_VL",
        "qwen2_vl": f"{_QWEN}Qwen2VL",
        "glm4v": f"{_QWEN}Glm4V",
        "glm4v_moe": f"{_QWEN}Glm4VMoe",
        "internvl": f"{_PROJECTED}InternVL",
        "gemma3": f"{_PROJECTED}Gemma3",
        "smolvlm": f"{_PROJECTED}SmolVLM",
        "llava": f"{_PROJECTED}Llava",
        "llava_onevision": f"{_PROJECTED}LlavaOnevision",
    },
    fits=lambda given: isinstance(given, type) and issubclass(given, Adapter),
)
ENCODERS: dict[str, type[Adapter]] = {
    f"{family}{alone}": kind
    for family, kind in (("clip", ClipEncoder), ("siglip", Encoder), ("siglip2", Encoder))
    for alone in ("", "_vision_model")
}
