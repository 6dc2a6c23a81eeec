"""A vision-language model with its tokenizer and its image processor, from a hub id or a folder.

The parts are loaded one by one, because the Qwen processors of transformers need torchvision for videos.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from texturevlm.ask.config import FILE, read_settings
from texturevlm.channels import Checkpoint, optional, torch_device
from texturevlm.registry import near_miss
from texturevlm.vlm import FAMILIES

# Models that come with the package. A folder of the same name is reached as ./NAME.
SHIPPED = {"reader": Path(__file__).parent.parent / "reader"}


def shipped(model: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """The folder of a model that comes with the package, if this is the name of one."""
    return SHIPPED.get(model, model) if isinstance(model, str) else model


@dataclass(frozen=True)
class PlainProcessor:
    """A tokenizer and an image processor, loaded one by one: what a processor has, without videos."""

    tokenizer: Any
    image_processor: Any

    def save_pretrained(self, folder: str | os.PathLike[str]) -> list[str]:
        """Both parts in one folder."""
        return [str(file) for part in (self.tokenizer, self.image_processor) for file in part.save_pretrained(folder)]


@dataclass(frozen=True)
class FoundModel:
    """A model whose weights are not read yet.

    config:   of the model
    settings: of the TextureProcessor that was saved beside it; none if there is none
    """

    checkpoint: Checkpoint
    config: Any
    settings: dict[str, Any]
    place: torch.device
    dtype: torch.dtype | None

    def load(self) -> tuple[Any, PlainProcessor]:
        """The model in evaluation mode, and its processor."""
        processor = _processor(self.checkpoint, self.config)
        return self.checkpoint.network(self.place, self.dtype), processor


def find(
    model: str | os.PathLike[str],
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | str | None = None,
    **options: Any,
) -> FoundModel:
    """Find a model for `load_vlm`.

    model:   a hub id, a folder, or a name of SHIPPED
    device:  a GPU if there is one and none is named; not with `device_map`
    dtype:   of torch, or its name; the checkpoint's own if None or "auto"
    options: of `from_pretrained`
    """
    if (older := options.pop("torch_dtype", None)) is not None:  # the name of dtype in most model cards
        if dtype is not None:
            raise ValueError(f"load_vlm: dtype must not be given with torch_dtype, got {dtype} and {older}")
        dtype = older
    if device is not None and options.get("device_map") is not None:
        got = f"{device} and {options['device_map']!r}"
        raise ValueError(f"load_vlm: device must not be given with device_map, got {got}")
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    place, wanted, model = _usable(device), _dtype(dtype), shipped(model)
    if model in SHIPPED.values() and not (weights := Path(model) / "model.safetensors").is_file():
        raise FileNotFoundError(
            f"load_vlm: {weights} must hold the weights, which this copy of the package lacks; "
            "`texturevlm ship-reader` writes them"
        )
    with _hint(model):
        checkpoint = _of_family(Checkpoint.locate("load_vlm", model, options))
    settings, _ = read_settings(checkpoint)
    return FoundModel(checkpoint, checkpoint.config(), settings, place, wanted)


def load_processor(
    function: str, model: str | os.PathLike[str], **options: Any
) -> tuple[PlainProcessor, Any, dict[str, Any]]:
    """The processor of a checkpoint without its model, the model's config, and the settings that were saved."""
    with _hint(model):
        checkpoint = Checkpoint.locate(function, shipped(model), options, ("config.json", FILE))
        settings, config = read_settings(checkpoint)
        if config is None:
            config = _of_family(checkpoint).config()
    return _processor(checkpoint, config), config, settings


def _of_family(checkpoint: Checkpoint) -> Checkpoint:
    """The same checkpoint, with the class of its model."""
    return replace(checkpoint, architecture=FAMILIES[checkpoint.model_type(FAMILIES)].architecture)


@contextmanager
def _hint(model: str | os.PathLike[str]) -> Iterator[None]:
    """Errors of what is no folder say which model of the package may have been meant."""
    try:
        yield
    except (ValueError, OSError) as error:
        if isinstance(model, str) and not os.path.isdir(model) and (meant := near_miss(model, SHIPPED)):
            raise type(error)(f"{error}{meant}") from error
        raise


def _processor(checkpoint: Checkpoint, config: Any) -> PlainProcessor:
    images = checkpoint.image_processor()
    return PlainProcessor(_tokenizer(checkpoint, config.image_token_id), images)


def _tokenizer(checkpoint: Checkpoint, image_token: int) -> Any:
    """The tokenizer with its chat template, wherever the checkpoint keeps that."""
    function, name, options = checkpoint.function, checkpoint.name, checkpoint.shared
    transformers = optional(function, "transformers")
    with checkpoint.errors("complete with its tokenizer (tokenizer.json)"):
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
