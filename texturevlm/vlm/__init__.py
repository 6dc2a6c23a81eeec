"""Patches → a Hugging Face model, at their true positions: one file per family, through hooks and public arguments."""

from typing import Any

from torch import nn

from texturevlm.vlm.adapter import ATTRIBUTE, Adapter
from texturevlm.vlm.captured import FixedBudget
from texturevlm.vlm.encoders import ClipEncoder, Encoder
from texturevlm.vlm.llava import Llava, LlavaOnevision
from texturevlm.vlm.qwen2_5_vl import Qwen2_5_VL
from texturevlm.vlm.qwen3_vl import Qwen3VL
from texturevlm.vlm.tokens import Tokens
from texturevlm.vlm.weighted import grid_weights, own_grid, weighted

OLDEST = (5, 10)  # of transformers
FAMILIES: dict[str, type[Adapter]] = {
    "qwen3_vl": Qwen3VL,
    "qwen2_5_vl": Qwen2_5_VL,
    "llava": Llava,
    "llava_onevision": LlavaOnevision,
    "clip": ClipEncoder,
    "clip_vision_model": ClipEncoder,
    "siglip": Encoder,
    "siglip_vision_model": Encoder,
    "siglip2": Encoder,
    "siglip2_vision_model": Encoder,
}


def adapt(model: nn.Module, processor: Any = None) -> Any:
    """The adapter of a model: the one that it has, or a new one. `restore` removes it.

    model:     of one of the FAMILIES
    processor: its processor, or its tokenizer, or None: then inputs are assembled from token ids
    """
    family = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    if family not in FAMILIES:
        raise ValueError(f"adapt: model must be one of {', '.join(FAMILIES)}, got {family}")
    _check_transformers()
    adapter: Adapter | None = getattr(model, ATTRIBUTE, None)
    if adapter is None:
        return FAMILIES[family](model, processor)
    if processor is not None:
        adapter.use(processor)
    return adapter


def _check_transformers() -> None:
    """Precomputed positions exist since 5.10."""
    from transformers import __version__

    if tuple(int(part) for part in __version__.split(".")[:2]) < OLDEST:
        raise ImportError(f"adapt: transformers must be {OLDEST[0]}.{OLDEST[1]} or newer, got {__version__}")


__all__ = ["FAMILIES", "Adapter", "FixedBudget", "Tokens", "adapt", "grid_weights", "own_grid", "weighted"]
