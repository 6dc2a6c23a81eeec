"""Patches → a Hugging Face model, at their true positions, through hooks and public arguments.

`adapter.py` is the contract of a family, `families/` has them. `views.py` makes tokens of footprints, `places.py` says
where they stand, `prompts.py` pairs them with texts. `captured.py` runs Qwen models from CUDA graphs, `growing.py`
keeps prompts that grow. `hook.py` is the interface of what changes a model while it runs.
"""

from typing import Any

from torch import nn

from texturevlm.vlm.adapter import ATTRIBUTE, Adapter
from texturevlm.vlm.captured import CapturedPrefill
from texturevlm.vlm.captured_decode import CapturedDecode
from texturevlm.vlm.families import ENCODERS, FAMILIES
from texturevlm.vlm.hook import HOOKS, ModelHook, StoredFeatures
from texturevlm.vlm.modules import Override, evaluating
from texturevlm.vlm.places import COORDINATES, Geometry, is_packed, unpack
from texturevlm.vlm.prompts import PromptImage
from texturevlm.vlm.tokens import Tokens, grid_weights, own_grid, weighted
from texturevlm.vlm.views import View, moment_view

OLDEST = (5, 10)  # of transformers: precomputed positions exist since then


def adapt(model: nn.Module, processor: Any = None) -> Any:
    """The adapter of a model: the one that it has, or a new one. `restore` removes it.

    model:     of one of the FAMILIES or ENCODERS
    processor: its processor, or its tokenizer, or None: then inputs are assembled from token ids
    """
    earlier: Adapter | None = getattr(model, ATTRIBUTE, None)
    if earlier is not None and processor in (None, earlier.processor):
        return earlier
    return adapter_for(getattr(model, "config", None), processor, name=type(model).__name__).bind(model)


def adapter_for(config: Any, processor: Any = None, *, name: str = "a model without config") -> Adapter:
    """The adapter of a config's family, not yet bound to a model."""
    family = getattr(config, "model_type", name)
    if family not in ENCODERS and family not in FAMILIES:
        raise ValueError(f"adapt: model must be one of {', '.join([*FAMILIES, *ENCODERS])}, got {family}")
    if (version := installed()) < OLDEST:
        wanted, got = (".".join(map(str, numbers)) for numbers in (OLDEST, version))
        raise ImportError(f"adapt: transformers must be {wanted} or newer, got {got}")
    return (ENCODERS.get(family) or FAMILIES[family])(config, processor)


def installed() -> tuple[int, int]:
    """The version of transformers."""
    from transformers import __version__

    major, minor = __version__.split(".")[:2]
    return int(major), int(minor)


__all__ = [
    "COORDINATES", "ENCODERS", "FAMILIES", "HOOKS", "Adapter", "CapturedDecode", "CapturedPrefill", "Geometry",
    "ModelHook", "Override", "PromptImage", "StoredFeatures", "Tokens", "View", "adapt", "adapter_for", "evaluating",
    "grid_weights", "installed", "is_packed", "moment_view", "own_grid", "unpack", "weighted",
]  # fmt: skip
