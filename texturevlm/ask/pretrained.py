"""A vision-language model with its tokenizer and its image processor, from a hub id or a folder.

The parts are loaded one by one, because the Qwen processors of transformers need torchvision for videos.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch

from texturevlm.channels.pretrained import load_pretrained, model_errors, optional, torch_device

ARCHITECTURES = {
    "qwen3_vl": "Qwen3VLForConditionalGeneration",
    "qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration",
    "llava": "LlavaForConditionalGeneration",
    "llava_onevision": "LlavaOnevisionForConditionalGeneration",
}


@dataclass(frozen=True)
class Processor:
    """The parts of a processor that an adapter uses."""

    tokenizer: Any
    image_processor: Any


def load(
    model: str | os.PathLike[str], *, device: torch.device | str | None = None, dtype: torch.dtype | str | None = None
) -> tuple[Any, Processor]:
    """The model in evaluation mode, and its processor.

    device: a GPU if there is one and none is named
    dtype:  of torch, or its name; the checkpoint's own if None
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    place, wanted = _usable(device), _dtype(dtype)
    network, images, _ = load_pretrained("load_vlm", model, ARCHITECTURES, place, wanted)
    return network, Processor(_tokenizer(os.fspath(model), network.config.image_token_id), images)


def _tokenizer(name: str, image_token: int) -> Any:
    """The tokenizer with its chat template, wherever the checkpoint keeps that."""
    transformers = optional("load_vlm", "transformers")
    with model_errors("load_vlm", f"complete with its tokenizer, got {name}"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(name)
        if tokenizer.chat_template is None:
            found, _ = transformers.ProcessorMixin.get_processor_dict(name)
            tokenizer.chat_template = found.get("chat_template")
    if len(tokenizer) <= image_token:  # transformers makes an empty one where there is no file
        raise ValueError(
            f"load_vlm: model must be complete with its tokenizer (tokenizer.json), which knows the image token "
            f"{image_token}, got one of {len(tokenizer)} tokens in {name}"
        )
    if tokenizer.chat_template is None:
        raise ValueError(f"load_vlm: model must have a chat template (chat_template.jinja), got none in {name}")
    return tokenizer


def _usable(device: torch.device | str) -> torch.device:
    """Check that a device can hold and return numbers, before a model is loaded."""
    place = torch_device("load_vlm", device)
    try:
        torch.zeros(1, device=place).item()
    except (RuntimeError, NotImplementedError, AssertionError, ImportError) as error:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
        raise ValueError(f"load_vlm: device must be one that works here, got {device}: {line}") from None
    return place


def _dtype(dtype: torch.dtype | str | None) -> Any:
    found = getattr(torch, dtype, dtype) if isinstance(dtype, str) else dtype
    if found is not None and not (isinstance(found, torch.dtype) and found.is_floating_point):
        raise ValueError(f"load_vlm: dtype must be a floating one of torch, such as bfloat16, got {dtype!r}")
    return found
