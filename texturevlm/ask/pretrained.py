"""A vision-language model with its tokenizer and its image processor, from a hub id or a folder.

The parts are loaded one by one, because the Qwen processors of transformers need torchvision for videos.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch

from texturevlm.channels.pretrained import HUB_OPTIONS, load_pretrained, model_errors, optional, torch_device
from texturevlm.vlm import FAMILIES


@dataclass(frozen=True)
class PlainProcessor:
    """A tokenizer and an image processor, loaded one by one: what a processor has, without videos."""

    tokenizer: Any
    image_processor: Any

    @property
    def chat_template(self) -> Any:
        """The tokenizer's."""
        return self.tokenizer.chat_template

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        """The tokenizer's."""
        return self.tokenizer.apply_chat_template(conversation, **options)

    def save_pretrained(self, folder: str | os.PathLike[str], push_to_hub: bool = False, **options: Any) -> list[str]:
        """Both parts in one folder."""
        parts = (self.tokenizer, self.image_processor)
        return [
            str(file) for part in parts for file in part.save_pretrained(folder, push_to_hub=push_to_hub, **options)
        ]


def load(
    model: str | os.PathLike[str],
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | str | None = None,
    **options: Any,
) -> tuple[Any, PlainProcessor]:
    """The model in evaluation mode, and its processor.

    device:  a GPU if there is one and none is named; not with `device_map`
    dtype:   of torch, or its name; the checkpoint's own if None or "auto"
    options: of `from_pretrained`
    """
    if device is not None and "device_map" in options:
        raise ValueError("load_vlm: device and device_map exclude each other, got both")
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    place, wanted = _usable(device), _dtype(dtype)
    architectures = {kind: architecture for kind, (_, architecture) in FAMILIES.items()}
    network, images, _ = load_pretrained("load_vlm", model, architectures, place, wanted, options)
    shared = {name: options[name] for name in HUB_OPTIONS if name in options}
    tokenizer = _tokenizer("load_vlm", os.fspath(model), network.config.image_token_id, **shared)
    return network, PlainProcessor(tokenizer, images)


def load_processor(function: str, model: str | os.PathLike[str], image_token: int, **options: Any) -> PlainProcessor:
    """The processor of a checkpoint, without its model."""
    with model_errors(function, f"a hub id or a folder with a processor, got {os.fspath(model)}"):
        auto = optional(function, "transformers.models.auto.image_processing_auto").AutoImageProcessor
        images = auto.from_pretrained(os.fspath(model), backend="pil", **options)
    return PlainProcessor(_tokenizer(function, os.fspath(model), image_token, **options), images)


def _tokenizer(function: str, name: str, image_token: int, **options: Any) -> Any:
    """The tokenizer with its chat template, wherever the checkpoint keeps that."""
    transformers = optional(function, "transformers")
    with model_errors(function, f"complete with its tokenizer, got {name}"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(name, **options)
        if tokenizer.chat_template is None:
            found, _ = transformers.ProcessorMixin.get_processor_dict(name, **options)
            tokenizer.chat_template = found.get("chat_template")
    if len(tokenizer) <= image_token:  # transformers makes an empty one where there is no file
        raise ValueError(
            f"{function}: model must be complete with its tokenizer (tokenizer.json), which knows the image token "
            f"{image_token}, got one of {len(tokenizer)} tokens in {name}"
        )
    if tokenizer.chat_template is None:
        raise ValueError(f"{function}: model must have a chat template (chat_template.jinja), got none in {name}")
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
    if dtype == "auto":
        return None
    found = getattr(torch, dtype, dtype) if isinstance(dtype, str) else dtype
    if found is not None and not (isinstance(found, torch.dtype) and found.is_floating_point):
        raise ValueError(f"load_vlm: dtype must be a floating one of torch, such as bfloat16, got {dtype!r}")
    return found
